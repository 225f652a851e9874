"""Build one arm: an environment that runs a checkout's code over the machine's engine.

Dependencies come from the engine's environment, so that both arms share every wheel and neither downloads one. Building runs
the checkout's code: it happens as the job's user, and both arms are built the same way.
"""

from __future__ import annotations

import json
from pathlib import Path

from perfgate.errors import InputError, RunnerError
from perfgate.machine.tools import Tool

_PYTHON = Tool(timeout_s=1800.0, failed=RunnerError, hint="set engine in the runner's settings")
_PATHS = "import json, sysconfig; print(json.dumps(sorted({sysconfig.get_path('purelib'), sysconfig.get_path('platlib')})))"


def build_arm(source: Path, target: Path, engine: Path) -> Path:
    """Make an environment at `target` over that of `engine`, install the project in `source` into it, return its Python.

    Raise InputError for a source that is no project, RunnerError with the last line of what failed.
    """
    if not (source / "pyproject.toml").is_file() and not (source / "setup.py").is_file():
        raise InputError(f"{source}: holds no pyproject.toml; give the folder of the package, for SGLang its python/")
    if target.exists():
        raise InputError(f"{target}: is there already; an arm is built new")
    _PYTHON.call([str(engine), "-m", "venv", "--without-pip", str(target)], name="venv")
    python = target / "bin" / "python"
    paths = json.loads(_PYTHON.call([str(engine), "-c", _PATHS], name="engine").text)
    (own,) = json.loads(_PYTHON.call([str(python), "-c", _PATHS], name="arm").text)[:1]
    # Of two packages of one name the arm's own folder wins, as it comes first on the path.
    (Path(own) / "engine.pth").write_text("\n".join(paths) + "\n", encoding="utf-8")
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed", "--disable-pip-version-check"]
    _PYTHON.call([str(python), "-m", "pip", "install", "--quiet", *options, str(source)], name="pip")
    return python
