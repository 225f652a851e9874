"""`perfgate runner` end to end: status, an arm over an engine, a note that voids a result."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import orjson
import pytest

from benchmarks.deps.run import make_wheel, offer
from perfgate.cli import main
from perfgate.runner.quarantine import close_slot
from perfgate.runner.settings import load_runner
from tests.fakes.sessions import make_scenario, make_session, write_folder
from tests.fakes.sick_gpu import build_library, run_with_gpu


@pytest.fixture
def settings(tmp_path, monkeypatch):
    (tmp_path / "r.toml").write_text(f'repositories = ["o/r"]\nstate = "{tmp_path}/state"\ncache = "{tmp_path}/cache"\n')
    monkeypatch.setenv("PERFGATE_RUNNER_CONFIG", str(tmp_path / "r.toml"))
    monkeypatch.setenv("PERFGATE_LOCKS", str(tmp_path / "locks"))
    return tmp_path / "r.toml"


def read_status(capsys):
    assert main(["runner", "status", "--kernel-log", "/none"]) == 0
    return orjson.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("settings")
def test_status__a_machine_that_waits_for_work(capsys):
    found = read_status(capsys)

    assert (found["is_ready"], found["slots"], found["held"], found["seeds"]) == (True, {}, {}, [])


SLOTS = """
import sys
from perfgate.cli import main
set_gpu(name="NVIDIA H20", count=3)
sys.exit(main(["runner", "status", "--kernel-log", "{log}"]))
"""


def test_status__each_slot_by_itself(tmp_path, settings):
    """One is closed, one has another's error in the log and is ready, one has it itself, one has no GPU."""
    names = "".join(f'[slots.{name}]\nuser = "ghr{name}"\ngpu = "GPU-000{name}"\n' for name in (0, 1, 2, 7))
    settings.write_text(settings.read_text() + names)
    close_slot(load_runner(), "0", "a fork knocked")
    (tmp_path / "log").write_text("4,1,2,-;NVRM: Xid (PCI:0000:19:00): 94, pid=1, name=python3\n")
    code = SLOTS.format(log=tmp_path / "log")
    (tmp_path / "gpu").mkdir()
    done = run_with_gpu(build_library(tmp_path), tmp_path / "gpu", code, PERFGATE_RUNNER_CONFIG=str(settings))
    assert done.returncode == 0, done.stderr
    found = orjson.loads(done.stdout)

    assert found["is_ready"] is True
    assert found["slots"]["0"].startswith("closed: a fork knocked")
    assert found["slots"]["1"] is None
    assert "XID 94" in found["slots"]["2"]
    assert found["slots"]["7"] == "GPU GPU-0007 does not answer"


@pytest.mark.parametrize(("count", "reason"), [(2, None), (3, "3 GPUs are in this machine, and the slot has 2; ")])
def test_status__a_slot_of_several_that_no_job_gets(tmp_path, settings, count, reason):
    """What `runner prepare` refuses each time is no slot that would take a job."""
    settings.write_text(settings.read_text() + '[slots.0]\nuser = "ghr0"\ngpu = ["GPU-0000", "GPU-0001"]\n')
    code = SLOTS.format(log="/none").replace("count=3", f"count={count}")
    (tmp_path / "gpu").mkdir()
    done = run_with_gpu(build_library(tmp_path), tmp_path / "gpu", code, PERFGATE_RUNNER_CONFIG=str(settings))
    found = orjson.loads(done.stdout)

    assert found["is_ready"] is (reason is None)
    assert found["slots"]["0"] == reason or found["slots"]["0"].startswith(reason)


UNREADABLE = """
import os, sys
import perfgate.cli.machine.runner_health
from perfgate.cli import main
set_gpu(name="NVIDIA H20", memory_total=102625181696, memory_used=0, reasons=1, celsius=40)
os.chmod(STATE, 0o644), os.setuid(65534)
sys.exit(main(["runner", "doctor", "--expect", "h20", "--kernel-log", {log!r}]))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="root may read everything, and becomes another user here")
def test_doctor__where_the_kernels_log_may_not_be_read():
    """As in a job of a slot: nothing is known of XIDs, and it says so."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        folder.chmod(0o755)
        (folder / "kmsg").touch(0o600)
        done = run_with_gpu(build_library(folder), folder, UNREADABLE.format(log=str(folder / "kmsg")))

    assert (done.returncode, "the kernel's log may not be read" in done.stdout) == (0, True), done.stdout + done.stderr


