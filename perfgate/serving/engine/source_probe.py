"""Looks for facts in an engine's installed source, and imports nothing of it: run as a script by an arm's Python.

Standard input has one JSON object: `package`, `arguments`, `has_field_options`, `paths`, `words`, and `facts`, a list of
[kind, place]. The answer is the list of those that were not found.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_OPTION = re.compile(r"--[a-z][\w-]*")


def find_root(package: str) -> Path:
    """The folder that holds the package's folder. SystemExit where there is none."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"no package {package}")
    return Path(next(iter(spec.submodule_search_locations))).parent


def has_name(root: Path, place: str) -> bool:
    """Whether a module's source defines or imports a name; of `Class.method`, whether the class has it, or one it is made of.

    With parameters behind it, as in `module:function(first, second)`, it is to be defined there and take those. Of several
    places with ` or ` between them one is enough.
    """
    return any(_has_place(root, one, frozenset()) for one in place.split(" or "))


def _has_place(root: Path, place: str, seen: frozenset[str]) -> bool:
    module, _, called = place.partition(":")
    qualified, is_call, words = called.removesuffix(")").partition("(")
    body = _read_body(root, module)
    takes = {word.strip() for word in words.split(",")} if is_call else None
    owner, *method = names = qualified.split(".")
    if _defines(body, names, takes):
        return True
    homes = _list_homes(body, module, owner) if method else set()
    others = {home + called.removeprefix(owner) for home in homes} - seen - {place}
    return any(_has_place(root, other, seen | {place}) for other in sorted(others))


def _read_body(root: Path, module: str) -> list[ast.stmt]:
    """A module's statements; none where there is no such module."""
    base = root.joinpath(*module.split("."))
    file = next((one for one in (base.with_suffix(".py"), base / "__init__.py") if one.is_file()), None)
    return [] if file is None else ast.parse(file.read_bytes()).body


def _list_homes(body: list[ast.stmt], module: str, owner: str) -> set[str]:
    """Where else a class's methods may stand: where it is imported from, and in the classes that it is made of."""
    nodes = list(_flatten(body))
    imports = (node for node in nodes if isinstance(node, ast.ImportFrom) and not node.level)
    homes = {one.asname or one.name: f"{node.module}:{one.name}" for node in imports for one in node.names}
    classes = (node for node in nodes if isinstance(node, ast.ClassDef) and node.name == owner)
    bases = {base.id for node in classes for base in node.bases if isinstance(base, ast.Name)}
    return {homes.get(name, f"{module}:{name}") for name in bases} | ({homes[owner]} if owner in homes else set())


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


def find_files(root: Path, beginnings: list[str]) -> Iterator[Path]:
    """All modules whose path begins so."""
    for path in (path for begin in beginnings for path in sorted(root.glob(f"{begin}*"))):
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def read_sources(root: Path, beginnings: list[str]) -> str:
    """The text of all modules whose path begins so, without lines that are comments."""
    text = "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in find_files(root, beginnings))
    return _COMMENT.sub("", text)


def list_options(root: Path, beginnings: list[str], *, has_fields: bool) -> set[str]:
    """The options that modules define, by a call of `add_argument` or, where `has_fields`, by a field of a class.

    Text is not searched: `--enable-metrics` stands within longer options, and in the help of others.
    """
    found: set[str] = set()
    for file in find_files(root, beginnings):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
                found |= {str(one.value) for one in node.args if isinstance(one, ast.Constant)}
            elif has_fields and isinstance(node, ast.ClassDef):
                found |= {option for field in node.body if isinstance(field, ast.AnnAssign) for option in _name_options(field)}
    return found


def _name_options(field: ast.AnnAssign) -> Iterator[str]:
    """The options that a field of a class makes: its own name's, and others by which it is known; none where it says so."""
    if isinstance(field.target, ast.Name) and not _is_hidden(field.annotation):
        yield f"--{field.target.id.replace('_', '-')}"
        constants = (one.value for one in ast.walk(field.annotation) if isinstance(one, ast.Constant))
        yield from (text for text in constants if isinstance(text, str) and _OPTION.fullmatch(text))


def _is_hidden(annotation: ast.expr) -> bool:
    """Whether a field says `no_cli=True`: its option, if there is one, is defined by hand."""
    given = (one for one in ast.walk(annotation) if isinstance(one, ast.keyword) and one.arg == "no_cli")
    return any(isinstance(one.value, ast.Constant) and one.value.value is True for one in given)


def list_missing(asked: dict[str, Any]) -> list[list[str]]:
    """The facts that the installed source does not show."""
    root = find_root(asked["package"])
    options = list_options(root, asked["arguments"], has_fields=asked["has_field_options"])
    # A path is what a decorator or a mount is called with: it stands elsewhere, too, where it is asked for.
    paths = set(
        re.findall(r"""(?:@[\w.]+|\bMount|\.add_api_route)\(\s*["'](/[^"']*)["']""", read_sources(root, asked["paths"]))
    )
    everything = read_sources(root, asked["words"])
    metrics = set(re.findall(r"""["'](\w+:\w+)["']""", everything))
    looks = {
        "name": lambda place: has_name(root, place),
        "option": lambda place: place in options,
        "path": lambda place: place in paths,
        # Prometheus' client adds the ending of a counter where it is not there.
        "metric": lambda place: not metrics.isdisjoint({place, place.removesuffix("_total")}),
        "words": lambda place: re.search(rf"{re.escape(place)}(?![\w-])", everything) is not None,
    }
    return [[kind, place] for kind, place in asked["facts"] if not looks[kind](place)]


if __name__ == "__main__":
    print(json.dumps(list_missing(json.load(sys.stdin))))
