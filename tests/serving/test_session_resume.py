"""A session that was cut off goes on: at any instant, in the same folder, without a window counted twice or lost silently."""

import json
import os
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from perfgate.check import judge
from perfgate.core import Role
from perfgate.errors import EvidenceError
from perfgate.machine.folder_lock import LOCK_FILE, lock_folder
from perfgate.results.folders import find_differences, read_progressed, require_cut_off
from perfgate.results.results import load_results
from perfgate.scenario.catalog import load_scenario
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.injection.injection_log import PROOF
from perfgate.serving.measure import measure
from perfgate.storage.rounding import format_verdict
from tests.e2e.commands import find_leftovers, wait_for_leftovers
from tests.fakes.commands import copy_without_break, kill_at, read_lines, run_perfgate, start_perfgate
from tests.fakes.requests import KeptProgress, build_request, build_text, list_problems, use_fake_engine, use_fake_processes

# Two blocks of two starts each; two windows of a start warm it up.
MEASURED = load_scenario("cpu-moe").blocks.windows
A_BLOCK = 2 * (2 + MEASURED)
WINDOWS = 2 * A_BLOCK


@pytest.fixture(autouse=True)
def fake_engine(monkeypatch, tmp_path):
    use_fake_engine(monkeypatch, tmp_path)


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "scenario.toml"
    path.write_text(build_text(**{"calibrate_first = true": "calibrate_first = false"}))
    return path


class Cutting(KeptProgress):
    """Ends the run, as a crash would, once it was told `count` windows."""

    def __init__(self, count):
        super().__init__()
        self.count = count

    def step(self, text):
        super().step(text)
        self.count -= "tok/s" in text
        if self.count == 0:
            raise KeyboardInterrupt


def cut_off(folder, count, **changes):
    progress = Cutting(count)
    try:
        measure(build_request(folder, **changes), progress)
    except KeyboardInterrupt:
        return
    pytest.fail(f"it ended before it was cut off: {progress.lines[-5:]}")


def resume(folder, **changes):
    progress = KeptProgress()
    request = build_request(folder, **changes)
    measure(replace(request, resume=True), progress)
    return progress.lines


def judged(session):
    return [(window.block, window.arm.value, window.role.value) for window in session.windows]


@pytest.mark.parametrize("count", [1, A_BLOCK - 1, A_BLOCK + 3])
def test_measure__goes_on_after_a_cut(tmp_path, count):
    whole = count // A_BLOCK
    cut_off(tmp_path / "out", count)
    before = (tmp_path / "out" / "windows.jsonl").read_bytes()
    lines = resume(tmp_path / "out")
    _, session = load_results(tmp_path / "out")
    [event] = [event for event in read_lines(tmp_path / "out", "events.jsonl") if event["event"] == "resumed"]

    assert session.is_complete
    assert list_problems(session) == ()
    assert len(session.windows) == WINDOWS
    assert len(session.superseded) == len(event["superseded"]) == count - whole * A_BLOCK
    assert (tmp_path / "out" / "windows.jsonl").read_bytes().startswith(before)
    assert any(f"continuing after {whole} complete blocks; block {whole + 1} is measured again" in line for line in lines)


def test_measure__a_second_cut_supersedes_only_what_came_after_the_first(tmp_path):
    cut_off(tmp_path / "out", 3)
    with pytest.raises(KeyboardInterrupt):
        measure(replace(build_request(tmp_path / "out"), resume=True), Cutting(2))
    resume(tmp_path / "out")
    _, session = load_results(tmp_path / "out")
    named = [event["superseded"] for event in read_lines(tmp_path / "out", "events.jsonl") if event["event"] == "resumed"]

    assert [len(files) for files in named] == [3, 2]
    assert len(session.superseded) == 5
    assert len(session.windows) == WINDOWS
    assert list_problems(session) == ()


def test_measure__the_clock_of_the_session_goes_on(tmp_path):
    cut_off(tmp_path / "out", A_BLOCK + 1)
    known_s = read_progressed(tmp_path / "out").elapsed_s
    resume(tmp_path / "out")
    _, session = load_results(tmp_path / "out")

    assert known_s > 0
    assert min(window.begun_s for window in session.windows if window.block == 2) >= known_s


def test_measure__a_look_that_decided_before_the_cut_still_does(tmp_path):
    cut_off(tmp_path / "out", 2 * A_BLOCK + 1, looks=(2, 3))
    lines = resume(tmp_path / "out", looks=(2, 3), is_decided=lambda _: True)
    _, session = load_results(tmp_path / "out")

    assert "decided after 2 blocks" in lines
    assert {window.block for window in session.windows} == {1, 2}
    assert len(session.superseded) == 1