def test_status__without_settings(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PERFGATE_RUNNER_CONFIG", str(tmp_path / "none.toml"))

    assert main(["runner", "status"]) == 2
    assert "none.toml: no such file" in capsys.readouterr().err


SCRAPE = """
import sys
from perfgate.cli import main
set_gpu(name="NVIDIA H20", memory_total=102625181696, celsius=41, ecc=2)
sys.exit(main(["runner", "status", "--prometheus", "--kernel-log", "/none"]))
"""


def test_status__as_prometheus_reads_it(tmp_path, settings):
    from prometheus_client.parser import text_string_to_metric_families

    (tmp_path / "gpu").mkdir()
    done = run_with_gpu(build_library(tmp_path), tmp_path / "gpu", SCRAPE, PERFGATE_RUNNER_CONFIG=str(settings))
    found = {sample.name: sample for family in text_string_to_metric_families(done.stdout) for sample in family.samples}

    assert found["perfgate_runner_ready"].value == 0
    assert found["perfgate_runner_severity"].value == 30
    assert found["perfgate_runner_gpu_temperature_celsius"].value == 41
    assert found["perfgate_runner_gpu_ecc_uncorrected_errors"].labels == {"uuid": "GPU-0000", "label": "h20"}


def test_doctor__a_note_voids_the_result(tmp_path, capsys):
    folder = write_folder(tmp_path / "results", make_session(make_scenario()))

    assert main(["runner", "doctor", "--expect", "h20", "--kernel-log", "/none", "--note", str(folder)]) == 40
    capsys.readouterr()
    assert main(["check", str(folder)]) == 3
    assert "after the run, host: no GPU where h20 was asked for" in capsys.readouterr().out


def test_lock__of_more_gpus_than_there_are(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PERFGATE_LOCKS", str(tmp_path))

    assert main(["runner", "lock", "--gpus", "2", "--", "true"]) == 2
    assert "--gpus 2: no GPU that a driver shows" in capsys.readouterr().err


def test_doctor__without_a_gpu_no_machine_is_fit(capsys):
    assert main(["runner", "doctor", "--kernel-log", "/none"]) == 40
    assert "wrong: host: no GPU that a driver shows; load NVIDIA's driver" in capsys.readouterr().out


PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "toy-engine"
version = "{version}"
[tool.setuptools]
packages = ["toy_engine"]
"""


@pytest.fixture(scope="module")
def engine():
    """An environment with a build backend, as the machine's engine has one."""
    pytest.importorskip("setuptools", reason="the engine's environment builds with setuptools")
    return sys.executable


def make_project(folder, version):
    (folder / "toy_engine").mkdir(parents=True)
    (folder / "toy_engine" / "__init__.py").write_text(f'VERSION = "{version}"\n')
    (folder / "pyproject.toml").write_text(PROJECT.format(version=version))
    return folder


def test_arm__runs_its_own_code_over_the_engines_packages(tmp_path, engine, capsys):
    for version in ("1.0", "2.0"):
        source = make_project(tmp_path / f"source-{version}", version)
        assert main(["runner", "arm", str(source), str(tmp_path / f"arm-{version}"), "--engine", engine]) == 0, (
            capsys.readouterr().err
        )

    code = "import toy_engine, numpy; print(toy_engine.VERSION)"
    told = [
        subprocess.run(
            [tmp_path / f"arm-{version}" / "bin" / "python", "-c", code], capture_output=True, text=True, check=True
        ).stdout
        for version in ("1.0", "2.0")
    ]
    assert told == ["1.0\n", "2.0\n"]


def test_arm__has_the_packages_that_its_tree_pins_otherwise(tmp_path, engine, capsys):
    (tmp_path / "wheels").mkdir()
    for version in ("1", "2"):
        make_wheel(tmp_path / "wheels", "toy_part", version, f"VERSION = {version!r}\n")
        tree = make_project(tmp_path / version, version) / "pyproject.toml"
        tree.write_text(tree.read_text().replace("[tool.", f'dependencies = ["toy_part=={version}", "other==1"]\n[tool.'))

    with offer(tmp_path / "wheels"):
        for own, other in (("1", "2"), ("2", "1")):
            words = [str(tmp_path / own), str(tmp_path / f"arm-{own}"), "--engine", engine]
            assert main(["runner", "arm", *words, "--trees", str(tmp_path / own), str(tmp_path / other)]) == 0
            assert capsys.readouterr().out.splitlines()[1:] == [f"toy-part {own}"]
            code = "import toy_engine, toy_part; assert toy_engine.VERSION == toy_part.VERSION"
            subprocess.run([tmp_path / f"arm-{own}" / "bin" / "python", "-c", code], check=True)


def test_arm__of_no_project(tmp_path, capsys):
    assert main(["runner", "arm", str(tmp_path), str(tmp_path / "arm"), "--engine", sys.executable]) == 2
    assert "holds no pyproject.toml" in capsys.readouterr().err


def test_arm__that_does_not_build(tmp_path, capsys):
    source = make_project(tmp_path / "source", "1.0")
    (source / "pyproject.toml").write_text("[build-system]\nrequires = []\nbuild-backend = 'nowhere'\n")

    assert main(["runner", "arm", str(source), str(tmp_path / "arm"), "--engine", sys.executable]) == 3
    assert "perfgate: pip: failed (" in capsys.readouterr().err
