"""Compile caches as read-only seeds: a cached kernel is code, and code from a job must not reach another."""

from __future__ import annotations

import os

import pytest

from perfgate.cli import main
from perfgate.errors import RunnerError
from perfgate.runner.seeds import lend, prune, seed, verify

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


def test_lend__is_a_copy_that_nobody_else_sees(source, cache, tmp_path):
    seed(source, cache, KEY)
    lend(cache, KEY, tmp_path / "job")

    (tmp_path / "job" / "ab" / "kernel.cubin").write_bytes(b"evil")
    (tmp_path / "job" / "new").write_bytes(b"evil")

    assert verify(cache, KEY) == 2
    assert (cache / KEY / "files" / "ab" / "kernel.cubin").read_bytes() == b"code"


def test_attack__a_kernel_is_replaced_in_the_seed(source, cache, tmp_path):
    folder = seed(source, cache, KEY)
    make_writable(folder / "files" / "ab" / "kernel.cubin").write_bytes(b"evil")

    with pytest.raises(RunnerError, match=r"ab/kernel\.cubin was changed; prune this seed"):
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
    for deed in (lambda: seed(source, cache, key), lambda: verify(cache, key), lambda: lend(cache, key, source)):
        with pytest.raises(RunnerError, match="--key"):
            deed()


def test_seed__is_written_once(source, cache):
    seed(source, cache, KEY)

    with pytest.raises(RunnerError, match="is there already"):
        seed(source, cache, KEY)


def test_prune__keeps_the_newest_and_clears_what_broke(source, cache, monkeypatch):
    for number in range(4):
        monkeypatch.setattr("time.time", lambda number=number: 1000 + number)
        seed(source, cache, f"seed-{number}")
    (cache / ".broken.part").mkdir()

    assert prune(cache, keep=2) == [".broken.part", "seed-0", "seed-1"]
    assert sorted(path.name for path in cache.iterdir()) == ["seed-2", "seed-3"]
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
