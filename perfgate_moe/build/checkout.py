"""Build what a pull request changes: an SGLang checkout's Triton kernels, and its sgl-kernel wheel if its sources changed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Self, cast

from perfgate_moe.build.build import FENCES, CompiledKernel, judge
from perfgate_moe.build.recipes import KernelRecipe
from perfgate_moe.build.sass import MachineCode
from perfgate_moe.build.site import ROOT
from perfgate_moe.errors import BuildError, MoeInputError
from perfgate_moe.exam.cases import LayerCase

KERNEL_FOLDER = "sgl-kernel"
TRITON_TIMEOUT_S, WHEEL_TIMEOUT_S = 600, 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """A working tree of SGLang, and the Python that runs it."""

    folder: Path
    python: str

    def build_environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """The environment of its processes: `more` added, its own package found first, then this one."""
        own, ours = str(self.folder / "python"), str(ROOT)
        path = os.pathsep.join(filter(None, (own, ours, os.environ.get("PYTHONPATH", ""))))
        return {**os.environ, **more, "PYTHONPATH": path}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A built wheel, how long it took, and whether ccache stood before the compilers."""

    path: Path
    seconds: float
    has_ccache: bool


def open_checkout(folder: Path, python: str | None, option: str = "--checkout") -> Checkout:
    """The checkout in `folder`; its own .venv's Python unless another is named. MoeInputError, naming `option`, without one."""
    program = option.replace("checkout", "python")
    if not (folder / "python" / "sglang").is_dir():
        raise MoeInputError(f"{option} {folder}: no python/sglang in it; name the root of an SGLang working tree")
    own = folder / ".venv" / "bin" / "python"
    chosen = python or (str(own) if own.exists() else None)
    if chosen is None:
        raise MoeInputError(f"{option} {folder}: no .venv in it; name the Python that runs it with {program}")
    if shutil.which(chosen) is None:
        raise MoeInputError(f"{program} {chosen}: no such program")
    return Checkout(folder=folder.resolve(), python=chosen)


def build_triton(
    checkout: Checkout, layers: Sequence[tuple[str, LayerCase]], arch: int, env: Mapping[str, str] = MappingProxyType({})
) -> Iterator[CompiledKernel]:
    """Compile the checkout's MoE kernel for these layers, in its own environment and Triton's cache, and judge each.

    `env` adds to the environment. BuildError, after the kernels that were compiled, when one was not. Fences round relaxed
    additions are no reason to refuse here: SGLang's fused sum has them.
    """
    with start_triton(checkout, layers, arch, env) as process:
        yield from read_triton(checkout, process, arch)


def start_triton(
    checkout: Checkout, layers: Sequence[tuple[str, LayerCase]], arch: int, env: Mapping[str, str]
) -> AbstractContextManager[subprocess.Popen[str]]:
    """The process that compiles as `build_triton` says, while its context is open: several may work at once."""
    request = {"arch": arch, "layers": [_describe(name, case) for name, case in layers]}
    command = [checkout.python, "-W", "ignore", "-m", "perfgate_moe.build.sglang_launches"]
    return start_bounded(command, env=checkout.build_environment(env), text=json.dumps(request))


def read_triton(checkout: Checkout, process: subprocess.Popen[str], arch: int) -> Iterator[CompiledKernel]:
    """Wait for such a process, and judge each kernel; BuildError, after the kernels that were compiled, when one was not."""
    done = wait_bounded(process, TRITON_TIMEOUT_S)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            try:
                built = _read_built(json.loads(line), arch)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise BuildError(f"{checkout.folder}: its environment answered something else than kernels ({error})") from None
            yield built
    if done.returncode:
        raise BuildError(f"{checkout.folder}: its MoE kernel was not compiled: {read_last_line(done.stderr)}")


