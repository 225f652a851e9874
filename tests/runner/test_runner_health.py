"""Faults of a machine and what the doctor calls them: over readings, and over a libnvidia-ml that is as sick as wanted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfgate.cli import main
from perfgate.machine.accelerators import find_label, find_label_of_facts
from perfgate.machine.fingerprint import read_build
from perfgate.runner.gpus import read_kernel_log
from perfgate.runner.health import Reading, Severity, find_severity, judge_health
from tests.fakes.sessions import make_scenario, make_session, write_folder
from tests.fakes.sick_gpu import build_library, run_with_gpu

FIT = Reading(
    index=0,
    uuid="GPU-1",
    name="NVIDIA H20",
    memory_gib=95.6,
    memory_used_share=0.0,
    celsius=35,
    pids=(),
    reasons=1,
    ecc_uncorrected=0,
    is_remap_pending=False,
    is_remap_failed=False,
    links_down=0,
    pcie_width=16,
    pcie_max_width=16,
    is_persistent=True,
    is_mig=False,
)
XID = "4,1,2,-;NVRM: Xid (PCI:0000:17:00): {}, pid='<unknown>', name=<unknown>, more"


def test_judge_health__a_fit_machine():
    assert judge_health([FIT], expected="h20", kernel_log="4,1,2,-;usb 1-1: new device") == ()


@pytest.mark.parametrize(
    ("changes", "severity", "words"),
    [
        ({"pids": (7, 9)}, 10, "processes 7, 9 compute on it"),
        ({"memory_used_share": 0.02}, 10, "2 % of its memory is in use though no process shows"),
        ({"pids": None, "memory_used_share": 0.5}, 10, "50 % of its memory"),
        ({"celsius": 90}, 20, "90 degrees at rest"),
        ({"reasons": 0x8}, 20, "clocks are held back: hardware slow-down"),
        ({"reasons": 0x40}, 20, "clocks are held back: heat"),
        ({"reasons": 0x80}, 20, "clocks are held back: power brake"),
        ({"links_down": 2}, 20, "2 NVLinks are down"),
        ({"pcie_width": 8}, 20, "PCIe runs 8 lanes of 16"),
        ({"is_persistent": False}, 20, "persistence mode is off"),
        ({"ecc_uncorrected": 3}, 30, "3 uncorrected ECC errors"),
        ({"is_remap_pending": True}, 30, "a row remapping is pending"),
        ({"is_remap_failed": True}, 30, "a row remapping failed"),
        ({"is_mig": True}, 40, "MIG is on"),
        ({"name": "NVIDIA H100 80GB HBM3", "memory_gib": 79.6}, 40, "is h100, not h20"),
        ({"memory_gib": 47.8}, 40, "is h20-48gib, not h20"),
    ],
)
def test_judge_health__each_fault(changes, severity, words):
    (finding,) = judge_health([replace(FIT, **changes)], expected="h20")

    assert finding.severity == severity
    assert words in finding.message


@pytest.mark.parametrize("reasons", [0x0, 0x1, 0x2, 0x4, 0x10, 0x100, None])
def test_judge_health__idle_and_capped_clocks_are_healthy(reasons):
    assert judge_health([replace(FIT, reasons=reasons)]) == ()


@pytest.mark.parametrize(
    "field", ["celsius", "pids", "ecc_uncorrected", "is_remap_failed", "links_down", "pcie_width", "is_mig"]
)
def test_judge_health__what_a_gpu_cannot_tell_is_no_fault(field):
    changes = {"pcie_max_width": None} if field == "pcie_width" else {}

    assert judge_health([replace(FIT, **{field: None}, **changes)]) == ()


@pytest.mark.parametrize(
    ("number", "severity"), [(79, 30), (48, 30), (74, 30), (94, 30), (119, 30), (13, 0), (31, 0), (43, 0), (791, 0)]
)
def test_judge_health__xids_of_the_hardware(number, severity):
    findings = judge_health([FIT], kernel_log="\n".join([XID.format(number)] * 3))

    assert find_severity(findings) == severity
    assert len(findings) == (severity > 0)


def test_judge_health__no_gpu_where_one_was_asked_for():
    assert find_severity(judge_health([], expected="h20")) is Severity.WRONG
    assert judge_health([]) == ()


@pytest.mark.parametrize(
    ("there", "expected", "words"),
    [
        (["h20", "h20"], "h20-x2", []),
        (["h20"], "h20-x2", ["1 GPU where h20-x2 was asked for"]),
        (["h20", "h20", "h20"], "h20-x2", ["3 GPUs where h20-x2 was asked for"]),
        (["h20", "h200"], "h20-x2", ["is h200, not h20"]),
        ([], "h20-x2", ["no GPU where h20-x2 was asked for"]),
    ],
)
def test_judge_health__a_slot_of_several_gpus(there, expected, words):
    named = {"h20": ("NVIDIA H20", 95.6), "h200": ("NVIDIA H200", 140.4)}
    readings = [replace(FIT, name=named[one][0], memory_gib=named[one][1]) for one in there]
    findings = judge_health(readings, expected=expected)

    assert [finding.severity for finding in findings] == [Severity.WRONG] * len(words)
    assert all(word in finding.message for word, finding in zip(words, findings, strict=True)), findings


def test_judge_health__the_worst_comes_first():
    findings = judge_health([replace(FIT, pids=(7,), ecc_uncorrected=1, links_down=1)])

    assert [int(finding.severity) for finding in findings] == [30, 20, 10]


@pytest.mark.parametrize(
    ("name", "memory", "label"),
    [
        ("NVIDIA H100 80GB HBM3", 79.6, "h100"),
        ("NVIDIA H100 PCIe", 79.6, "h100-pcie"),
        ("NVIDIA H20", 95.6, "h20"),
        ("NVIDIA H20-3e", 140.4, "h20-3e"),
        ("NVIDIA H200", 140.4, "h200"),
        ("NVIDIA H200", 70.0, "h200-70gib"),
        ("NVIDIA A100-SXM4-80GB", 80.0, "nvidia-a100-sxm4-80gb"),
        ("../../etc", 1.0, "etc"),
    ],
)
def test_find_label__is_derived(name, memory, label):
    assert find_label(name, memory) == label


def test_find_label_of_facts__a_machine_without_a_gpu():
    assert find_label_of_facts({"gpu": "absent"}) == "cpu"
    assert find_label_of_facts({"gpu": "NVIDIA H200", "gpu_memory_gib": "140.4"}) == "h200"
    assert find_label_of_facts({"gpu": "NVIDIA H200", "gpu_memory_gib": "nonsense"}) == "h200-0gib"
    assert find_label_of_facts({"gpu": "NVIDIA H200", "gpu_memory_gib": "140.4", "gpus": "2"}) == "h200-x2"
    assert find_label_of_facts({"gpu": "NVIDIA H200", "gpu_memory_gib": "140.4", "gpus": "nonsense"}) == "h200-x0"


def test_read_kernel_log__none_where_it_may_not_be_read(tmp_path):
    (tmp_path / "log").write_text(XID.format(79))

    assert "Xid" in read_kernel_log(tmp_path / "log")
    assert read_kernel_log(tmp_path / "none") is None


def test_read_kernel_log__overwritten_while_it_is_read(tmp_path, monkeypatch):
    """A storm of messages, which a broken GPU makes, hides none of those that are still there."""
    (tmp_path / "log").touch()
    told = iter([b"old", BrokenPipeError(), XID.format(79).encode(), BlockingIOError()])

    def read(*_):
        if isinstance(found := next(told), OSError):
            raise found
        return found

    monkeypatch.setattr("os.read", read)
    assert "Xid" in read_kernel_log(tmp_path / "log")


@pytest.mark.parametrize("command", ["status", "doctor"])
def test_kernel_log__a_folder(tmp_path, capsys, command):
    assert main(["runner", command, "--kernel-log", str(tmp_path)]) == 2
    assert "is a directory" in capsys.readouterr().err


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build_library(tmp_path_factory.mktemp("nvml"))


DOCTOR = """
import sys
from perfgate.cli import main
set_gpu(name="NVIDIA H200", memory_total=150754820096, {state})
sys.exit(main(["runner", "doctor", "--kernel-log", "/nonexistent", {options}]))
"""


def run_doctor(library, tmp_path, state="", options="", **env):
    return run_with_gpu(library, tmp_path, DOCTOR.format(state=state, options=options), **env)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("", "1 GPU (h200), 0 findings; the kernel's log may not be read"),
        ("links_down=18", "0 findings"),
        ("count=8", "8 GPUs (h200)"),
    ],
)
def test_doctor__machines_that_are_fit(library, tmp_path, state, words):
    done = run_doctor(library, tmp_path, state)

    assert (done.returncode, words in done.stdout) == (0, True), done.stdout + done.stderr


def test_doctor__a_fit_machine_leaves_no_note(library, tmp_path):
    folder = write_folder(tmp_path / "results", make_session(make_scenario()))
    before = (folder / "events.jsonl").read_bytes()
    done = run_doctor(library, tmp_path, options=f'"--note", {str(folder)!r}')

    assert (done.returncode, "0 findings" in done.stdout) == (0, True), done.stdout + done.stderr
    assert (folder / "events.jsonl").read_bytes() == before


def test_doctor__another_machine_than_asked_for(library, tmp_path):
    done = run_doctor(library, tmp_path, options='"--expect", "h20"')

    assert done.returncode == 40
    assert "NVIDIA H200 with 140.4 GiB is h200, not h20" in done.stdout


@pytest.mark.parametrize(
    ("build", "code", "words"), [(read_build(), 0, "0 findings"), ("0.1.0+0123456789ab", 40, "the workflows are of 0.1.0+01")]
)
def test_doctor__another_perfgate_than_the_workflows(library, tmp_path, build, code, words):
    done = run_doctor(library, tmp_path, options=f'"--build", "{build}"')

    assert (done.returncode, words in done.stdout) == (code, True), done.stdout + done.stderr


def test_doctor__looks_only_at_the_slots_gpu(library, tmp_path):
    done = run_doctor(library, tmp_path, "count=8", '"--format", "json"', CUDA_VISIBLE_DEVICES="GPU-0005")

    assert '"index": 5' in done.stdout
    assert done.stdout.count('"uuid"') == 1
    assert run_doctor(library, tmp_path, "count=8", CUDA_VISIBLE_DEVICES="GPU-9999").returncode == 30


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        ("exit 0", 0, "0 findings"),
        ("echo 'Memory: Fail'; exit 226", 30, "DCGM's diagnosis: failed (Memory: Fail)"),
        (None, 20, "dcgmi is not installed"),
    ],
)
def test_doctor__in_depth(library, tmp_path, script, code, words):
    folder = tmp_path / "bin"
    folder.mkdir()
    if script:
        (folder / "dcgmi").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "dcgmi").chmod(0o755)

    done = run_doctor(library, tmp_path, options='"--deep"', PATH=str(folder))

    assert (done.returncode, words in done.stdout) == (code, True), done.stdout + done.stderr


def test_doctor__a_neighbours_gpu_may_be_hidden(library, tmp_path):
    """A slot's device rules hide the other GPUs of the host; NVML counts them all the same."""
    done = run_doctor(library, tmp_path, "count=8, only=5", '"--format", "json"')

    assert done.returncode == 0, done.stdout + done.stderr
    assert '"index": 5' in done.stdout
    assert done.stdout.count('"uuid"') == 1


