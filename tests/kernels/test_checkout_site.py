"""A checkout that is only on PYTHONPATH shows its entry points through a folder."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import perfgate
from perfgate.cli.moe.kernels import command
from perfgate.errors import InputError
from perfgate_moe.build.checkout import write_site

LIST = "import importlib.metadata as m; print(sorted(e.name for e in m.entry_points(group='sglang.srt.plugins')))"


def test_plug_in_command__python_finds_what_pyproject_names(tmp_path):
    CliRunner().invoke(command, ["plug-in", str(tmp_path / "site")], standalone_mode=False)

    # -S: no site-packages, where an installed perfgate would be found.
    argv = [sys.executable, "-S", "-c", LIST]
    path = f"{tmp_path / 'site'}:{Path(perfgate.__file__).parents[1]}"
    done = subprocess.run(argv, env={"PYTHONPATH": path}, capture_output=True, text=True, check=True)

    assert done.stdout == "['perfgate', 'perfgate_moe', 'perfgate_weights']\n"


def test_write_site__installed_package_needs_none(tmp_path):
    with pytest.raises(InputError, match="installed package"):
        write_site(tmp_path, tmp_path / "pyproject.toml")
