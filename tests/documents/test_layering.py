"""Imports run in one direction, the verdict touches no process, network or clock, and the command line starts light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import perfgate

PACKAGE = Path(perfgate.__file__).parent
KERNELS = PACKAGE.parent / "perfgate_moe"

# From what knows nothing to what wires everything; a module may import from its own layer and those above it in this list.
LAYERS = (
    {"core", "errors", "expert_use"},
    {"metrics", "stats", "storage"},
    {"scenario", "machine"},
    {"readers", "results", "verdict", "check"},
    {"perfgate_moe", "serving", "runner", "github", "report"},
    {"gate", "bisection", "history"},
    {"cli", "__main__"},
)
RANKS = {name: rank for rank, names in enumerate(LAYERS) for name in names}
# The effects at the rim are wired together by the command line, never by each other.
RIM = LAYERS[4]

PURE = (
    "core",
    "expert_use",
    "metrics",
    "stats",
    "check",
    "bisection/search",
    "storage/rounding",
    "verdict/compare",
    "verdict/compare_metrics",
    "verdict/conclusion",
    "verdict/layers",
    "verdict/policy",
    "verdict/power",
    "verdict/series",
)
EFFECTS = {
    "asyncio",
    "ctypes",
    "datetime",
    "glob",
    "http",
    "httpx",
    "multiprocessing",
    "os",
    "psutil",
    "pynvml",
    "random",
    "requests",
    "shutil",
    "signal",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "urllib",
    "uuid",
}

HEAVY = {"torch", "pandas", "scipy", "pydantic", "rich", "sglang", "jinja2", "httpx", "numpy"}


def list_modules():
    return sorted([*PACKAGE.rglob("*.py"), *KERNELS.rglob("*.py")])


def name_module(path):
    """A module by its path below the repository, without the suffix."""
    return path.relative_to(PACKAGE.parent).with_suffix("").as_posix()


def name_part(path):
    """The first name below the package: a module, or the room that holds it. The kernels are one room."""
    parts = Path(name_module(path)).parts
    return parts[0] if parts[0] == KERNELS.name else parts[1]


def is_pure(path):
    return any(f"{name_module(path)}/".startswith(f"perfgate/{name}/") for name in PURE)


def find_imports(source):
    """Yield each absolute module name that `source` imports, wherever it stands, except under `if __name__ == "__main__"`."""
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if not (isinstance(node, ast.If) and "__main__" in ast.unparse(node.test))]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def find_backward(name, source):
    """Name each import of `source`, a module in layer `name`, that points the wrong way."""
    modules = set(find_imports(source))
    parts = {module.split(".")[1] for module in modules if module.startswith("perfgate.")}
    parts |= {KERNELS.name for module in modules if module.split(".")[0] == KERNELS.name}
    known = {part for part in parts if part in RANKS and part != name}
    return sorted(part for part in known if RANKS[part] > RANKS[name] or {part, name} <= RIM)


def test_layers__every_module_has_one():
    unplaced = {name_part(path) for path in list_modules()} - RANKS.keys() - {"__init__"}

    assert unplaced == set(), "give each new module its place in LAYERS"


@pytest.mark.parametrize("path", list_modules(), ids=name_module)
def test_imports__run_in_one_direction(path):
    name = name_part(path)

    assert name not in RANKS or find_backward(name, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("name", "source", "backward"),
    [
        ("core", "from perfgate.metrics import METRICS", ["metrics"]),
        ("stats", "def f():\n    import perfgate.check", ["check"]),
        ("serving", "from perfgate import report", ["report"]),
        ("check", "from perfgate.core import Verdict\nif __name__ == '__main__':\n    from perfgate.cli import main", []),
        ("cli", "from perfgate.serving.engine.server import start", []),
    ],
)
def test_find_backward__finds_what_it_should(name, source, backward):
    assert find_backward(name, source) == backward


@pytest.mark.parametrize("path", [path for path in list_modules() if is_pure(path)], ids=name_module)
def test_imports__judging_knows_no_process_network_or_clock(path):
    imported = {module.split(".")[0] for module in find_imports(path.read_text(encoding="utf-8"))}

    assert sorted(imported & EFFECTS) == []


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"], ["nonsense"]])
def test_cli__starts_without_heavy_modules(arguments):
    code = f"""
import sys
from perfgate.cli import main
if {arguments!r}:
    main({arguments!r})
print(sorted({HEAVY!r} & sys.modules.keys()))
"""

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"


def test_cli__every_command_module_stands_in_the_table():
    from perfgate.cli import COMMANDS

    commands = {path.stem for path in (PACKAGE / "cli").rglob("*.py") if "\ndef command(" in path.read_text(encoding="utf-8")}

    assert commands - COMMANDS.keys() == set(), "a command module that the table does not list cannot be called"
