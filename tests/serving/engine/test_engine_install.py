"""An environment for one release of the engine: which versions go into it, and what else is put there."""

import json
import shutil
import subprocess
import sys
from importlib.metadata import Distribution

import pytest

import perfgate
from perfgate.engines.sglang_releases import LIMITS, find_limit, needs_stand_in
from perfgate.errors import EngineError
from perfgate.releases.capabilities import CAPABILITIES
from perfgate.serving.engine import engine_install
from perfgate.serving.engine.engine_install import choose_pins, install_release, read_extra, read_release_pins

RELEASE = """Metadata-Version: 2.1
Name: sglang
Version: {version}
Requires-Dist: transformers==5.19.0
Requires-Dist: torch==2.14.1
Requires-Dist: flashinfer_python[cu13]==0.7.2
Requires-Dist: numpy
Requires-Dist: uvicorn>=0.51
Requires-Dist: openai==2.8.0
Requires-Dist: av==16.1.0; sys_platform == "linux" and platform_machine == "aarch64"
Requires-Dist: pytest==8.0; extra == "test"
"""
# Stands in a new environment's place of Python: notes what it was called with, and "installs" SGLang.
PYTHON = """#!{python}
import json, pathlib, sys
root = pathlib.Path(sys.argv[0]).parents[1]
with (root / "calls.jsonl").open("a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
for word in sys.argv:
    if word.startswith("sglang=="):
        info = root / "lib" / "python3.11" / "site-packages" / f"sglang-{{word[8:]}}.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text({text!r}.replace("{{version}}", word[8:]))
    if word == "sglang==9.9.9":
        sys.exit("ERROR: No matching distribution found for sglang==9.9.9")
"""


@pytest.fixture
def environment(tmp_path):
    """An environment whose Python writes down what it is asked to install."""
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON.format(python=sys.executable, text=RELEASE))
    python.chmod(0o755)
    make_pip(tmp_path / "env")
    return tmp_path / "env"


def make_pip(folder):
    record = folder / "lib" / "python3.11" / "site-packages" / "pip-23.2.1.dist-info" / "RECORD"
    record.parent.mkdir(parents=True)
    record.touch()


@pytest.fixture
def extra(monkeypatch):
    """What the extra pins, on a machine whose perfgate may come without its metadata."""
    pins = {"torch": "2.13.0", "transformers": "5.12.1", "openai": "2.6.1", "numpy": "2.3.5", "triton": "3.6.0"}
    monkeypatch.setattr(engine_install, "read_extra", lambda: pins)


def read_calls(folder):
    return [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]


def test_read_release_pins__exact_ones_of_every_machine(environment):
    packages = environment / "lib" / "python3.11" / "site-packages"
    info = packages / "sglang-0.5.23.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(RELEASE.format(version="0.5.23"))

    assert read_release_pins(packages) == {
        "transformers": "5.19.0",
        "torch": "2.14.1",
        "flashinfer-python": "0.7.2",
        "openai": "2.8.0",
    }


def test_choose_pins__of_the_release_but_for_what_is_kept():
    ours = {"torch": "2.13.0", "transformers": "5.12.1", "einops": "0.8.2"}

    chosen = choose_pins(ours, {"torch": "2.14.1", "transformers": "5.19.0", "av": "16.1.0"})

    assert chosen == ["torch==2.13.0", "transformers==5.19.0", "einops==0.8.2"]


@pytest.mark.parametrize(
    ("release", "chosen"),
    [
        ({"transformers": "5.12.1"}, "tokenizers"),
        ({"transformers": "5.19.0"}, "tokenizers==0.23.2"),
        ({}, "tokenizers==0.23.2"),
        ({"transformers": "5.12.1", "tokenizers": "0.22.1"}, "tokenizers==0.22.1"),
    ],
)
def test_choose_pins__tokenizers_go_with_the_transformers_of_the_release(release, chosen):
    ours = {"tokenizers": "0.23.2", "transformers": "5.19.0"}

    assert choose_pins(ours, release)[0] == chosen


