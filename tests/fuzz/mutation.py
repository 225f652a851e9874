"""Damage files as crashes, editors and strangers do: by bytes, by lines, and by the values in JSON."""

from __future__ import annotations

import json
from random import Random
from typing import Any

ODD_VALUES = (
    None,
    True,
    0,
    -1,
    1,
    0.5,
    2**53,
    2**64,
    10**25,
    1e308,
    -1e-320,
    float("inf"),
    float("nan"),
    "",
    "\n",
    "\x00\x1b[31m",
    "NaN",
    "Infinity",
    "-1e999",
    "../../etc",
    "9" * 5000,
    "\ud800",
    [],
    [[]],
    {},
    {"": None},
)
ODD_WORDS = (
    b"",
    b"\n",
    b"nan",
    b"-inf",
    b"1e999",
    b"9" * 5000,
    b"[" * 2000,
    b"{" * 2000,
    b'"',
    b"=",
    b"\x00",
    b"\xff\xfe",
    b"\x1f\x8b",
)


def damage(content: bytes, draw: Random) -> bytes:
    """Change `content` in one to four places, keeping its form more often than not."""
    for _ in range(draw.randint(1, 4)):
        content = draw.choice((_damage_json, _damage_json, _damage_lines, _damage_bytes))(content, draw)
    return content


def _damage_json(content: bytes, draw: Random) -> bytes:
    """Change a value of a JSON document, or of one line of many; bytes of anything else."""
    lines = content.split(b"\n")
    chosen = draw.choice([index for index, line in enumerate(lines) if line.strip()] or [0])
    try:
        is_whole = len(lines) < 2 or (content[:1] == b"{" and lines[0].strip() == b"{")
        value = json.loads(content if is_whole else lines[chosen])
    except (ValueError, RecursionError):
        return _damage_bytes(content, draw)
    changed = json.dumps(_change(value, draw), separators=(",", ":")).encode()
    return changed if is_whole else b"\n".join([*lines[:chosen], changed, *lines[chosen + 1 :]])


def _change(value: Any, draw: Random) -> Any:
    """Go down at random and change what is there."""
    if not isinstance(value, dict | list) or not value or draw.random() < 0.15:
        return _replace(value, draw)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = draw.choice(keys)
    kind = draw.random()
    if kind < 0.7:
        value[key] = _change(value[key], draw)
    elif kind < 0.8:
        del value[key]
    elif isinstance(value, list):
        value.insert(draw.choice(keys), value[key])
    else:
        value[draw.choice(["", "odd\nkey", str(draw.choice(keys))])] = value[draw.choice(keys)]
    return value


def _replace(value: Any, draw: Random) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool) and draw.random() < 0.5:
        return draw.choice((-value, value + 1, value * 1000, 0, str(value), [value]))
    return draw.choice(ODD_VALUES)


def _damage_lines(content: bytes, draw: Random) -> bytes:
    lines = content.split(b"\n")
    one, other = (draw.randrange(len(lines)) for _ in range(2))
    kind = draw.randrange(4)
    if kind == 0:
        del lines[one]
    elif kind == 1:
        lines.insert(other, lines[one])
    elif kind == 2:
        lines[one], lines[other] = lines[other], lines[one]
    else:
        head, found, _ = lines[one].rpartition(draw.choice((b" ", b"=", b":")))
        lines[one] = head + found + draw.choice(ODD_WORDS)
    return b"\n".join(lines)


def _damage_bytes(content: bytes, draw: Random) -> bytes:
    start, end = sorted(draw.randint(0, len(content)) for _ in range(2))
    kind = draw.randrange(4)
    if kind == 0:
        return content[:end]
    if kind == 1:
        return content[:start] + draw.choice(ODD_WORDS) + content[start:]
    if kind == 2:
        return content[:start] + content[end:]
    return content[:start] + draw.randbytes(1) + content[start + 1 :]
