"""Lock files of working trees: which one counts, what it pins, and what two of them differ by."""

import pytest

from perfgate.bisection.locks import find_lock, list_bumps, list_pins, read_lock, read_pair
from perfgate.errors import InputError

NAMES = ("python/requirements.lock", "python/pyproject.toml")
PROJECT = """
[project]
name = "engine"
dependencies = [
  "aiohttp",
  "flashinfer_python[cu13]==0.6.12",
  "torch == 2.11.0",
  "torchcodec==0.11.1 ; sys_platform != 'linux'",
  "kernels>=0.14.1,<0.15",
]
[project.optional-dependencies]
test = ["pytest==9"]
"""


def make_tree(folder, **files):
    (folder / "python").mkdir(parents=True)
    for name, text in files.items():
        (folder / "python" / name.replace("_", ".")).write_text(text)
    return folder


def test_read_lock__of_a_project(tmp_path):
    lock = read_lock(make_tree(tmp_path / "tree", pyproject_toml=PROJECT) / "python/pyproject.toml")

    found = {name: (pin.version, pin.is_conditional) for name, pin in lock.pins.items()}
    assert found == {"flashinfer-python": ("0.6.12", False), "torch": ("2.11.0", False), "torchcodec": ("0.11.1", True)}
    assert lock.loose == {"aiohttp", "kernels>=0.14.1,<0.15"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[project", "not readable TOML"),
        ("[tool]\n", "project.dependencies is no list of requirements"),
        ("[project]\ndependencies = [1]\n", "project.dependencies is no list of requirements"),
        ('[project]\ndependencies = ["--index-url"]\n', "project.dependencies is no list of requirements"),
        ('[project]\ndependencies = ["a==1", "A==2"]\n', "project.dependencies: a stands in it twice"),
        ('[project]\ndependencies = ["a"]\n', "pins no package"),
    ],
)
def test_read_lock__a_project_that_cannot_be_read(tmp_path, text, message):
    (tmp_path / "pyproject.toml").write_text(text)

    with pytest.raises(InputError, match=rf"pyproject\.toml: .*{message}|pyproject\.toml: {message}"):
        read_lock(tmp_path / "pyproject.toml")


def test_find_lock__a_file_is_itself_and_a_tree_has_the_first_of_the_names(tmp_path):
    tree = make_tree(tmp_path / "tree", pyproject_toml=PROJECT)

    assert find_lock(tree / "python" / "pyproject.toml", NAMES) == tree / "python" / "pyproject.toml"
    assert find_lock(tree, NAMES) == tree / "python" / "pyproject.toml"
    (tree / "python" / "requirements.lock").write_text("torch==2.11.0\n")
    assert find_lock(tree, NAMES) == tree / "python" / "requirements.lock"
    with pytest.raises(InputError, match=r"has none of python/requirements\.lock, python/pyproject\.toml"):
        find_lock(tmp_path, NAMES)


def test_read_pair__what_each_tree_pins_otherwise(tmp_path):
    base = make_tree(tmp_path / "base", pyproject_toml=PROJECT)
    changed = PROJECT.replace("2.11.0", "2.12.0").replace('"aiohttp"', '"aiohttp>=3"').replace("flashinfer_", "sgl_kernel_")
    head = make_tree(tmp_path / "head", pyproject_toml=changed)

    own, other = read_pair(base, head, NAMES)
    assert [pin.line for pin in list_pins(own, other)] == ["flashinfer_python[cu13]==0.6.12", "torch == 2.11.0"]
    assert [bump.words for bump in list_bumps(own, other)] == ["sgl-kernel-python absent -> 0.6.12", "torch 2.11.0 -> 2.12.0"]
    assert own.loose ^ other.loose == {"aiohttp", "aiohttp>=3"}


def test_read_pair__trees_that_pin_nothing_or_the_same(tmp_path):
    base = make_tree(tmp_path / "base", requirements_lock="not a lock")
    head = make_tree(tmp_path / "head", requirements_lock="not a lock")

    # What did not change is not read: a file that pins nothing keeps no change from being measured.
    assert read_pair(base, head, NAMES) is None
    assert read_pair(base, make_tree(tmp_path / "bare"), NAMES) is None
    (head / "python" / "requirements.lock").write_text("not a lock either")
    with pytest.raises(InputError, match=r"requirements\.lock:1: 'not a lock' pins no version"):
        read_pair(base, head, NAMES)
