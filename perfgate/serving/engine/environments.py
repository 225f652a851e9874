"""Build one arm: an environment that runs a checkout's code, or other versions of packages, over the machine's engine.

Dependencies come from the engine's environment, so that both arms share every wheel and neither downloads one. Building runs
the checkout's code: it happens as the job's user, and both arms are built the same way.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from perfgate.errors import InputError, RunnerError
from perfgate.machine.tools import Tool

_PYTHON = Tool(timeout_s=1800.0, failed=RunnerError, hint="set engine in the runner's settings")
_LAID = "engine.pth"
_PATHS = f"""
import json, sysconfig
from pathlib import Path
own = sorted({{sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}})
below = [line for path in own for file in Path(path).glob({_LAID!r}) for line in file.read_text().split("\\n") if line]
print(json.dumps(own + below))
"""


def build_arm(source: Path, target: Path, engine: Path) -> Path:
    """Make an environment at `target` over that of `engine`, install the project in `source` into it, return its Python.

    Raise InputError for a source that is no project, RunnerError with the last line of what failed.
    """
    if not (source / "pyproject.toml").is_file() and not (source / "setup.py").is_file():
        raise InputError(f"{source}: holds no pyproject.toml; give the folder of the package, for SGLang its python/")
    if target.exists():
        raise InputError(f"{target}: is there already; an arm is built new")
    python = lay_over(target, engine)
    install_over(python, ["--no-index", "--no-build-isolation", str(source)])
    return python


def lay_over(target: Path, engine: Path) -> Path:
    """Make an empty environment at `target` that finds all that `engine`, a Python, finds; return its Python.

    `engine` may be that of an environment that was laid over another one.
    Raise RunnerError with the last line of what failed.
    """
    _PYTHON.call([str(engine), "-m", "venv", "--without-pip", str(target)], name="venv")
    python = target / "bin" / "python"
    paths = json.loads(_PYTHON.call([str(engine), "-c", _PATHS], name="engine").text)
    (own,) = json.loads(_PYTHON.call([str(python), "-c", _PATHS], name="arm").text)[:1]
    # Of two packages of one name the arm's own folder wins, as it comes first on the path.
    (Path(own) / _LAID).write_text("\n".join(paths) + "\n", encoding="utf-8")
    return python


def install_over(python: Path, wanted: Sequence[str]) -> None:
    """Install what is `wanted`, words of pip's, and nothing that it requires. Raise RunnerError with pip's last line."""
    options = ["--no-deps", "--ignore-installed", "--disable-pip-version-check"]
    _PYTHON.call([str(python), "-m", "pip", "install", "--quiet", *options, *wanted], name="pip")
