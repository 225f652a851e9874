"""Build one arm: an environment that runs a checkout's code over the machine's engine.

Dependencies come from the engine's environment, so that both arms share every wheel and neither downloads one. Building runs
the checkout's code: it happens as the job's user, and both arms are built the same way.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from perfgate.errors import InputError, RunnerError

TIMEOUT_S = 1800.0
_PATHS = "import json, sysconfig; print(json.dumps(sorted({sysconfig.get_path('purelib'), sysconfig.get_path('platlib')})))"


def build_arm(source: Path, target: Path, engine: Path) -> Path:
    """Make an environment at `target` over that of `engine`, install the project in `source` into it, return its Python.

    Raise InputError for a source that is no project, RunnerError with the last line of what failed.
    """
    if not (source / "pyproject.toml").is_file() and not (source / "setup.py").is_file():
        raise InputError(f"{source}: holds no pyproject.toml; give the folder of the package, for SGLang its python/")
    if target.exists():
        raise InputError(f"{target}: is there already; an arm is built new")
    _run([str(engine), "-m", "venv", "--without-pip", str(target)], "venv")
    python = target / "bin" / "python"
    paths = json.loads(_run([str(engine), "-c", _PATHS], "engine"))
    (own,) = json.loads(_run([str(python), "-c", _PATHS], "arm"))[:1]
    # Of two packages of one name the arm's own folder wins, as it comes first on the path.
    (Path(own) / "engine.pth").write_text("\n".join(paths) + "\n", encoding="utf-8")
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed", "--disable-pip-version-check"]
    _run([str(python), "-m", "pip", "install", "--quiet", *options, str(source)], "pip")
    return python


def _run(command: list[str], what: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except OSError as error:
        raise InputError(f"{command[0]}: cannot be run ({error.strerror}); set engine in the runner's settings") from None
    except subprocess.TimeoutExpired:
        raise RunnerError(f"{what}: not done after {TIMEOUT_S:.0f} s") from None
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no message"])[-1]
        raise RunnerError(f"{what}: failed ({last[:300]})") from None
    return done.stdout