@pytest.mark.usefixtures("extra")
def test_install_release__in_the_versions_that_it_pins(environment):
    python = install_release("0.5.23", environment, "https://wheels")

    first, torch, last = read_calls(environment)
    assert python == environment / "bin" / "python"
    assert {"--no-deps", "sglang==0.5.23", "triton==3.6.0"} <= set(first)
    assert torch[-3:] == ["--index-url", "https://wheels", "torch==2.13.0"]
    assert {"transformers==5.19.0", "openai==2.8.0", "numpy==2.3.5", "torch==2.13.0"} <= set(last)
    assert "triton==3.6.0" not in last


@pytest.mark.usefixtures("extra")
def test_install_release__shows_the_plug_ins_of_this_perfgate(environment):
    install_release("0.5.23", environment)

    packages = environment / "lib" / "python3.11" / "site-packages"
    found = Distribution.at(packages / f"sglang_perfgate-{perfgate.__version__}.dist-info")
    assert (packages / "perfgate" / "core.py").is_file()
    assert {entry.group for entry in found.entry_points} <= {"sglang.srt.plugins"}
    assert found.version == perfgate.__version__


@pytest.mark.usefixtures("extra")
def test_install_release__twice_is_once(environment):
    install_release("0.5.23", environment)
    install_release("0.5.23", environment)

    packages = environment / "lib" / "python3.11" / "site-packages"
    assert len(list(packages.glob("sglang_perfgate*"))) == 1


@pytest.mark.usefixtures("extra")
def test_install_release__that_no_registry_has(environment):
    with pytest.raises(EngineError, match=r"pip install .*sglang==9\.9\.9.*No matching distribution"):
        install_release("9.9.9", environment)
    # What was there before stays: a network may have been away.
    assert (environment / "bin" / "python").exists()


@pytest.mark.usefixtures("extra")
def test_install_release__after_one_that_was_killed_before_it_had_pip(environment, tmp_path, monkeypatch):
    shutil.rmtree(environment / "lib")
    venv = tmp_path / "python"
    venv.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {tmp_path / "asked"}\n')
    venv.chmod(0o755)
    monkeypatch.setattr(engine_install.sys, "executable", str(venv))
    install_release("0.5.23", environment)
    make_pip(environment)
    install_release("0.5.23", environment)

    assert (tmp_path / "asked").read_text() == f"-m venv {environment}\n"


def test_install_release__that_fails_leaves_no_environment_behind(tmp_path, monkeypatch):
    """A stand-in for `python -m venv` makes the folder; its Python has no pip."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nmkdir -p "$3/bin" && cp /bin/false "$3/bin/python"\n')
    python.chmod(0o755)
    monkeypatch.setattr(engine_install.sys, "executable", str(python))

    with pytest.raises(EngineError, match=r"pip install .*sglang==abc"):
        install_release("abc", tmp_path / "new")
    assert not (tmp_path / "new").exists()


ASK = "from sgl_kernel import copy_all_layer_kv_cache_cpu as one; one()"


@pytest.mark.usefixtures("extra")
@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("/no/such/device", "NotImplementedError: sgl_kernel.copy_all_layer_kv_cache_cpu: perfgate's stand-in"),
        ("/dev/null", "ImportError: this sgl_kernel is perfgate's stand-in for machines without a GPU"),
    ],
)
def test_stand_in__has_every_name_and_runs_none(environment, device, said):
    install_release("0.5.16", environment)
    stand_in = environment / "lib" / "python3.11" / "site-packages" / "sgl_kernel.py"
    stand_in.write_text(stand_in.read_text().replace("/dev/nvidiactl", device))

    done = subprocess.run([sys.executable, "-c", ASK], cwd=stand_in.parent, capture_output=True, text=True, check=False)

    assert done.stderr.splitlines()[-1].startswith(said)


def test_needs_stand_in__since_0_5_16():
    assert [needs_stand_in(version) for version in ("0.5.15.post1", "0.5.16", "0.6.0")] == [False, True, True]


def test_read_extra__of_this_installation():
    if engine_install.read_version("sglang-perfgate") == "absent":
        pytest.skip("perfgate is not installed with its metadata here")

    assert read_extra()["numpy"] == "2.3.5"


def test_limits__are_of_capabilities_that_are_tried():
    assert {limit.capability for limit in LIMITS} <= {capability.name for capability in CAPABILITIES}
    assert find_limit("structured output", "0.5.17") is not None
    assert find_limit("structured output", "0.5.18") is None