def test_measure__a_request_that_failed_before_the_cut_still_voids(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_BENCH", "drop_one")
    cut_off(tmp_path / "out", 3)
    monkeypatch.setenv("FAKE_BENCH", "ok")
    resume(tmp_path / "out")
    _, session = load_results(tmp_path / "out")

    assert "block 1, base, before it was cut off: 7 of 8 requests completed" in " ".join(list_problems(session))


def test_measure__half_a_line_and_a_window_without_its_line(tmp_path):
    cut_off(tmp_path / "out", 3)
    with (tmp_path / "out" / "windows.jsonl").open("ab") as index:
        index.write(b'{"arm":"base","blo')
    (tmp_path / "out" / "windows" / "0003.jsonl.gz").write_bytes(b"written, and its line was not")
    resume(tmp_path / "out")
    _, session = load_results(tmp_path / "out")
    [event] = [event for event in read_lines(tmp_path / "out", "events.jsonl") if event["event"] == "resumed"]

    assert event["unindexed"] == ["windows/0003.jsonl.gz"]
    assert (tmp_path / "out" / "windows" / "0003.jsonl.gz").read_bytes() == b"written, and its line was not"
    assert len(session.windows) == WINDOWS
    assert list_problems(session) == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"candidate": ArmSpec(env={"A": "1"})}, "arms.candidate.env.A was absent and is 1"),
        ({"looks": (2, 3)}, "looks was 2 and is 2 3"),
        ({"margin = 0.50": "margin = 0.40"}, "gates.p99_itl_ms.margin was 0.5 and is 0.4"),
        ({"fields": {"notes": ("another",)}}, "notes was nothing and is another"),
    ],
)
def test_measure__another_session_is_not_gone_on_with(tmp_path, changes, words):
    cut_off(tmp_path / "out", 1)
    before = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "out").rglob("*.*") if path.name != LOCK_FILE)

    with pytest.raises(EvidenceError, match=words) as caught:
        resume(tmp_path / "out", **changes)

    assert caught.value.exit_code == 2
    assert sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "out").rglob("*.*")) == before


def test_measure__a_stored_scenario_that_was_changed_is_not_gone_on_with(tmp_path):
    cut_off(tmp_path / "out", 1)
    stored = tmp_path / "out" / "scenario.toml"
    stored.write_text(stored.read_text().replace("margin = 0.50", "margin = 0.40"))

    with pytest.raises(EvidenceError, match=r"scenario\.toml is not the one that was fixed before the first window"):
        resume(tmp_path / "out", **{"margin = 0.50": "margin = 0.40"})


def test_measure__another_comment_in_the_scenario_is_gone_on_with(tmp_path):
    cut_off(tmp_path / "out", 1)
    resume(tmp_path / "out", **{"[load]": "# The load.\n[load]"})

    assert list_problems(load_results(tmp_path / "out")[1]) == ()


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [(None, "1", "was absent and is 1"), ("1", "2", "was 1 and is 2"), ("1", None, "was 1 and is absent")],
)
def test_measure__inherited_variable_that_changed(tmp_path, monkeypatch, before, now, words):
    def export(value):
        monkeypatch.delenv("SGLANG_X", raising=False)
        if value is not None:
            monkeypatch.setenv("SGLANG_X", value)

    export(before)
    cut_off(tmp_path / "out", 1)
    export(now)

    with pytest.raises(EvidenceError, match=f"cannot go on: the variable SGLANG_X, which servers inherit, {words}; set it as"):
        resume(tmp_path / "out")


def test_measure__folder_from_before_inherited_variables_were_kept(tmp_path, monkeypatch):
    cut_off(tmp_path / "out", 1)
    path = tmp_path / "out" / "session.json"
    record = json.loads(path.read_text())
    del record["inherited"]
    path.write_text(json.dumps(record))
    monkeypatch.setenv("SGLANG_X", "1")
    resume(tmp_path / "out")
    _, session = load_results(tmp_path / "out")

    assert session.is_complete
    assert list_problems(session) == ()


@pytest.mark.parametrize(
    ("key", "words"),
    [("perfgate", "perfgate was 0.0 and is"), ("rule", "rule was 0.0 and is"), ("facts", "facts.kernel was 0.0 and is")],
)
def test_measure__another_version_rule_or_machine(tmp_path, key, words):
    cut_off(tmp_path / "out", 1)
    path = tmp_path / "out" / "session.json"
    record = json.loads(path.read_text())
    if key == "facts":
        record["arms"]["base"]["facts"]["kernel"] = "0.0"
    else:
        record[key] = "0.0"
    path.write_text(json.dumps(record))

    with pytest.raises(EvidenceError, match=words):
        resume(tmp_path / "out")


