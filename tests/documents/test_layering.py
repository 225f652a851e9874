"""Imports run in one direction, the verdict reaches no process, file, network or clock, and the command line starts light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

import perfgate

PACKAGE = Path(perfgate.__file__).parent
KERNELS = PACKAGE.parent / "perfgate_moe"

# From what knows nothing to what wires everything; a module may import from its own layer and those above it in this list.
LAYERS = (
    {"core", "errors", "perfgate_moe"},
    {"engines", "metrics", "stats", "storage"},
    {"scenario", "machine", "evidence"},
    {"readers", "results", "verdict", "check"},
    {"serving", "runner", "report"},
    {"gate", "bisection", "history", "resolution", "releases", "scheduler"},
    {"github"},
    {"cli", "api", "__main__"},
)
RANKS = {name: rank for rank, names in enumerate(LAYERS) for name in names}
# The effects at the rim are wired together by the command line, never by each other.
RIM = LAYERS[4]

# The kernels are a package of their own, which knows nothing of the gate; its rooms in the same order as LAYERS.
KERNEL_LAYERS = ({"__init__", "errors"}, {"layer"}, {"engines", "exam"}, {"timing"}, {"build"}, {"proof"})
KERNEL_RANKS = {name: rank for rank, names in enumerate(KERNEL_LAYERS) for name in names}
# All of the kernels that the gate may import, besides the commands that run them.
LIGHT_KERNELS = ("perfgate_moe.engines.switch", "perfgate_moe.errors", "perfgate_moe.proof.values")
KERNEL_COMMANDS = PACKAGE / "cli" / "moe"

# Modules of one room, and of the package outside of its rooms.
MAX_MODULES, MAX_LOOSE = 14, 8

# What a verdict rests on, with everything that it imports.
PURE = (
    "core",
    "engines",
    "evidence",
    "metrics",
    "stats",
    "check",
    "verdict",
    "bisection/search",
    "storage/rounding",
)
EFFECTS = {
    "asyncio",
    "concurrent",
    "ctypes",
    "datetime",
    "fcntl",
    "fileinput",
    "glob",
    "gzip",
    "http",
    "httpx",
    "io",
    "lzma",
    "mmap",
    "multiprocessing",
    "os",
    "pathlib",
    "psutil",
    "pynvml",
    "random",
    "requests",
    "secrets",
    "select",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "sqlite3",
    "subprocess",
    "tarfile",
    "tempfile",
    "threading",
    "time",
    "urllib",
    "uuid",
    "zipfile",
}

# Types that hold what was found. What they say is written where it is shown: a value is a code, a name or a number.
VALUES = ("core", "evidence", "verdict", "resolution/values", "scheduler/values")
# From so many words on, a text is a sentence.
SENTENCE = 4

# What an installation may lack, with a third of a second of scipy's.
OPTIONAL = {"torch", "triton", "sglang", "vllm", "duckdb", "pyarrow", "otava"}
SLOW = {"perfgate/stats/special": "scipy"}

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


def is_below(path, names):
    return any(f"{name_module(path)}/".startswith(f"perfgate/{name}/") for name in names)


def is_light_kernel(path):
    return name_module(path).replace("/", ".") in LIGHT_KERNELS


@cache
def find_imports(source):
    """Each absolute module name that `source` imports, wherever it stands, except under `if __name__ == "__main__"`."""
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if not (isinstance(node, ast.If) and "__main__" in ast.unparse(node.test))]
    return tuple(list_imported(tree))


def list_imported(tree):
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
        ("github", "from perfgate.cli.output import print_json\nfrom perfgate.report.comment import build_comment", ["cli"]),
        ("gate", "from perfgate.github.client import connect", ["github"]),
        ("check", "from perfgate.core import Verdict\nif __name__ == '__main__':\n    from perfgate.cli import main", []),
        ("cli", "from perfgate.serving.engine.server import start", []),
    ],
)
def test_find_backward__finds_what_it_should(name, source, backward):
    assert find_backward(name, source) == backward


def find_sentences(source):
    """Each sentence that is a value of an enum or a default of a field in `source`, with the class that has it."""
    classes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))
    fields = ((each.name, field) for each in classes for field in each.body if isinstance(field, (ast.Assign, ast.AnnAssign)))
    texts = ((name, node.value) for name, field in fields if field.value for node in ast.walk(field.value) if is_text(node))
    return [f"{name}: {text}" for name, text in texts if len(text.split()) >= SENTENCE]


def is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@pytest.mark.parametrize("path", [path for path in list_modules() if is_below(path, VALUES)], ids=name_module)
def test_values__hold_no_sentences(path):
    assert find_sentences(path.read_text(encoding="utf-8")) == [], "keep a code here, and its words where it is shown"


@pytest.mark.parametrize(
    ("body", "sentences"),
    [
        ('MISSING = "{file} is not there any more"', ["Damage: {file} is not there any more"]),
        ('advice: str = field(default="measure it once again")', ["Damage: measure it once again"]),
        ('where: str = f"in {PLACE} of the folder given"', ["Damage:  of the folder given"]),
        ('"""What became of a file."""\nMISSING = auto()\nlayer: str = "dense products"', []),
    ],
)
def test_find_sentences__in_the_body_of_a_class(body, sentences):
    indented = body.replace("\n", "\n    ")

    assert find_sentences(f"class Damage:\n    {indented}\n") == sentences


def build_graph():
    """What each of our modules imports, by dotted names; a module brings the packages that it lies in."""
    sources = {name_dotted(path): path.read_text(encoding="utf-8") for path in list_modules()}
    return {name: {*find_imports(source), *find_parents(name)} for name, source in sources.items()}


def name_dotted(path):
    return name_module(path).replace("/", ".").removesuffix(".__init__")


def find_parents(name):
    parts = name.split(".")
    return {".".join(parts[:length]) for length in range(1, len(parts))}


def find_effects(name, graph, effects=EFFECTS):
    """Each way from module `name` to one of `effects`, as the modules passed on it; the shortest one for each."""
    ways, seen = [(name,)], {name}
    for way in ways:
        for imported in sorted(graph[way[-1]]):
            if imported in graph and imported not in seen:
                seen.add(imported)
                ways.append((*way, imported))
    found = [(*way, imported) for way in ways for imported in sorted(graph[way[-1]]) if imported.split(".")[0] in effects]
    return {way[-1].split(".")[0]: " -> ".join(way) for way in reversed(found)}


@pytest.fixture(scope="module")
def graph():
    return build_graph()


@pytest.mark.parametrize(
    "path", [path for path in list_modules() if is_below(path, PURE) or is_light_kernel(path)], ids=name_module
)
def test_imports__judging_reaches_no_process_file_network_or_clock(path, graph):
    assert find_effects(name_dotted(path), graph) == {}


def list_inner_imports(source):
    """The module of each import that stands in a function."""
    if not re.search(r"^\s+(import|from) ", source, flags=re.MULTILINE):
        return
    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    for node in (node for function in functions for node in ast.walk(function)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def find_needless(name, source, graph):
    """Imports in functions that any installation could make at the top."""
    for module in list_inner_imports(source):
        top = module.split(".")[0]
        if top not in OPTIONAL and SLOW.get(name) != top and not (module in graph and find_effects(module, graph, OPTIONAL)):
            yield module


def test_imports__inside_a_function_may_be_missing(graph):
    sources = {name_module(path): path.read_text(encoding="utf-8") for path in list_modules()}
    needless = {name: list(find_needless(name, source, graph)) for name, source in sources.items()}

    assert {name: found for name, found in needless.items() if found} == {}


def test_find_needless__finds_what_it_should(graph):
    lines = ("import torch", "import os", "from perfgate.history.query import read_history", "import perfgate.core")
    source = "def f():" + "".join(f"\n    {line}" for line in lines)

    assert list(find_needless("perfgate/gate/gate", source, graph)) == ["os", "perfgate.core"]


@pytest.mark.parametrize(
    ("graph", "effects"),
    [
        ({"a": {"math"}}, {}),
        ({"a": {"os.path"}}, {"os": "a -> os.path"}),
        ({"a": {"b"}, "b": {"c", "a"}, "c": {"time"}}, {"time": "a -> b -> c -> time"}),
        ({"a": {"b", "socket"}, "b": {"socket"}}, {"socket": "a -> socket"}),
    ],
)
def test_find_effects__through_whatever_is_imported(graph, effects):
    assert find_effects("a", graph) == effects


@pytest.mark.parametrize("path", sorted((PACKAGE / "results").rglob("*.py")), ids=name_module)
def test_results__load_and_never_judge(path):
    imported = find_imports(path.read_text(encoding="utf-8"))

    assert sorted(module for module in imported if module.startswith(("perfgate.verdict", "perfgate.check"))) == []


def find_kernel_rooms(source):
    """The rooms of the kernels that `source` imports from."""
    return {module.split(".")[1] for module in find_imports(source) if module.startswith("perfgate_moe.")} & KERNEL_RANKS.keys()


def find_gate_imports(source):
    """What `source` imports of the gate."""
    return sorted({module for module in find_imports(source) if module.split(".")[0] == PACKAGE.name})


@pytest.mark.parametrize("path", sorted(KERNELS.rglob("*.py")), ids=name_module)
def test_kernels__know_nothing_of_the_gate(path):
    assert find_gate_imports(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import perfgate", ["perfgate"]),
        ("def f():\n    from perfgate.core import Arm", ["perfgate.core", "perfgate.core.Arm"]),
        ("from perfgate_moe.errors import MoeError", []),
    ],
)
def test_find_gate_imports__finds_what_it_should(source, found):
    assert find_gate_imports(source) == found


@pytest.mark.parametrize("path", sorted(KERNELS.rglob("*.py")), ids=name_module)
def test_kernels__rooms_import_in_one_direction(path):
    own = Path(name_module(path)).parts[1]
    rooms = find_kernel_rooms(path.read_text(encoding="utf-8")) - {own}

    assert sorted(room for room in rooms if KERNEL_RANKS[room] >= KERNEL_RANKS[own]) == []


@pytest.mark.parametrize(
    "path", [path for path in sorted(PACKAGE.rglob("*.py")) if KERNEL_COMMANDS not in path.parents], ids=name_module
)
def test_gate__takes_only_light_modules_of_the_kernels(path):
    found = {module for module in find_imports(path.read_text(encoding="utf-8")) if module.split(".")[0] == KERNELS.name}

    assert sorted(module for module in found if not module.startswith(LIGHT_KERNELS)) == []


@pytest.mark.parametrize("module", LIGHT_KERNELS)
def test_light_kernel_modules__load_neither_torch_nor_the_gate(module):
    code = f"import sys, {module}; print(sorted({{'perfgate', 'numpy', 'torch', 'triton'}} & sys.modules.keys()))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)

    assert done.stdout == "[]\n"


@pytest.mark.parametrize("room", sorted({path.parent for path in list_modules()}), ids=name_module)
def test_room__has_few_modules(room):
    modules = [path.name for path in room.glob("*.py") if path.name != "__init__.py"]

    assert len(modules) <= (MAX_LOOSE if room == PACKAGE else MAX_MODULES)


@pytest.mark.parametrize("folder", ["benchmarks", "tests"])
def test_room__beside_the_packages_has_few_modules(folder):
    rooms = Counter(path.parent for path in (PACKAGE.parent / folder).rglob("*.py") if path.name != "__init__.py")

    assert {str(room): count for room, count in rooms.items() if count > MAX_MODULES} == {}


def test_rooms_of_tests__are_where_pytest_looks(pytestconfig):
    passed_by = pytestconfig.getini("norecursedirs")
    rooms = {path.parent.relative_to(PACKAGE.parent) for path in (PACKAGE.parent / "tests").rglob("test_*.py")}

    assert [str(room) for room in rooms if any(fnmatch(name, one) for name in room.parts for one in passed_by)] == []


def test_class_names__mean_one_thing():
    places = defaultdict(list)
    for path in list_modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name_module(path))

    assert {name: found for name, found in places.items() if len(found) > 1} == {}


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


# What runs on every event, or around every job, loads nothing of what judges.
SPARED = [
    ("ci.planning", {"numpy", "jinja2", "perfgate.check"}),
    ("machine.runner_slot", {"numpy", "perfgate.evidence"}),
    ("measuring.matrix", {"pandas"}),
]


@pytest.mark.parametrize(("command", "spared"), SPARED)
def test_command__loads_nothing_of_what_it_does_not_do(command, spared):
    code = f"import sys, perfgate.cli.{command}; print(sorted({spared!r} & sys.modules.keys()))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_cli__every_command_module_stands_in_the_table():
    from perfgate.cli import COMMANDS

    commands = {path.stem for path in (PACKAGE / "cli").rglob("*.py") if "\ndef command(" in path.read_text(encoding="utf-8")}

    assert commands - COMMANDS.keys() == set(), "a command module that the table does not list cannot be called"
