"""Two lock files as a line of places, and what installs the first packages of it."""

import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from perfgate.bisection.guard import Guard
from perfgate.bisection.locks import list_bumps, read_lock
from perfgate.bisection.packages import PackageStore, read_bumps, require_base
from perfgate.errors import InputError, RunnerError

LOCK = """# made by pip-compile
--index-url https://example.org/simple
numpy==2.3.5 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via torch
Typing_Extensions==4.15.0  # via pydantic
uvicorn[standard]==0.30.1 ; python_version >= "3.11"
"""


@pytest.fixture
def write(tmp_path):
    def write_lock(name, text):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write_lock


def make_bumps(write, base, candidate):
    return list_bumps(read_lock(write("base.lock", base)), read_lock(write("candidate.lock", candidate)))


def test_read_lock__pins_by_normalised_name_with_their_hashes(write):
    pins = read_lock(write("base.lock", LOCK)).pins

    assert {name: pin.version for name, pin in pins.items()} == {
        "numpy": "2.3.5",
        "typing-extensions": "4.15.0",
        "uvicorn": "0.30.1",
    }
    assert pins["numpy"].line.split() == ["numpy==2.3.5", "--hash=sha256:aa", "--hash=sha256:bb"]
    assert pins["uvicorn"].line == 'uvicorn[standard]==0.30.1 ; python_version >= "3.11"'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("numpy==2.3.5\nscipy>=1.10\n", r"base\.lock:2: 'scipy>=1\.10' pins no version; write NAME==VERSION"),
        ("numpy==2.3.5 \\\n  --hash=sha256:aa\ntorch @ file:///x.whl\n", r"base\.lock:3: 'torch @ "),
        ("numpy==2.3.5\nNumPy==2.3.4\n", r"base\.lock:2: numpy stands in it twice"),
        ("# nothing\n", r"base\.lock: pins no package"),
    ],
)
def test_read_lock__what_pins_no_one_version(write, text, message):
    with pytest.raises(InputError, match=message):
        read_lock(write("base.lock", text))


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_read_lock__a_file_that_cannot_be_read(tmp_path, content):
    if content:
        (tmp_path / "base.lock").write_bytes(content)

    with pytest.raises(InputError, match=r"base\.lock: cannot be read"):
        read_lock(tmp_path / "base.lock")


def test_list_bumps__what_is_another_version_or_new_and_not_what_is_gone(write):
    bumps = make_bumps(
        write, "torch==2.13.0\nnumpy==2.3.5\nold==1\nsame==3\n", "numpy==2.4.6\nsame==3\ntorch==2.14.1\nnew==1\n"
    )

    assert [bump.words for bump in bumps] == ["new absent -> 1", "numpy 2.3.5 -> 2.4.6", "torch 2.13.0 -> 2.14.1"]


def test_read_bumps__equal_locks(write):
    with pytest.raises(InputError, match="pin the same versions"):
        read_bumps(make_bumps(write, "numpy==2.3.5\n", "NumPy==2.3.5\n"))


def test_read_bumps__each_place_has_one_package_more_and_hashes_of_its_own(write):
    line = read_bumps(make_bumps(write, "a==1\nb==1\nc==1\n", "a==2\nb==2\nc==2\n"))

    assert [commit.subject for commit in line.commits] == ["a 1 -> 2", "b 1 -> 2", "c 1 -> 2"]
    assert line.good.subject == "the base's packages"
    assert len({line.good.sha, *(commit.sha for commit in line.commits)}) == 4


def test_read_bumps__another_base_is_another_place(write):
    one, other = (read_bumps(make_bumps(write, f"a=={base}\n", "a==3\n")) for base in (1, 2))

    assert one.commits[0].sha != other.commits[0].sha


def test_require_base__the_versions_that_the_python_has(write):
    here = version("click")

    require_base(sys.executable, make_bumps(write, f"click=={here}\n", "click==99\n"))


@pytest.mark.parametrize(
    ("base", "candidate", "message"),
    [
        ("click==0.1\n", "click==99\n", "has click [0-9.]+, BASE says 0.1"),
        ("nowhere-at-all==1\n", "nowhere-at-all==2\n", "has nowhere-at-all not, BASE says 1"),
        ("other==1\n", "other==1\nclick==99\n", "BASE says nothing of it"),
    ],
)
def test_require_base__another_python_than_the_base_was_installed_into(write, base, candidate, message):
    with pytest.raises(InputError, match=message):
        require_base(sys.executable, make_bumps(write, base, candidate))


def test_package_store__a_place_that_was_not_made_whole_is_not_there(write, tmp_path):
    bumps = make_bumps(write, "a==1\n", "a==2\n")
    sha = read_bumps(bumps).commits[0].sha
    store = PackageStore(engine=tmp_path / "python", folder=tmp_path, guard=Guard(reaper=None), bumps=bumps)
    store.find_python(sha).parent.mkdir(parents=True)
    store.find_python(sha).touch()

    assert not store.has(sha)
    (store.find_checkout(sha) / "whole").touch()
    assert store.has(sha)


def test_package_store__an_environment_that_cannot_be_made_is_no_fault_of_its_packages(write, tmp_path):
    bumps = make_bumps(write, "a==1\n", "a==2\n")
    store = PackageStore(engine=Path("/bin/false"), folder=tmp_path, guard=Guard(reaper=None), bumps=bumps)

    with pytest.raises(RunnerError, match="venv: failed"):
        store.make(read_bumps(bumps).commits[0].sha)


def test_package_store__a_command_gets_its_python(tmp_path):
    store = PackageStore(engine=tmp_path / "python", folder=tmp_path, guard=Guard(reaper=None), bumps=())

    words = store.fill("{python} 'a program.py'", "0" * 40)

    assert words == [str(tmp_path / "environments" / ("0" * 12) / "bin" / "python"), "a program.py"]
