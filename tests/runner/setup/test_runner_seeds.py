"""Compile caches as read-only seeds: a cached kernel is code, and code from a job must not reach another."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from perfgate.cli import main
from perfgate.errors import RunnerError
from perfgate.runner.setup.seeds import find_newest, lend, make_empty, prune, renew, seed, verify

KEY = "sm90-580.159-a1b2"


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "warm"
    (folder / "ab").mkdir(parents=True)
    (folder / "ab" / "kernel.cubin").write_bytes(b"code")
    (folder / "index.json").write_text("{}")
    return folder


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def make_writable(path):
    path.parent.chmod(0o755)
    if path.exists():
        path.chmod(0o644)
    return path


def test_seed__is_read_only_and_whole(source, cache):
    folder = seed(source, cache, KEY)

    assert verify(cache, KEY) == 2
    assert {oct(path.stat().st_mode & 0o222) for path in folder.rglob("*")} == {"0o0"}


def test_lend__is_a_copy_that_no_other_job_sees(source, cache, tmp_path):
    seed(source, cache, KEY)
    lend(cache, KEY, tmp_path / "job")

    (tmp_path / "job" / "ab" / "kernel.cubin").write_bytes(b"evil")
    (tmp_path / "job" / "new").write_bytes(b"evil")

    assert verify(cache, KEY) == 2
    assert (cache / KEY / "files" / "ab" / "kernel.cubin").read_bytes() == b"code"


def test_lend__a_full_disk_leaves_no_part_of_a_copy(source, cache, tmp_path):
    seed(source, cache, KEY)
    full = (
        "import resource, sys; from pathlib import Path; from perfgate.runner.setup.seeds import lend\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1)); lend(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", full, cache, KEY, tmp_path / "job"], capture_output=True, text=True, check=False
    )

    assert f"RunnerError: {tmp_path}/job: cannot be written ([Errno 27] File too large" in done.stderr
    assert not (tmp_path / "job").exists()


def test_renew__the_newest_is_found(source, cache):
    assert find_newest(cache, KEY) is None
    for now in (1e9, 2e9, 1.5e9):
        renew(source, cache, KEY, now)
    seed(source, cache, f"{KEY}-by-hand")
    seed(source, cache, f"{KEY}-other-20990101000000")

    assert find_newest(cache, KEY) == f"{KEY}-20330518033320"


def test_make_empty__never_where_something_is(tmp_path):
    make_empty(tmp_path / "new" / "base")

    with pytest.raises(RunnerError, match="a job's cache begins new"):
        make_empty(tmp_path / "new" / "base")


TRITON = """
import sys
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
sys.path.insert(0, sys.argv[1])
from probe import add_one
made = triton.compile(ASTSource(add_one, {"x": "*fp32"}, {}), target=GPUTarget("cuda", 90, 32))
assert len(made.asm["cubin"]) > 1000
"""
KERNEL = """
import triton
import triton.language as tl
@triton.jit
def add_one(x):
    at = x + tl.program_id(0)
    tl.store(at, tl.load(at) + 1)