def test_measure__a_locked_folder(tmp_path):
    with lock_folder(tmp_path / "out"), pytest.raises(EvidenceError, match=f"process {os.getpid()} writes there"):
        measure(build_request(tmp_path / "out"), KeptProgress())

    assert not (tmp_path / "out" / "session.json").exists()


def test_find_differences__nested():
    before, now = {"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 4}, "e": 5}

    assert list(find_differences(before, now)) == [("a.c", 2, 4), ("d", 3, None), ("e", None, 5)]


@pytest.mark.parametrize("line", ['{"event": "block_ended"}', '{"event": "x", "at_s": "1"}', '{"event": "x", "at_s": -1}'])
def test_read_progressed__damaged_events(tmp_path, line):
    (tmp_path / "events.jsonl").write_text(line + "\n")

    with pytest.raises(EvidenceError, match="is no number; the folder was damaged"):
        read_progressed(tmp_path)


def test_require_cut_off__ended(tmp_path):
    measure(build_request(tmp_path / "out"), KeptProgress())

    with pytest.raises(EvidenceError, match="its session has ended"):
        require_cut_off(tmp_path / "out")
    with pytest.raises(EvidenceError, match="no such result folder"):
        require_cut_off(tmp_path / "none")


# --- The command itself, killed for real ---


# From before the first server to after the last window; each is another instant of the session.
@pytest.mark.parametrize(
    ("lines", "use"),
    [(1, use_fake_processes), (4, use_fake_engine), (9, use_fake_processes), (17, use_fake_engine), (24, use_fake_engine)],
)
def test_gate__killed_and_resumed_judges_as_the_same_windows_undisturbed(*, tmp_path, monkeypatch, scenario, lines, use):
    use(monkeypatch, tmp_path)
    folder = tmp_path / "out"
    command = ("gate", scenario, "--out", folder, "--candidate-env", "FAKE_SLOW=2.0")
    # However late it is killed, it has not ended: its last servers, which are to be profiled, do not come up.
    limit = {"FAKE_SERVERS": f"{tmp_path / 'servers'}:4"}
    kill_at(start_perfgate(tmp_path / "state", *command, **limit), folder, lines)
    code, out, err = run_perfgate(tmp_path / "state", *command, "--resume")
    _, session = load_results(folder)
    parsed, undisturbed = load_results(copy_without_break(folder, tmp_path / "undisturbed"))
    files = [line["file"] for line in read_lines(folder, "windows.jsonl")]
    places = Counter(judged(session))

    assert code == 1, out + err
    assert wait_for_leftovers(tmp_path / "state") == []
    assert len(files) == len(set(files)) == len(session.windows) + len(session.superseded)
    assert {places[block, arm, Role.MEASURED.value] for block, arm, _ in judged(session)} == {MEASURED}
    assert undisturbed.superseded == ()
    assert format_verdict(judge(undisturbed, parsed, None)) == (folder / "verdict.json").read_bytes()


def test_gate__resumes_its_calibration(tmp_path):
    path = tmp_path / "scenario.toml"
    path.write_text(build_text())
    command = ("gate", path, "--out", tmp_path / "out")
    limit = {"FAKE_SERVERS": f"{tmp_path / 'servers'}:2"}
    kill_at(start_perfgate(tmp_path / "state", *command, **limit), tmp_path / "out-calibration" / "aa", 9)
    refused = run_perfgate(tmp_path / "state", *command)
    # What is left of a gate that was killed before its comparison had a name.
    (tmp_path / "out").mkdir()
    code, out, err = run_perfgate(tmp_path / "state", *command, "--resume")
    ended = run_perfgate(tmp_path / "state", *command, "--resume")

    assert refused[0] == 2
    assert "continue with --resume" in refused[2]
    assert code in (0, 3), out + err
    assert list((tmp_path / "state" / "baselines").glob("*/cpu-moe.json")), out + err
    assert (ended[0], ended[2].count("\n")) == (2, 1)
    assert "its session has ended" in ended[2]


def test_calibrate__effects_go_on_where_they_were_cut_off(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_SAYS", f"{PROOF}: step:0.05")
    path, out, stored = tmp_path / "scenario.toml", tmp_path / "raw", tmp_path / "baselines"
    path.write_text(build_text())
    command = ("calibrate", path, "--blocks", "2", "--effects", "5,10", "--out", out, "--to", stored)
    # Four servers of equal arms, then those of one block.
    limit = {"FAKE_SERVERS": f"{tmp_path / 'servers'}:6"}
    kill_at(start_perfgate(tmp_path / "state", *command, **limit), out / "injected-step-0.05", 9)
    quiet = (out / "aa" / "windows.jsonl").read_bytes()
    refused = run_perfgate(tmp_path / "state", *command)
    code, told, err = run_perfgate(tmp_path / "state", *command, "--resume")
    assert code == 0, told + err
    baseline = json.loads(Path(told.strip()).read_text())
    injected = {found["injected_ratio"] for metric in baseline["metrics"].values() for found in metric["sensitivity"]}

    assert refused[0] == 2
    assert "continue with --resume" in refused[2]
    assert (out / "aa" / "windows.jsonl").read_bytes() == quiet
    assert injected == {0.05, 0.1}


def test_gate__killed_between_the_last_window_and_the_report(tmp_path, scenario):
    command = ("gate", scenario, "--out", tmp_path / "out", "--candidate-env", "FAKE_SLOW=2.0")
    first = run_perfgate(tmp_path / "state", *command)
    verdict = (tmp_path / "out" / "verdict.json").read_bytes()
    for name in ("verdict.json", "report.md"):
        (tmp_path / "out" / name).unlink()
    windows = (tmp_path / "out" / "windows.jsonl").read_bytes()
    second = run_perfgate(tmp_path / "state", *command, "--resume")

    assert (first[0], second[0]) == (1, 1)
    assert (tmp_path / "out" / "verdict.json").read_bytes() == verdict
    assert (tmp_path / "out" / "report.md").exists()
    assert (tmp_path / "out" / "windows.jsonl").read_bytes() == windows


@pytest.mark.parametrize("profiled", [0, 1])
def test_gate__killed_between_the_verdict_and_the_profile_of_an_arm(tmp_path, scenario, profiled):
    folder = tmp_path / "out"
    command = ("gate", scenario, "--out", folder, "--candidate-env", "FAKE_SLOW=2.0")
    # Four servers measure two blocks, the next two are profiled.
    process = start_perfgate(tmp_path / "state", *command, FAKE_SERVERS=f"{tmp_path / 'servers'}:{4 + profiled}")
    while len(read_profiles(folder)) < profiled or not (folder / "verdict.json").exists():
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_for_leftovers(tmp_path / "state")
    before, verdict = read_profiles(folder), (folder / "verdict.json").read_bytes()
    code, out, err = run_perfgate(tmp_path / "state", *command, "--resume")
    ended = run_perfgate(tmp_path / "state", *command, "--resume")

    assert code == 1, out + err
    assert len(before) == profiled
    assert read_profiles(folder)[:profiled] == before
    assert [(line["arm"], line["block"]) for line in read_profiles(folder)] == [("base", 0), ("candidate", 0)]
    assert (folder / "verdict.json").read_bytes() == verdict
    assert "fused_moe_kernel" in (folder / "report.md").read_text()
    assert (ended[0], "its session has ended" in ended[2]) == (2, True)


def read_profiles(folder):
    return read_lines(folder, "profiles.jsonl") if (folder / "profiles.jsonl").exists() else []


def test_run__resume_of_what_was_never_begun(tmp_path, scenario):
    without_folder = run_perfgate(tmp_path / "state", "run", scenario, "--resume", "--parent", tmp_path / "perfgate-results")
    nothing = run_perfgate(tmp_path / "state", "run", scenario, "--resume", "--out", tmp_path / "none")

    assert (without_folder[0], nothing[0]) == (2, 2)
    assert "perfgate-results: no such folder; sessions go to" in without_folder[2]
    assert "no such result folder" in nothing[2]
    assert not (tmp_path / "none").exists()


def test_run__two_at_once_in_one_folder(tmp_path, scenario):
    command = ("run", scenario, "--out", tmp_path / "out")
    first = start_perfgate(tmp_path / "state", *command, FAKE_ENGINE="hang:3")
    while not (tmp_path / "out" / "windows.jsonl").exists():
        time.sleep(0.01)
    code, _, err = run_perfgate(tmp_path / "state", *command, "--resume")
    first.send_signal(signal.SIGINT)
    said = first.communicate()
    resumed = run_perfgate(tmp_path / "state", *command, "--resume")

    assert code == 2
    assert f"process {first.pid} writes there" in err
    assert first.returncode == 130, said
    assert resumed[0] == 0, resumed[2]
    assert find_leftovers(tmp_path / "state") == []
