"""The gate for real: SGLang on the CPU, bench_serving, calibration, verdict, report; and a kill while it measures."""

import json
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from perfgate.core import Outcome
from perfgate.gate.case import load_case
from perfgate.gate.gate import name_calibration
from tests.e2e.commands import Ended, find_leftovers, interrupt_perfgate, read_index, run_perfgate, wait_for_leftovers
from tests.e2e.undisturbed import measure_undisturbed, name_disturbance

# One group: two gates at once on one machine would be each other's noise.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800), pytest.mark.xdist_group("engine")]

# Six steps' time after each step. A server that sleeps gets the processor sooner afterwards: beside work for twenty cores,
# one that slept for two steps was 8 % slower than one that never slept, and one that slept for a tenth of a second 24 %.
INJECTION = "step:6.0"


@dataclass(frozen=True, kw_only=True)
class Unchanged:
    """A gate on two equal arms that was killed while it calibrated, and what going on made of it."""

    folder: Path
    killed: Ended
    left: list
    before: bytes
    ended: Ended

    @property
    def calibration(self):
        return name_calibration(self.folder) / "aa"


@pytest.fixture(scope="module")
def unchanged(state, small_scenario, tmp_path_factory):
    """A run of the gate on two equal arms; the first, so it calibrates. It is killed behind its first window."""

    def measure(folder):
        arguments = ("gate", small_scenario, "--out", folder)
        killed = interrupt_perfgate(state, signal.SIGKILL, "tok/s", *arguments)
        before = (name_calibration(folder) / "aa" / "windows.jsonl").read_bytes()
        left = wait_for_leftovers(state)
        ended = run_perfgate(state, *arguments, "--resume")
        return Unchanged(folder=folder, killed=killed, left=left, before=before, ended=ended)

    def find_void(found):
        # A void comparison is no finding of equal arms; behind a void calibration there is none.
        return found.calibration if "the calibration is void" in found.ended.err else None

    return measure_undisturbed(measure, tmp_path_factory.mktemp("runs"), find_void)


def test_gate__equal_arms_are_no_regression(unchanged, state):
    ended, case = unchanged.ended, load_case(unchanged.folder)

    assert ended.code in (0, 3), ended.out + ended.err
    # Void is what the work of others makes of it, if anything.
    assert case.verdict.outcome is not Outcome.INVALID or name_disturbance(case), case.verdict.reasons
    assert "REGRESSION" not in ended.out.splitlines()[0]
    assert f"report folder: {unchanged.folder}" in ended.out
    assert "answers   log-probs of the candidate differ from the base's by 0.0" in ended.out
    assert find_leftovers(state) == []


def test_gate__first_run_calibrates_this_machine_and_says_so(unchanged, state):
    stored = list((state / "baselines").glob("*/cpu-moe.json"))

    assert "no noise bands for this machine yet" in unchanged.killed.err
    assert len(stored) == 1
    assert list((unchanged.folder / "baselines").glob("*/cpu-moe.json"))


def test_gate__killed_while_it_measures_goes_on(unchanged, state, small_scenario):
    again = run_perfgate(state, "gate", small_scenario, "--out", unchanged.folder, "--resume")
    judged = run_perfgate(state, "check", unchanged.calibration)

    assert unchanged.killed.code == -signal.SIGKILL
    assert unchanged.left == []
    assert "block 1 is measured again" in unchanged.ended.err
    assert unchanged.before
    assert (unchanged.calibration / "windows.jsonl").read_bytes().startswith(unchanged.before)
    assert again.code == 2
    assert f"{unchanged.before.count(bytes([10]))} more cut off by a break and measured anew" in judged.out


def test_gate__every_window_is_on_disk_as_bench_serving_wrote_it(unchanged):
    folder = unchanged.folder
    index = read_index(folder)
    measured = [entry for entry in index if entry["role"] == "measured"]

    assert {entry["arm"] for entry in measured} == {"base", "candidate"}
    assert len(measured) % 4 == 0
    assert all((folder / entry["file"]).exists() for entry in index)
    assert [entry["begun_s"] for entry in index] == sorted(entry["begun_s"] for entry in index)


def test_check__replays_the_verdict_byte_for_byte(unchanged, tmp_path):
    replayed = run_perfgate(tmp_path / "other-machine", "check", unchanged.folder, "--format", "json")

    assert replayed.code == unchanged.ended.code
    assert replayed.out.encode() == (unchanged.folder / "verdict.json").read_bytes()


def test_gate__slowed_candidate_is_a_regression(stored_noise, short_scenario, tmp_path):
    def measure(folder):
        arguments = ("gate", short_scenario, "--out", folder, "--candidate-inject", INJECTION)
        return folder, run_perfgate(stored_noise, *arguments, "--profile", "always")

    folder, ended = measure_undisturbed(measure, tmp_path, lambda found: found[0] if found[1].code == 3 else None)
    verdict = json.loads((folder / "verdict.json").read_text())

    assert ended.code == 1, ended.out + ended.err
    assert "no noise bands for this machine yet" not in ended.err
    assert verdict["outcome"] == "REGRESSION"
    assert "REGRESSION" in (folder / "report.md").read_text().splitlines()[0].upper()
    assert "| operator | base us |" in (folder / "report.md").read_text()
    assert find_leftovers(stored_noise) == []
