"""The real nvidia-ml-py against a real shared library that plays a sick GPU."""

import json

import pytest

from perfgate.machine.nvml import list_devices
from tests.fakes.sick_gpu import build_library, run_with_gpu

OPEN = """
from dataclasses import asdict
from perfgate.errors import TelemetryError
from perfgate.machine.nvml import GpuMonitor
def tell(read):
    try:
        return read()
    except TelemetryError as error:
        return str(error)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build_library(tmp_path_factory.mktemp("nvml"))


def run(library, folder, code):
    done = run_with_gpu(library, folder, OPEN + code)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_read__everything_that_a_gpu_tells(library, tmp_path):
    [sample] = run(
        library,
        tmp_path,
        'set_gpu(sm_clock=1755, memory_clock=2619, milliwatts=691500, celsius=71, reasons=4, memory_used=5, pids="9 7 0")\n'
        'print(json.dumps([asdict(one) for one in GpuMonitor.open(["0"]).read()]))',
    )

    assert sample["values"] == {
        "sm_clock_mhz": 1755.0,
        "memory_clock_mhz": 2619.0,
        "power_w": 691.5,
        "temperature_c": 71.0,
        "memory_used_bytes": 5.0,
    }
    assert (sample["reasons"], sample["pids"]) == (4, [7, 9])


def test_open__no_driver(library, tmp_path):
    absent = run(library, tmp_path, "set_gpu(init_error=9)\nprint(json.dumps(GpuMonitor.open(['0']) is None))")

    assert absent is True


def test_open__no_gpu(library, tmp_path):
    absent = run(library, tmp_path, "set_gpu(count=0)\nprint(json.dumps(GpuMonitor.open(['0']) is None))")

    assert absent is True


def test_open__driver_that_does_not_answer(library, tmp_path):
    told = run(library, tmp_path, "set_gpu(init_error=15)\nprint(json.dumps(tell(lambda: GpuMonitor.open(['0']))))")

    assert told.startswith("NVML failed: GPU is lost; look into the kernel's log")


def test_read__what_a_gpu_cannot_tell_is_absent(library, tmp_path):
    code = """
set_gpu(power_error=3, pids_error=3, reasons_error=3)
monitor = GpuMonitor.open(["0"])
print(json.dumps([sorted(monitor.unsupported), asdict(monitor.read()[0])]))
"""
    unsupported, sample = run(library, tmp_path, code)

    assert unsupported == ["pids", "power_w", "reasons"]
    assert "power_w" not in sample["values"]
    assert (sample["reasons"], sample["pids"]) == (None, None)


def test_read__fails_midway(library, tmp_path):
    code = """
monitor = GpuMonitor.open(["0"])
set_gpu(clock_error=15)
print(json.dumps(tell(monitor.read)))
"""
    told = run(library, tmp_path, code)

    assert told == "NVML failed: GPU is lost; look into the kernel's log (dmesg), then measure again"


@pytest.mark.parametrize(
    ("args", "env", "devices"),
    [
        ((), {}, ("0",)),
        (("--tp", "2"), {}, ("0", "1")),
        (("--tp-size=2", "--pp-size", "2", "--base-gpu-id", "1"), {}, ("1", "2", "3", "4")),
        (("--tp", "2", "--dp", "2"), {}, ("0", "1", "2", "3")),
        (("--tp", "2", "--dp", "2", "--enable-dp-attention"), {}, ("0", "1")),
        (("--tp", "2"), {"CUDA_VISIBLE_DEVICES": "3, GPU-abc,5"}, ("3", "GPU-abc")),
        (("-tp", "2", "--pipeline-parallel-size", "2"), {}, ("0", "1", "2", "3")),
        (("--disaggregation-transfer-backend=nixl",), {}, ("0", "1")),
        (("--tp", "2", "--disaggregation-transfer-backend", "nixl", "--base-gpu-id", "1"), {}, ("1", "2", "3", "4")),
        (("--disaggregation-transfer-backend", "nixl", "--disaggregation-mode", "decode"), {}, ("0",)),
        (("--tp", "auto"), {"CUDA_VISIBLE_DEVICES": "3"}, ("3",)),
    ],
)
def test_list_devices__as_the_server_will_use_them(args, env, devices, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    assert list_devices(args, env) == devices


def test_find_measured__all_gpus_that_an_arm_takes_and_no_more_than_there_are(library, tmp_path):
    code = """
from perfgate.engines.sglang import SGLANG
from perfgate.errors import InputError
from perfgate.serving.engine.launch import Launch
from perfgate.serving.watch.telemetry import find_measured
def find(*args, **env):
    launch = Launch(engine=SGLANG, python="", model=Path(), args=args, env=env, ready_timeout_s=1, stop_timeout_s=1)
    try:
        return find_measured([launch, launch])
    except InputError as error:
        return str(error)
set_gpu(count=1)
alone = [find(), find("--tp-size", "2")]
set_gpu(count=4)
more = [find("--tp-size", "2", "--ep-size", "2", "--base-gpu-id", "1"), find("--tp-size", "4", "--base-gpu-id", "1")]
hidden = find("--tp-size", "2", CUDA_VISIBLE_DEVICES="2")
uuids = {"CUDA_VISIBLE_DEVICES": "GPU-0002,GPU-0003"}
named = [find("--tp-size", "2", **uuids), find("--disaggregation-transfer-backend", "nixl", **uuids), find(**uuids)]
print(json.dumps([alone, more, hidden, named]))
"""
    done = run_with_gpu(library, tmp_path, code, CUDA_VISIBLE_DEVICES="")
    [[one, refused], [two, beyond], hidden, [by_uuid, *apart]] = json.loads(done.stdout)

    assert one == ["GPU-0000"]
    assert two == ["GPU-0001", "GPU-0002"]
    assert refused.startswith("gpus: the server's arguments spread the model over 2 GPUs from number 0 on")
    assert "there are 1; take a machine with 2" in refused
    assert "4 GPUs from number 1 on" in beyond
    assert "there are 1;" in hidden
    assert "a longer CUDA_VISIBLE_DEVICES" in hidden
    assert by_uuid.startswith("CUDA_VISIBLE_DEVICES: names GPU-0002, and engines that spread a model over several GPUs read")
    assert apart == [["GPU-0002", "GPU-0003"], ["GPU-0002"]]


@pytest.mark.parametrize(
    ("gpu", "file", "lacks"),
    [
        ("init_error=9", None, True),
        ("count=0", None, True),
        ("init_error=9", "kfd", False),
        ("init_error=9", "nvidia0", False),
        ("init_error=9", "nvidiactl", True),
        ("init_error=9", "dri/renderD128", False),
        ("init_error=15", None, False),
        ("count=1", None, False),
    ],
)
def test_lacks_gpu__only_where_no_driver_shows_one(gpu, file, lacks, library, tmp_path):
    """A driver that does not answer is a fault of its own, and a GPU without NVML has a device file."""
    devices = tmp_path / "dev"
    (devices / "dri").mkdir(parents=True)
    if file:
        (devices / file).touch()
    code = f"from perfgate.machine.nvml import lacks_gpu\nset_gpu({gpu})\nprint(json.dumps(lacks_gpu(Path({str(devices)!r}))))"

    assert run(library, tmp_path, code) is lacks
