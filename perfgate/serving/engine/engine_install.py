"""Put the CPU serving engine into a Python environment: SGLang without the CUDA packages that its own pins would pull."""

from __future__ import annotations

import re
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution, version
from pathlib import Path

import perfgate
from perfgate.engines.sglang_releases import (
    COMPANIONS,
    ENGINE,
    KEPT,
    STAND_IN,
    STAND_IN_NAME,
    WITHOUT_PINS,
    list_needs,
    needs_stand_in,
)
from perfgate.errors import EngineError
from perfgate.machine.fingerprint import PARTS
from perfgate.machine.tools import Tool

RELEASE = "0.5.23"
"""The release of SGLang that serves on a CPU unless an arm names its own Python: the newest that passes the suite."""

# Step 2 of 2. Step 1 is the extra `cpu-engine`, whose pins these packages run with although they ask for others.
PACKAGES = (f"{ENGINE}=={RELEASE}", *WITHOUT_PINS)
_PIP = Tool(timeout_s=3600.0, missing=EngineError, failed=EngineError)
REQUIRED = ("torch", "transformers", "xgrammar")

OURS = "sglang-perfgate"
EXTRA = "cpu-engine"
PLUGINS = "sglang.srt.plugins"
_EXACT = re.compile(r"^([\w.-]+)(?:\[[^]]*\])?==([\w.+!]+)$")


def list_missing() -> list[str]:
    """Name the packages of the engine that are absent from this Python or have another version."""
    return [pin for pin in PACKAGES if read_version(pin.partition("==")[0]) != pin.partition("==")[2]]


def read_version(package: str) -> str:
    """Return the installed version of a distribution, or `absent`."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def install_engine() -> list[str]:
    """Install what is missing and return it. Raise EngineError when step 1 was left out or pip fails."""
    absent = [package for package in REQUIRED if read_version(package) == "absent"]
    if absent:
        raise EngineError(
            f"{', '.join(absent)} missing: first `pip install '.[cpu-engine]'` in perfgate's checkout, then this command again"
        )
    missing = list_missing()
    if missing:
        _install(sys.executable, ["--no-deps", *missing])
    put_stand_in(RELEASE, Path(sysconfig.get_path("purelib")))
    return missing


def install_release(release: str, folder: Path, torch_index: str | None = None) -> Path:
    """Make or complete an environment in `folder` that serves a release of SGLang on a CPU; return its Python.

    The packages are those of the extra `cpu-engine`, in the versions that the release pins where it pins one. perfgate's
    plug-ins are seen there as they lie here. `torch_index` is a package index from which torch alone is taken. Raise
    EngineError when pip fails, for a version that no registry has, and in an installation that does not know its own extra.
    """
    python, is_new = folder.absolute() / "bin" / "python", not folder.exists()
    try:
        # Its pip comes last, and pip's list of files last of that: what an attempt left that was cut off is made whole.
        if not any(folder.glob("lib/python*/site-packages/pip-*.dist-info/RECORD")):
            _PIP.call([sys.executable, "-m", "venv", str(folder)], name=f"python -m venv {folder}")
        _install(str(python), ["--no-deps", f"{ENGINE}=={release}", *WITHOUT_PINS])
    except EngineError:
        if is_new:
            # An environment without its release would pass for one that serves.
            shutil.rmtree(folder, ignore_errors=True)
        raise
    [packages] = sorted(folder.absolute().glob("lib/python*/site-packages"))
    pins = choose_pins(read_extra(), read_release_pins(packages))
    if torch_index:
        _install(str(python), ["--index-url", torch_index, *(pin for pin in pins if pin.startswith("torch=="))])
    # Beside SGLang itself, which is there already: pip reports its unmet pins, and that is expected.
    _install(str(python), [*(pin for pin in pins if pin not in WITHOUT_PINS), *list_needs(release)])
    show_plugins(packages)
    put_stand_in(release, packages)
    return python


def put_stand_in(release: str, packages: Path) -> None:
    """Put a stand-in for `sgl_kernel` into a folder of packages, where the release imports it and the folder lacks it."""
    if needs_stand_in(release) and not (packages / "sgl_kernel").exists():
        (packages / STAND_IN_NAME).write_text(STAND_IN, encoding="utf-8")


def _install(python: str, options: Iterable[str]) -> None:
    words = list(options)
    argv = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words]
    _PIP.call(argv, name=f"pip install {' '.join(words)}"[:200])


def read_extra() -> dict[str, str]:
    """The packages that this perfgate's extra `cpu-engine` pins, by name. Raise EngineError where it cannot be read."""
    found = _read_pins(distribution(OURS), f'extra == "{EXTRA}"') if read_version(OURS) != "absent" else {}
    if not found:
        raise EngineError(f"{OURS} is not installed with its metadata in {sys.executable}: `pip install --no-deps .` first")
    return found


def read_release_pins(packages: Path) -> dict[str, str]:
    """What the SGLang in a folder of packages pins exactly for every machine, by name."""
    [info] = packages.glob(f"{ENGINE}-*.dist-info")
    return _read_pins(Distribution.at(info), "")


def _read_pins(found: Distribution, marker: str) -> dict[str, str]:
    pairs = (line.partition(";") for line in found.requires or ())
    exact = (_EXACT.match(spec.strip()) for spec, _, when in pairs if when.strip().replace("'", '"') == marker)
    return {match[1].lower().replace("_", "-"): match[2] for match in exact if match}


def choose_pins(ours: Mapping[str, str], release: Mapping[str, str]) -> list[str]:
    """The extra's packages, each in the version that the release pins; those that are kept, in ours.

    A companion is without a version where the release pins another version of the package that it belongs to.
    """
    chosen = {name: own if name in KEPT else release.get(name, own) for name, own in ours.items()}
    moved = {name for name, version in chosen.items() if version != ours[name]}
    free = {name for name, leader in COMPANIONS.items() if leader in moved and name not in release}
    return [name if name in free else f"{name}=={version}" for name, version in chosen.items()]


def show_plugins(packages: Path) -> None:
    """Let a folder of packages see perfgate as it lies here, and its plug-ins for servers."""
    for name in PARTS:
        source = Path(perfgate.__file__).parents[1] / name
        link = packages / source.name
        link.unlink(missing_ok=True)
        link.symlink_to(source)
    info = packages / f"{OURS.replace('-', '_')}-{perfgate.__version__}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {OURS}\nVersion: {perfgate.__version__}\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("\n".join(_list_entry_points()) + "\n", encoding="utf-8")


def _list_entry_points() -> Iterator[str]:
    yield f"[{PLUGINS}]"
    for entry in distribution(OURS).entry_points.select(group=PLUGINS):
        yield f"{entry.name} = {entry.value}"
