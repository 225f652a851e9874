"""What an arm may be: a release, a working tree, an installation, a Python; and what is none of these."""

import sys

import pytest

from perfgate.errors import EngineError, InputError
from perfgate.resolution.arms import fetch_release, find_source
from perfgate.resolution.report import tell_version
from perfgate.resolution.table import LAST


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "state"))


def make_tree(folder, requires='["torch==2.13.0"]'):
    (folder / "python" / "sglang" / "srt").mkdir(parents=True)
    (folder / "python" / "pyproject.toml").write_text(f"[project]\ndependencies = {requires}\n")
    return folder


def find(given, **extra):
    return find_source(str(given), sys.executable, option="--base", **extra)


def test_find_source__a_working_tree_says_what_it_requires(tmp_path):
    source = find(make_tree(tmp_path / "sglang"))

    assert (source.name, source.folder, source.requires) == ("sglang", tmp_path / "sglang" / "python", ("torch==2.13.0",))
    assert source.is_tree


def test_find_source__a_release_that_is_there_is_not_fetched_again(tmp_path):
    folder = tmp_path / "state" / "resolve" / "sglang-0.5.23"
    folder.mkdir(parents=True)

    assert find("0.5.23").folder == folder


def test_find_source__a_python():
    assert find(sys.executable).folder is None


def test_find_source__a_python_in_this_folder(tmp_path, monkeypatch):
    """An arm that is driven runs in a folder of its own, where a relative path names nothing."""
    make_tree(tmp_path / "tree")
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)

    assert find("./python").python == str(tmp_path / "python")
    assert find_source("tree", "./python", option="--base").python == str(tmp_path / "python")


@pytest.mark.parametrize("given", ["0.5", "0.5.x", "nowhere", ""])
def test_find_source__what_is_none_of_these(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("perfgate.resolution.arms._PIP", _RefusingPip())

    with pytest.raises((InputError, EngineError), match=r"--base|no release of that name"):
        find(given)


class _RefusingPip:
    def call(self, argv, *, name):
        raise EngineError(f"{name}: no release of that name ({argv[0]})")


def test_fetch_release__one_that_cannot_be_fetched_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("perfgate.resolution.arms._PIP", _RefusingPip())

    with pytest.raises(EngineError, match=r"sglang==9\.9\.9"):
        fetch_release("9.9.9", sys.executable)

    assert list((tmp_path / "state" / "resolve").iterdir()) == []


def test_fetch_release__where_no_state_can_be_kept(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "file"))

    with pytest.raises(
        InputError, match=r"PERFGATE_STATE .*file/resolve: cannot be written \(Not a directory\); choose another place"
    ):
        fetch_release("9.9.9", sys.executable)


def test_find_source__a_folder_without_sglang(tmp_path):
    with pytest.raises(InputError, match=r"holds neither sglang/srt nor python/sglang/srt"):
        find(tmp_path)


@pytest.mark.parametrize("text", ["[project]\n", "[project", "[project]\ndependencies = 3\n"])
def test_find_source__requirements_that_cannot_be_read(tmp_path, text):
    tree = make_tree(tmp_path / "sglang")
    (tree / "python" / "pyproject.toml").write_text(text)

    with pytest.raises(InputError, match=r"project\.dependencies cannot be read"):
        find(tree)


def test_attack__requirements_nested_too_deeply(tmp_path):
    """A change's own file: it ended as a defect of perfgate."""
    tree = make_tree(tmp_path / "sglang")
    (tree / "python" / "pyproject.toml").write_text(f"a = {'[' * 20_000}{']' * 20_000}")

    with pytest.raises(InputError, match=r"project\.dependencies cannot be read"):
        find(tree)


def test_find_source__a_triton_that_is_no_version():
    with pytest.raises(InputError, match="--base-triton newest: is no version"):
        find(sys.executable, triton="newest")


@pytest.mark.parametrize(
    ("version", "count"), [("0.5.13", 0), (LAST, 0), (f"{LAST}.dev5", 1), ("0.5.24", 1), ("0.5.12", 1), ("", 0)]
)
def test_tell_version__one_line_outside_of_what_was_tried(version, count):
    assert len(tell_version("base", version)) == count
