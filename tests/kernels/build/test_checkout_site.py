"""A checkout that is only on PYTHONPATH shows its entry points through a folder, and has one version."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

import perfgate
import perfgate_moe
from perfgate.cli.moe.kernels import command
from perfgate_moe.build.site import write_site
from perfgate_moe.errors import MoeInputError

LIST = "import importlib.metadata as m; print(sorted(e.name for e in m.entry_points(group='sglang.srt.plugins')))"


def test_plug_in_command__python_finds_what_pyproject_names(tmp_path):
    CliRunner().invoke(command, ["plug-in", str(tmp_path / "site")], standalone_mode=False)

    # -S: no site-packages, where an installed perfgate would be found.
    argv = [sys.executable, "-S", "-c", LIST]
    path = f"{tmp_path / 'site'}:{Path(perfgate.__file__).parents[1]}"
    done = subprocess.run(argv, env={"PYTHONPATH": path}, capture_output=True, text=True, check=True)

    project = tomllib.loads((Path(perfgate.__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = sorted(project["entry-points"]["sglang.srt.plugins"])
    assert "perfgate_moe" in names
    assert done.stdout == f"{names}\n"


def test_write_site__where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(MoeInputError, match=r"file: cannot be written \(Not a directory\)"):
        write_site(tmp_path / "file")


def test_write_site__installed_package_needs_none(tmp_path):
    with pytest.raises(MoeInputError, match="installed package"):
        write_site(tmp_path, tmp_path / "pyproject.toml")


def test_version__is_one_for_both_packages_of_the_distribution():
    assert perfgate_moe.__version__ == perfgate.__version__
