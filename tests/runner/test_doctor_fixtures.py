"""What the doctor said of a real machine, and what it says of faults that this machine did not have."""

from __future__ import annotations

import json
import lzma
import re
import tomllib
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from pydantic import TypeAdapter

from perfgate.runner.health import Reading, judge_health
from tests.fakes.sick_gpu import build_library, run_with_gpu

FOLDER = Path(__file__).parents[1] / "fixtures" / "doctor"
REAL = FOLDER / "h200"
FAULTS = {path.stem: tomllib.loads(path.read_text()) for path in sorted((FOLDER / "faults").glob("*.toml"))}
# Each fault that a machine of the list must be caught with.
WANTED = {"ecc-uncorrected", "remap-pending", "remap-failed", "xid-off-the-bus", "throttle-heat", "throttle-power-brake"}
WANTED |= {"throttle-hardware", "foreign-process", "wrong-sku", "nvlink-lost"}


def read(name):
    told = json.loads((REAL / f"{name}.json").read_text())
    return told, TypeAdapter(tuple[Reading, ...]).validate_python(told["readings"])


@pytest.mark.parametrize(
    ("name", "severity", "words"),
    [
        ("healthy", 0, []),
        ("after", 0, []),
        ("foreign", 10, ["GPU 0: processes 1001 compute on it"]),
        ("load", 10, ["GPU 0: processes 1096 compute on it"]),
        ("deep", 20, ["host: dcgmi is not installed"]),
        ("wrong-machine", 40, [f"GPU {index}: NVIDIA H200 with 140.4 GiB is h200, not h20" for index in range(4)]),
    ],
)
def test_real_h200__what_was_said(name, severity, words):
    told, _ = read(name)

    assert told["severity"] == severity
    assert [
        f"{one['where']}: {one['message']}".startswith(word) for one, word in zip(told["findings"], words, strict=True)
    ] == [True for _ in words]


@pytest.mark.parametrize("name", ["healthy", "after", "foreign", "load"])
def test_real_h200__is_judged_the_same_today(name):
    told, readings = read(name)
    findings = judge_health(readings, expected="h200")

    assert [(one.severity, one.where, one.message) for one in findings] == [
        (one["severity"], one["where"], one["message"]) for one in told["findings"]
    ]


def test_real_h200__what_a_healthy_machine_looks_like():
    _, readings = read("healthy")

    assert {reading.label for reading in readings} == {"h200"}
    assert [reading.index for reading in readings] == [0, 1, 2, 3]
    assert all(None not in (one.pids, one.reasons, one.ecc_uncorrected, one.links_down, one.is_mig) for one in readings)
    assert max(reading.memory_used_share for reading in readings) < 0.005
    assert {reading.reasons for reading in readings} == {1}


def test_real_h200__a_board_at_its_power_limit_is_healthy():
    """Only its foreign process is found: the limit shapes the clocks of every board that works."""
    _, readings = read("load")

    assert (readings[0].reasons, readings[0].celsius) == (4, 71)
    [found] = judge_health(readings)
    assert found.message == "processes 1096 compute on it; wait for them or end them"


def test_real_h200__nvidia_smi_saw_the_same():
    """A second program, which reads the driver by itself."""
    _, readings = read("healthy")
    found = ET.fromstring(lzma.decompress((REAL / "nvidia-smi.xml.xz").read_bytes())).findall("gpu")  # noqa: S314 - our own file
    links = re.split(r"^GPU \d", (REAL / "nvlink.txt").read_text(), flags=re.MULTILINE)[1:]

    assert len(found) == len(readings) == len(links)
    for gpu, reading, link in zip(found, readings, links, strict=True):
        assert gpu.findtext("uuid") == reading.uuid
        assert gpu.findtext("product_name") == reading.name
        assert int(gpu.findtext("fb_memory_usage/total").split()[0]) == round(reading.memory_gib * 1024)
        assert gpu.findtext("pci/pci_gpu_link_info/link_widths/current_link_width") == f"{reading.pcie_width}x"
        assert gpu.findtext("remapped_rows/remapped_row_pending") == "No"
        assert gpu.findtext("persistence_mode") == ("Enabled" if reading.is_persistent else "Disabled")
        assert gpu.findtext("mig_mode/current_mig") == ("Enabled" if reading.is_mig else "Disabled")
        assert (link.count("GB/s"), link.count("inactive")) == (18, 0)


def test_real_h200__prometheus_reads_it():
    from prometheus_client.parser import text_string_to_metric_families

    families = {found.name: found.samples for found in text_string_to_metric_families((REAL / "status.prom").read_text())}

    assert families["perfgate_runner_ready"][0].value == 1
    assert {sample.labels["label"] for sample in families["perfgate_runner_gpu_temperature_celsius"]} == {"h200"}
    assert len(families["perfgate_runner_gpu_temperature_celsius"]) == 4


EVERY = """
import contextlib, io
from perfgate.cli import main
told = {}
for name, fault in json.loads(Path(os.environ["FAULTS"]).read_text()).items():
    log = Path(os.environ["FAULTS"] + ".log")
    log.write_text(fault.get("kernel_log", "4,1,2,-;usb 1-1: new device") + "\\n")
    healthy = {"name": "NVIDIA H200", "memory_total": 150754820096, "memory_used": 644000000, "celsius": 40, "reasons": 1}
    set_gpu(**{**healthy, **fault.get("gpu", {})})
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = main(["runner", "doctor", "--expect", "h200", "--kernel-log", str(log)])
    told[name] = [code, out.getvalue()]
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """One process, whose GPU catches one fault after the other."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "faults.json").write_text(json.dumps(FAULTS))
    done = run_with_gpu(build_library(folder), folder, EVERY, FAULTS=str(folder / "faults.json"))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_faults__are_all_here():
    assert FAULTS.keys() >= WANTED


@pytest.mark.parametrize("name", FAULTS)
def test_doctor__each_fault_has_its_exit_code(told, name):
    code, text = told[name]

    assert (code, FAULTS[name]["says"] in text) == (FAULTS[name]["exit_code"], True), text
