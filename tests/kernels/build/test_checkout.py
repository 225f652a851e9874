"""Building an SGLang working tree: its Triton kernel in its own environment, its wheel only when its sources changed."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("triton", reason="the kernels need triton: install the extra cpu-engine or gpu")

from perfgate.cli.moe.kernels import command
from perfgate.errors import InputError
from perfgate_moe.build.checkout import Checkout, build_triton, build_wheel, count_fences, is_kernel_changed, open_checkout
from perfgate_moe.errors import BuildError, MoeInputError
from perfgate_moe.exam.cases import LayerCase

# Found and not imported: that takes five seconds of each worker.
SGLANG = find_spec("sglang")
pytestmark = pytest.mark.skipif(SGLANG is None, reason="there is no SGLang to build: run `perfgate engine install`")

LAYER = ("small", LayerCase(E=8, k=4, H=128, I=128, dtype="bfloat16"))
SETUP = """
import os, setuptools
open("launcher.py", "w").write(f"FOUND = {os.environ.get('CMAKE_CUDA_COMPILER_LAUNCHER')!r}")
setuptools.setup(name="sgl-kernel", version="0.1", py_modules=["launcher"])
"""


def git(folder, *arguments):
    settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    subprocess.run(["/usr/bin/env", "git", *settings, "-C", str(folder), *arguments], check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path):
    """A git working tree with the installed SGLang's sources and a small sgl-kernel."""
    folder = tmp_path / "sglang"
    (folder / "python").mkdir(parents=True)
    (folder / "python" / "sglang").symlink_to(Path(SGLANG.origin).parent)
    (folder / "sgl-kernel").mkdir()
    (folder / "sgl-kernel" / "setup.py").write_text(SETUP)
    git(folder, "init")
    git(folder, "add", "sgl-kernel")
    git(folder, "commit", "-m", "base")
    return Checkout(folder=folder, python=sys.executable)


def test_build_triton__compiles_what_sglang_launches(tree):
    built = {each.recipe: each for each in build_triton(tree, [LAYER], 90)}

    assert [name.split("/")[1] for name in built] == ["gate_up", "down", "down-fused-sum"] * 2
    assert all(each.problems == () for each in built.values() if each.recipe.endswith("M=16"))
    assert built["sglang/gate_up/small/M=1024"].machine.count("HGMMA")
    assert count_fences(built["sglang/down-fused-sum/small/M=1024"]) > 0
    assert count_fences(built["sglang/down/small/M=1024"]) == 0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda _: None, False),
        (lambda folder: (folder / "README.md").write_text("new"), False),
        (lambda folder: (folder / "sgl-kernel" / "setup.py").write_text("changed"), True),
        (lambda folder: (folder / "sgl-kernel" / "moe.cu").write_text("new"), True),
    ],
)
def test_is_kernel_changed__looks_at_its_folder_alone(tree, change, expected):
    change(tree.folder)

    assert is_kernel_changed(tree, "HEAD") is expected


def test_is_kernel_changed__unknown_commit(tree):
    with pytest.raises(MoeInputError, match="git diff: "):
        is_kernel_changed(tree, "no-such-ref")


def test_build_wheel__puts_ccache_before_the_compilers(tree, tmp_path, monkeypatch):
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "ccache").write_text('#!/bin/sh\nexec "$@"\n')
    (tools / "ccache").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")

    wheel = build_wheel(tree, tmp_path / "wheels")

    assert wheel.path.name.startswith("sgl_kernel-0.1-")
    assert wheel.has_ccache
    assert str(tools / "ccache") in (tree.folder / "sgl-kernel" / "launcher.py").read_text()


def test_build_wheel__failure_names_the_log(tree, tmp_path):
    (tree.folder / "sgl-kernel" / "setup.py").write_text("raise SystemExit('no CUDA toolkit')")

    with pytest.raises(BuildError, match=r"sgl-kernel: no wheel: .*all of it in .*sgl-kernel\.log"):
        build_wheel(tree, tmp_path / "wheels")

    assert "no CUDA toolkit" in (tmp_path / "wheels" / "sgl-kernel.log").read_text()


def test_open_checkout__needs_a_tree_and_a_python(tree, tmp_path):
    with pytest.raises(MoeInputError, match="no python/sglang in it"):
        open_checkout(tmp_path, None)
    with pytest.raises(MoeInputError, match=r"no \.venv in it"):
        open_checkout(tree.folder, None)
    with pytest.raises(MoeInputError, match="no such program"):
        open_checkout(tree.folder, "no-such-python")


@pytest.mark.parametrize("arguments", [["--python", "python3"], ["--base", "HEAD"], ["--checkout", ".", "--only", "sum"]])
def test_build_command__refuses_options_that_do_not_go_together(arguments):
    done = CliRunner().invoke(command, ["build", *arguments], standalone_mode=False)

    assert isinstance(done.exception, InputError)