AT = replace(FIT, bus="00000000:17:00.0")
NEIGHBOUR = "4,1,2,-;NVRM: Xid (PCI:0000:b1:00): 94, pid=1, name=python3"


def test_judge_health__another_gpus_error_closes_no_slot():
    assert judge_health([AT], kernel_log=NEIGHBOUR, is_whole=False) == ()
    assert [finding.where for finding in judge_health([AT], kernel_log=NEIGHBOUR)] == ["GPU at 0000:b1:00"]
    own = XID.format(94)
    assert [finding.where for finding in judge_health([AT], kernel_log=own, is_whole=False)] == ["GPU at 0000:17:00"]


def test_judge_health__a_gpu_whose_place_is_not_known_could_be_any():
    assert len(judge_health([FIT], kernel_log=NEIGHBOUR, is_whole=False)) == 1


@pytest.mark.parametrize(
    "line",
    [
        "4,1,2,-;process '/tmp/NVRM: Xid (PCI:0000:17:00): 79, x' started with executable stack",
        "12,1,2,-;NVRM: Xid (PCI:0000:17:00): 79, written to /dev/kmsg by a program",
        " SUBSYSTEM=NVRM: Xid (PCI:0000:17:00): 79",
        "NVRM: Xid (PCI:0000:17:00): 79, no record of the kernel",
    ],
)
def test_attack__a_text_in_the_kernels_log_that_reads_as_an_error(line):
    assert judge_health([AT], kernel_log=f"{line}\n4,2,3,-;usb 1-1: new device") == ()


def test_judge_health__what_a_reset_or_a_reload_has_answered_is_over():
    reset = "4,5,6,-;NVRM: Xid (PCI:0000:17:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    needed = reset.replace("from 0x1 (GPU Reset Required) to 0x0 (None)", "from 0x0 (None) to 0x1 (GPU Reset Required)")
    load = "5,7,8,-;NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05"

    assert judge_health([AT], kernel_log="\n".join([XID.format(95), reset])) == ()
    assert judge_health([AT], kernel_log="\n".join([XID.format(79), NEIGHBOUR, load])) == ()
    assert len(judge_health([AT], kernel_log="\n".join([XID.format(95), needed]))) == 1
    assert len(judge_health([AT], kernel_log="\n".join([reset, XID.format(95)]))) == 1
    assert len(judge_health([AT], kernel_log=f"{NEIGHBOUR}\n{reset}")) == 1


def test_judge_health__a_line_of_dmesg():
    assert len(judge_health([AT], kernel_log="[   12.345678] NVRM: Xid (PCI:0000:17:00): 79, pid=1")) == 1