def start_module(python: str, module: str, env: Mapping[str, str], errors: IO[str]) -> subprocess.Popen[str]:
    """Start a module that answers lines, in a process group of its own; `errors` takes its standard error."""
    return subprocess.Popen(
        [python, "-W", "ignore", "-m", module],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def end_group(process: subprocess.Popen[str]) -> None:
    """End a process that leads its own group, and its children, which may hold its output open."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class HangWatch:
    """Kill a process that takes longer than it may, with its children. `verdict` says so."""

    def __init__(self, process: subprocess.Popen[str], limit_s: float) -> None:
        self._process = process
        self._timer: threading.Timer | None = None
        self.limit_s = limit_s
        self.verdict = ""

    def __enter__(self) -> Self:
        self.restart(self.limit_s)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def restart(self, limit_s: float) -> None:
        """Give it so many seconds from now on."""
        self._stop()
        self.limit_s = limit_s
        self._timer = threading.Timer(limit_s, self._end)
        self._timer.daemon = True
        self._timer.start()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _end(self) -> None:
        self.verdict = f"no answer within {self.limit_s:.0f} s: it hangs"
        end_group(self._process)


def run_bounded(
    command: list[str], timeout_s: float, *, env: Mapping[str, str] | None = None, text: str = "", log: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program that is not trusted to its end, with its output in `log` if that is given.

    BuildError when it takes longer. Its children end with it, even those that hold its output open.
    """
    with start_bounded(command, env=env, text=text, log=log) as process:
        return wait_bounded(process, timeout_s)


@contextlib.contextmanager
def start_bounded(
    command: list[str], *, env: Mapping[str, str] | None = None, text: str = "", log: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A program that is not trusted, with `text` to read; it ends with the context, and so do its children."""
    with contextlib.ExitStack() as stack:
        asked = stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8"))
        asked.write(text)
        asked.seek(0)
        output = stack.enter_context(log.open("wb")) if log else subprocess.PIPE
        process = stack.enter_context(
            subprocess.Popen(
                command,
                env=env,
                stdin=asked,
                stdout=output,
                stderr=subprocess.STDOUT if log else subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        )
        stack.callback(end_group, process)
        yield process


def wait_bounded(process: subprocess.Popen[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """What such a program wrote, once it has ended; BuildError when it takes longer."""
    command = cast("list[str]", process.args)
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise BuildError(f"{command[0]}: not done within {timeout_s:.0f} s: {' '.join(command[1:])[:200]}") from None
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _describe(name: str, case: LayerCase) -> dict[str, str | int | bool]:
    return {"name": name, "E": case.E, "k": case.k, "H": case.H, "I": case.I, "bias": case.bias != "off"}


def _read_built(found: dict[str, object], arch: int) -> CompiledKernel:
    usage = found["machine"]
    if not isinstance(usage, dict):
        raise BuildError("the checkout's environment answered something else than kernels")
    machine = MachineCode(
        registers=usage["registers"],
        stack_bytes=usage["stack_bytes"],
        local_bytes=usage["local_bytes"],
        opcodes=Counter(usage["opcodes"]),
    )
    rows, shared = int(str(found["rows"])), int(str(found["shared_bytes"]))
    recipe = KernelRecipe(name=str(found["name"]), kernel=None, types={}, constants={}, rows=rows, is_product=True)
    return CompiledKernel(
        recipe=recipe.name,
        arch=arch,
        seconds=float(str(found["seconds"])),
        is_cached=bool(found["is_cached"]),
        shared_bytes=shared,
        machine=machine,
        problems=tuple(judge(recipe, arch, shared, machine)),
    )


def count_fences(built: CompiledKernel) -> int:
    """Instructions that make a thread wait for the whole device."""
    return built.machine.count(*FENCES)


def is_kernel_changed(checkout: Checkout, base: str) -> bool:
    """Whether sgl-kernel differs from `base`, uncommitted and new files included. MoeInputError where git cannot say."""
    changed = _git(checkout, "diff", "--name-only", base, "--", KERNEL_FOLDER)
    untracked = _git(checkout, "ls-files", "--others", "--exclude-standard", "--", KERNEL_FOLDER)
    return bool(changed or untracked)


def are_kernels_equal(one: Path, other: Path) -> bool:
    """Whether two working trees have the same sgl-kernel, or none of them has one. MoeInputError where git cannot say."""
    folders = [tree / KERNEL_FOLDER for tree in (one, other)]
    if not all(folder.is_dir() for folder in folders):
        return not any(folder.is_dir() for folder in folders)
    argv = ["git", "diff", "--no-index", "--quiet", *map(str, folders)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode not in (0, 1):
        raise MoeInputError(f"{folders[1]}: git diff: {read_last_line(done.stderr)}")
    return done.returncode == 0


def install_wheel(checkout: Checkout, wheel: Wheel) -> None:
    """Put a wheel into the checkout's environment, above what its engine brings. BuildError with pip's last line."""
    options = ["--quiet", "--no-deps", "--no-index", "--ignore-installed", "--disable-pip-version-check"]
    argv = [checkout.python, "-m", "pip", "install", *options, str(wheel.path)]
    done = run_bounded(argv, WHEEL_TIMEOUT_S)
    if done.returncode:
        raise BuildError(f"{wheel.path}: not installed: {read_last_line(done.stderr)}")


def _git(checkout: Checkout, *arguments: str) -> str:
    argv = ["git", "-C", str(checkout.folder), *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise MoeInputError(f"--checkout {checkout.folder}: git {arguments[0]}: {read_last_line(done.stderr)}")
    return done.stdout.strip()


def build_wheel(checkout: Checkout, target: Path) -> Wheel:
    """Build the sgl-kernel wheel into `target`, through ccache where it is installed. BuildError with the log's last line."""
    target.mkdir(parents=True, exist_ok=True)
    log = target / "sgl-kernel.log"
    ccache = shutil.which("ccache")
    launchers = {f"CMAKE_{language}_COMPILER_LAUNCHER": ccache for language in ("C", "CXX", "CUDA")} if ccache else {}
    argv = [checkout.python, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(target)]
    begun = time.perf_counter()
    command = [*argv, str(checkout.folder / KERNEL_FOLDER)]
    done = run_bounded(command, WHEEL_TIMEOUT_S, env={**os.environ, **launchers}, log=log)
    if done.returncode:
        last = read_last_line(log.read_text(encoding="utf-8", errors="replace"))
        raise BuildError(f"{checkout.folder / KERNEL_FOLDER}: no wheel: {last} (all of it in {log})")
    newest = max(target.glob("*.whl"), key=lambda path: path.stat().st_mtime)
    return Wheel(path=newest, seconds=time.perf_counter() - begun, has_ccache=ccache is not None)


def read_last_line(text: str) -> str:
    """The last line of what a program wrote, in words where it wrote none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
