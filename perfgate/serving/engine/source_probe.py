"""Looks for facts in an engine's installed source, and imports nothing of it: run as a script by an arm's Python.

Standard input has one JSON object: `package`, `arguments`, `words`, and `facts`, a list of [kind, place]. The answer is the
list of those that were not found.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def find_root(package: str) -> Path:
    """The folder that holds the package's folder. SystemExit where there is none."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"no package {package}")
    return Path(next(iter(spec.submodule_search_locations))).parent


def has_name(root: Path, place: str) -> bool:
    """Whether a module's source defines or imports a name; of `Class.method`, whether the class has the method.

    With parameters behind it, as in `module:function(first, second)`, it is to be defined there and take those.
    """
    module, _, called = place.partition(":")
    qualified, is_call, words = called.removesuffix(")").partition("(")
    base = root.joinpath(*module.split("."))
    file = next((one for one in (base.with_suffix(".py"), base / "__init__.py") if one.is_file()), None)
    takes = {word.strip() for word in words.split(",")} if is_call else None
    return file is not None and _defines(ast.parse(file.read_bytes()).body, qualified.split("."), takes)


def _defines(body: list[ast.stmt], names: list[str], takes: set[str] | None) -> bool:
    wanted, *rest = names
    is_importable = not rest and takes is None
    return any(
        (isinstance(node, _NAMED) and node.name == wanted and _fits(node, rest, takes))
        or (is_importable and isinstance(node, ast.ImportFrom) and wanted in _list_imported(node))
        for node in _flatten(body)
    )


def _list_imported(node: ast.ImportFrom) -> set[str]:
    return {alias.asname or alias.name for alias in node.names}


def _fits(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, rest: list[str], takes: set[str] | None) -> bool:
    if rest:
        return _defines(node.body, rest, takes)
    if takes is None or isinstance(node, ast.ClassDef):
        return takes is None
    parameters = node.args
    return takes <= {one.arg for one in (*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs)}


def _flatten(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body, those under `if` and `try` included."""
    for node in body:
        yield node
        for part in ("body", "orelse", "handlers", "finalbody"):
            if isinstance(node, (ast.If, ast.Try, ast.With)):
                for inner in getattr(node, part, []):
                    yield from _flatten(inner.body if isinstance(inner, ast.ExceptHandler) else [inner])


def read_sources(root: Path, beginnings: list[str]) -> str:
    """The text of all modules whose path begins so."""
    found = (path for begin in beginnings for path in sorted(root.glob(f"{begin}*")))
    files = (file for path in found for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path]))
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)


def list_missing(asked: dict[str, Any]) -> list[list[str]]:
    """The facts that the installed source does not show."""
    root = find_root(asked["package"])
    options, everything = read_sources(root, asked["arguments"]), read_sources(root, [asked["words"]])
    looks = {
        "name": lambda place: has_name(root, place),
        # An option is written out, or made of the field of that name.
        "option": lambda place: place in options or place.removeprefix("--").replace("-", "_") in options,
        "words": lambda place: place in everything,
    }
    return [[kind, place] for kind, place in asked["facts"] if not looks[kind](place)]


if __name__ == "__main__":
    print(json.dumps(list_missing(json.load(sys.stdin))))