"""


def compile_kernel(tmp_path, folder):
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder)}
    subprocess.run([sys.executable, "-c", TRITON, str(tmp_path)], env=environment, check=True, capture_output=True)
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_lend__triton_finds_its_kernels_in_the_copy(tmp_path, cache):
    """Its groups name absolute paths: a plain copy of a cache is compiled anew, or read from where it was made."""
    pytest.importorskip("triton", reason="compiles a kernel ahead of time, which needs no GPU")
    (tmp_path / "probe.py").write_text(KERNEL)
    compile_kernel(tmp_path, tmp_path / "first")
    seed(tmp_path / "first", cache, KEY)
    shutil.rmtree(tmp_path / "first")
    lend(cache, KEY, tmp_path / "copy")
    lent = {str(path.relative_to(tmp_path / "copy")): path.stat().st_mtime_ns for path in (tmp_path / "copy").rglob("*.*")}

    assert compile_kernel(tmp_path, tmp_path / "copy") == lent


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"child_paths": 3}', '{"child_paths": null}', "\x00", "[" * 100_000])
def test_lend__a_group_that_is_none(source, cache, tmp_path, content):
    (source / "__grp__x.json").write_text(content)
    seed(source, cache, KEY)
    lend(cache, KEY, tmp_path / "job")

    assert (tmp_path / "job" / "__grp__x.json").read_text() == content


def test_lend__a_group_never_leads_out_of_the_copy(source, cache, tmp_path):
    (source / "ab" / "__grp__x.json").write_text('{"child_paths": {"x.cubin": "/home/mallory/../x.cubin"}}')
    seed(source, cache, KEY)
    lend(cache, KEY, tmp_path / "job")

    group = json.loads((tmp_path / "job" / "ab" / "__grp__x.json").read_text())
    assert group == {"child_paths": {"x.cubin": str(tmp_path / "job" / "ab" / "x.cubin")}}


def test_attack__a_kernel_is_replaced_in_the_seed(source, cache, tmp_path):
    folder = seed(source, cache, KEY)
    make_writable(folder / "files" / "ab" / "kernel.cubin").write_bytes(b"evil")

    with pytest.raises(RunnerError, match=r"ab/kernel\.cubin was changed; delete this folder"):
        lend(cache, KEY, tmp_path / "job")
    assert not (tmp_path / "job").exists()


def test_attack__a_file_is_added_to_the_seed(source, cache):
    folder = seed(source, cache, KEY)
    make_writable(folder / "files" / "extra").write_bytes(b"evil")

    with pytest.raises(RunnerError, match="extra was added"):
        verify(cache, KEY)


def test_verify__a_file_is_gone(source, cache):
    folder = seed(source, cache, KEY)
    make_writable(folder / "files" / "index.json").unlink()

    with pytest.raises(RunnerError, match=r"index\.json is missing"):
        verify(cache, KEY)


@pytest.mark.parametrize("kind", ["link", "folder link", "pipe"])
def test_attack__a_seed_that_leads_out_of_itself(source, cache, kind):
    if kind == "pipe":
        os.mkfifo(source / "x")
    else:
        (source / "x").symlink_to("/etc/passwd" if kind == "link" else "/etc")

    with pytest.raises(RunnerError, match="is a link or no regular file"):
        seed(source, cache, KEY)
    assert list(cache.iterdir()) == []


def test_attack__a_link_put_into_a_seed(source, cache):
    folder = seed(source, cache, KEY)
    make_writable(folder / "files" / "index.json").unlink()
    (folder / "files" / "index.json").symlink_to("/etc/passwd")

    with pytest.raises(RunnerError, match="is a link"):
        verify(cache, KEY)


@pytest.mark.parametrize("key", ["..", "../x", "/etc", "a/b", "", "a..b", ".x", "x" * 200, "a b", "x."])
def test_attack__a_key_that_is_a_path(source, cache, key):
    for call in (lambda: seed(source, cache, key), lambda: verify(cache, key), lambda: lend(cache, key, source)):
        with pytest.raises(RunnerError, match="--key"):
            call()


def test_seed__is_written_once(source, cache):
    seed(source, cache, KEY)

    with pytest.raises(RunnerError, match="is there already"):
        seed(source, cache, KEY)


def test_prune__keeps_the_newest_and_clears_what_broke(source, cache, monkeypatch):
    for number in range(4):
        monkeypatch.setattr("time.time", lambda number=number: 1000 + number)
        seed(source, cache, f"seed-{number}")
    (cache / ".broken.part").mkdir()
    # What a power cut leaves of a file that was just written.
    make_writable(cache / "seed-3" / "manifest.json").write_text("")

    assert prune(cache, keep=2) == [".broken.part", "seed-0", "seed-3"]
    assert sorted(path.name for path in cache.iterdir()) == ["seed-1", "seed-2"]
    assert prune(cache / "none", keep=2) == []


@pytest.mark.parametrize("manifest", ["", "{}", '{"files": 3}'])
def test_verify__a_broken_manifest(source, cache, manifest):
    make_writable(seed(source, cache, KEY) / "manifest.json").write_text(manifest)

    with pytest.raises(RunnerError, match="cannot be read; prune this seed"):
        verify(cache, KEY)


def test_cli__from_seed_to_prune(source, cache, tmp_path, monkeypatch, capsys):
    (tmp_path / "r.toml").write_text(f'repositories = ["o/r"]\ncache = "{cache}"\n')
    monkeypatch.setenv("PERFGATE_RUNNER_CONFIG", str(tmp_path / "r.toml"))

    assert main(["runner", "cache", "seed", str(source), "--key", KEY]) == 0
    assert main(["runner", "cache", "verify", "--key", KEY]) == 0
    assert main(["runner", "cache", "lend", str(tmp_path / "job"), "--key", KEY]) == 0
    assert main(["runner", "cache", "prune", "--keep", "0"]) == 0
    assert main(["runner", "cache", "verify", "--key", KEY]) == 3
    assert "no such seed" in capsys.readouterr().err
