"""What the fake engine's router chooses, written down as perfgate's plug-in writes it in a real server.

FAKE_ROUTING chooses the router: mixture, collapsed (every token the same experts), cycling (by the place of a token), shifted
(a mixture, and another one than `mixture`), wide (more experts), padded (passes that are longer than their texts). Left out, no
plug-in runs.
"""

import base64
import json
import os
import pathlib
import random
import zlib
from array import array

ROUTER = os.environ.get("FAKE_ROUTING", "")
LAYERS, TOP_K = 3, 2
EXPERTS = 16 if ROUTER == "wide" else 8
FOLDER = pathlib.Path(os.environ.get("PERFGATE_EXPERTS", "."))


def choose(layer, place, token):
    if ROUTER == "collapsed":
        return [0, 1]
    if ROUTER == "cycling":
        return [(place * TOP_K + slot) % EXPERTS for slot in range(TOP_K)]
    draw = random.Random(zlib.crc32(repr((layer, token)).encode()))
    return [(expert + (ROUTER == "shifted")) % EXPERTS for expert in draw.sample(range(EXPERTS), TOP_K)]


def start():
    """A server has computed a first layer by the time that it is ready."""
    if ROUTER:
        (FOLDER / "hooked").touch()


def is_recorded(question):
    """Whether the plug-in is switched on and the question is one text."""
    return bool(ROUTER) and (FOLDER / "on").exists() and isinstance(question["input_ids"][0], int)


def record(text):
    """One forward pass over `text`, as lines."""
    tokens = text + [0] * (ROUTER == "padded")
    with (FOLDER / "experts.jsonl").open("a") as file:
        for layer in range(LAYERS):
            ids = array("H", [expert for place, token in enumerate(tokens) for expert in choose(layer, place, token)])
            line = {"layer": layer, "experts": EXPERTS, "top_k": TOP_K, "placed": False}
            file.write(json.dumps({**line, "ids": base64.b64encode(ids.tobytes()).decode()}) + "\n")
