"""GPU-minutes: who is charged, by whose word, and who is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from perfgate.cli import main
from perfgate.errors import RunnerError
from perfgate.github.settings import format_jobs, load_settings, parse_jobs
from perfgate.machine.accelerators import PRIORITIES
from perfgate.runner.admission import RunnerJob
from perfgate.runner.fleet.ledger import (
    LedgerEntry,
    Note,
    Span,
    append,
    build_note,
    leave_note,
    read_entries,
    read_note,
    settle,
)
from perfgate.runner.fleet.limits import choose_priorities, find_excess
from perfgate.runner.health import Reading
from perfgate.runner.settings import Limits
from perfgate.runner.status import Status, format_metrics

NOTE = Note(repository="o/r", run_id=21, run_attempt=1, event="pull_request", user="ada")
SPAN = Span(registered_s=1000.0, noted_s=4600.0, ended_s=6400.0)
DONE = {"runner_name": "mine", "started_at": "1970-01-01T01:20:00Z", "completed_at": "1970-01-01T01:40:00Z"}


def make_entry(**changes):
    values = {
        "slot": "0",
        "repository": "o/r",
        "run_id": 1,
        "event": "pull_request",
        "user": "ada",
        "began_s": 90_000.0,
        "gpu_minutes": 30.0,
        "is_verified": True,
    }
    return LedgerEntry(**{**values, **changes})


def test_settle__github_says_how_long():
    entry = settle("0", NOTE, [{"runner_name": "another"}, DONE], "mine", SPAN)

    assert (entry.user, entry.began_s, entry.gpu_minutes, entry.is_verified) == ("ada", 4800.0, 20.0, True)
    assert settle("0", NOTE, [DONE], "mine", replace(SPAN, gpus=2)).gpu_minutes == 40.0


@pytest.mark.parametrize(
    ("note", "jobs", "user", "minutes"),
    [
        (NOTE, None, "ada", 30.0),  # GitHub cannot be asked: the note counts, from the hook on
        (NOTE, [], "unknown", 90.0),  # no job of that run was here: a false note costs all the time of the slot
        (NOTE, [{"runner_name": "another"}], "unknown", 90.0),
        (NOTE, [DONE, DONE], "unknown", 90.0),
        (None, (), "unknown", 90.0),
    ],
)
def test_attack__a_note_that_charges_another_user(note, jobs, user, minutes):
    entry = settle("0", note, jobs, "mine", SPAN)

    assert (entry.user, entry.gpu_minutes, entry.is_verified) == (user, minutes, False)


@pytest.mark.parametrize(
    ("limits", "event", "refused"),
    [
        (Limits(user=50), "pull_request", "ada's 50 GPU-minutes"),
        (Limits(user=70), "pull_request", None),
        (Limits(repository=80), "pull_request", "o/r's 80 GPU-minutes"),
        (Limits(day=100), "schedule", "this machine's 100 GPU-minutes"),
        (Limits(user=1, repository=1, day=1), "merge_group", None),
        (Limits(), "pull_request", None),
    ],
)
def test_find_excess__within_a_day(limits, event, refused):
    entries = [
        make_entry(),
        make_entry(),
        make_entry(user="bob"),
        make_entry(user="bob", repository="o/other"),
        make_entry(began_s=100.0, gpu_minutes=9999.0),
        make_entry(began_s=4e9, gpu_minutes=9999.0),
    ]
    note = Note(repository="o/r", run_id=2, run_attempt=1, event=event, user="ada")
    told = find_excess(note, entries, limits, now_s=95_000.0)

    assert (told is None) if refused is None else told.startswith(refused)


def test_build_note__the_author_of_the_pull_request():
    job = RunnerJob(
        event="pull_request",
        repository="o/r",
        workflow_ref="",
        payload={"pull_request": {"user": {"login": "ada"}}, "sender": {"login": "bob"}},
    )
    environment = {"GITHUB_RUN_ID": "21", "GITHUB_RUN_ATTEMPT": "2"}

    assert build_note(job, environment).user == "ada"
    assert build_note(RunnerJob(event="schedule", repository="o/r", workflow_ref="", payload={}), environment).user == "unknown"
    with pytest.raises(RunnerError, match="say no run"):
        build_note(job, {})


@pytest.mark.parametrize(
    ("sender", "inputs", "user"),
    [
        ({"login": "github-actions[bot]", "type": "Bot"}, {"asked_by": "ada"}, "ada"),
        ({"login": "github-actions[bot]", "type": "Bot"}, {"asked_by": ""}, "github-actions[bot]"),
        ({"login": "github-actions[bot]", "type": "Bot"}, None, "github-actions[bot]"),
        ({"login": "bob", "type": "User"}, {"asked_by": "ada"}, "bob"),
        ({"login": "bob"}, {"asked_by": "ada"}, "bob"),
    ],
)
def test_attack__a_dispatch_in_another_s_name(sender, inputs, user):
    """A command is dispatched by the bot, which says whose it was; a person's own dispatch is that person's."""
    payload = {"sender": sender, "inputs": inputs}
    job = RunnerJob(event="workflow_dispatch", repository="o/r", workflow_ref="", payload=payload)

    assert build_note(job, {"GITHUB_RUN_ID": "21"}).user == user


def test_ledger__a_line_a_job(tmp_path):
    path = tmp_path / "ledger.jsonl"
    for number in (1, 2):
        append(path, make_entry(run_id=number, began_s=float(number)))

    assert [entry.run_id for entry in read_entries(path)] == [1, 2]
    assert [entry.run_id for entry in read_entries(path, since_s=1.5)] == [2]
    assert oct(path.stat().st_mode & 0o777) == "0o644"
    assert read_entries(tmp_path / "none") == ()
    path.write_text(path.read_text() + '{"slot": ')
    with pytest.raises(RunnerError, match="holds a line that is no entry"):
        read_entries(path)


FULL_DISK = """
import resource, sys
from pathlib import Path
from perfgate.runner.fleet.ledger import append, read_entries
path = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, resource.RLIM_INFINITY))
append(path, read_entries(path)[0])
"""


def test_append__a_disk_that_takes_half_a_line(tmp_path):
    """Half a line would keep every later job of the machine out, until somebody edits the file."""
    path = tmp_path / "ledger.jsonl"
    append(path, make_entry())
    before = path.read_bytes()

    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=False)

    assert "cannot be written (No space left on device); the ledger is root's" in done.stderr
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", ['{"repository": "o/r"}', "x", '{"repository": "../..", "run_id": 1}'])
def test_read_note__that_is_none(tmp_path, content):
    (tmp_path / "job.json").write_text(content)

    with pytest.raises(RunnerError, match="is no note of a job"):
        read_note(tmp_path)


@pytest.fixture
def settings(tmp_path, monkeypatch):
    path = tmp_path / "runner.toml"
    path.write_text(
        f'repositories = ["o/r"]\nstate = "{tmp_path}"\nfolder = "{tmp_path}/slots"\n[limits]\nuser = 120\n'
        '[slots.0]\nuser = "nobody"\ngpu = "GPU-0000"\n'
    )
    (tmp_path / "slots" / "0").mkdir(parents=True)
    (tmp_path / "slots" / "0.name").write_text("mine")
    monkeypatch.setenv("PERFGATE_RUNNER_CONFIG", str(path))
    return path


@pytest.mark.usefixtures("settings")
def test_cli__adds_and_shows(tmp_path, capsys):
    """Of another repository's run GitHub is not asked: the minutes are on no account."""
    assert main(["runner", "ledger", "add", "--slot", "0"]) == 0
    assert "no job was admitted" in capsys.readouterr().out
    leave_note(tmp_path / "slots" / "0", Note(repository="mallory/r", run_id=1, run_attempt=1, event="push", user="mallory"))
    os.utime(tmp_path / "slots" / "0.name", (0, 0))

    assert main(["runner", "ledger", "add", "--slot", "0"]) == 0
    assert main(["runner", "ledger", "show", "--days", "100000", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out.partition("\n")[2])
    assert [entry["user"] for entry in told["entries"]] == ["unknown"]
    assert told["gpu_minutes"]["unknown"] > 1e6

    (tmp_path / "slots" / "0.name").write_bytes(b"\xff")
    assert main(["runner", "ledger", "add", "--slot", "0"]) == 0
    (tmp_path / "slots" / "0.name").unlink()
    assert main(["runner", "ledger", "add", "--slot", "0"]) == 3
    assert "slot 0 was never registered on this machine" in capsys.readouterr().err


RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "perfgate.rules.yml"


def list_rules():
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("rule", list_rules(), ids=lambda rule: rule["alert"])
def test_alerts__of_metrics_that_are_written(rule):
    """Each expression is PromQL, and asks for what the status writes or node_exporter does."""
    parser = pytest.importorskip("promql_parser", reason="the test extra has it")
    reading = Reading(
        **{name: None for name in Reading.__dataclass_fields__ if name != "bus"}
        | {"index": 0, "uuid": "GPU-0", "name": "NVIDIA H20", "memory_gib": 95.0, "memory_used_share": 0.0}
    )
    status = Status(
        is_ready=True,
        slots={"0": None},
        held={},
        seeds=(),
        gpu_minutes=1.0,
        gpu_minutes_limit=2.0,
        findings=(),
        readings=(reading,),
    )
    written = {line.split("{")[0].split(" ")[0] for line in format_metrics(status).splitlines() if not line.startswith("#")}
    parser.parse(rule["expr"])
    asked = {word for word in re.findall(r"[a-z_]+", rule["expr"]) if word.startswith(("perfgate_", "node_"))}

    assert asked
    assert asked <= written | {"node_textfile_mtime_seconds"}
    assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"\d+[mhd]", rule["for"])
    assert {"summary", "action"} == rule["annotations"].keys()


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        ([], PRIORITIES),
        ([["perfgate", "h20"]], PRIORITIES),
        ([["perfgate", "h20", "perfgate-night"]], ("perfgate-night",)),
        ([["h20", "perfgate-night"], ["h20", "perfgate-queue"], ["h20", "perfgate-pull"]], ("perfgate-queue",)),
        ([["h100", "perfgate-queue"], ["h20", "perfgate-pull"]], ("perfgate-pull",)),
    ],
)
def test_choose_priorities__of_what_this_slot_may_take(waiting, expected):
    assert choose_priorities(waiting, ["perfgate", "h20"]) == expected


@pytest.mark.parametrize(
    ("text", "kinds"),
    [("", ([], [], [])), ("priorities = true\n", (["perfgate-pull"], ["perfgate-queue"], ["perfgate-night"]))],
)
def test_list_jobs__ask_for_how_urgent_they_are(tmp_path, text, kinds):
    (tmp_path / "p.toml").write_text(text + '[hardware.h20]\nscenarios = ["a"]\nsmoke = ["a"]\n')
    found = load_settings(tmp_path / "p.toml")
    asked = [found.list_jobs(), found.list_jobs(is_smoke=True), found.list_jobs(is_night=True)]

    usual = ["self-hosted", "linux", "perfgate", "h20"]
    assert [json.loads(format_jobs(jobs))[0]["runs_on"] for jobs in asked] == [[*usual, *kind] for kind in kinds]
    assert [list(job.labels) for jobs in asked for job in parse_jobs(format_jobs(jobs))] == [[*usual, *kind] for kind in kinds]
