"""What an event means: the decision table, over payloads as GitHub sends them, and hostile payloads."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.errors import InputError
from perfgate.github.asked.words import CommentCommand, parse_command
from perfgate.github.events import plan_event, read_event
from perfgate.github.outputs import MAX_SUMMARY_BYTES, MAX_VALUE, add_summary, format_annotation, write_outputs
from perfgate.github.settings import MatrixJob, format_jobs, load_settings, parse_jobs
from perfgate.report.escape import ZERO_WIDTH, markdown

HEAD, BASE = "a" * 40, "b" * 40


def make_pull(**changes):
    pull = {
        "number": 7,
        "state": "open",
        "draft": False,
        "labels": [{"name": "perfgate"}],
        "title": "a change",
        "head": {"sha": HEAD, "ref": "topic", "repo": {"full_name": "o/r"}},
        "base": {"sha": BASE, "ref": "main", "repo": {"full_name": "o/r", "default_branch": "main"}},
    }
    return {**pull, **changes}


def from_fork(name="mallory/r"):
    return make_pull(head={"sha": HEAD, "ref": "topic", "repo": {"full_name": name} if name else None})


@pytest.mark.parametrize(
    ("pull", "action"),
    [
        (make_pull(), "run"),
        (make_pull(labels=[]), "skip"),
        (make_pull(labels=[{"name": "perfgate "}, {"name": "PERFGATE"}]), "skip"),
        (make_pull(draft=True), "skip"),
        (make_pull(state="closed"), "skip"),
        (from_fork(), "await"),
        (from_fork("o/r2"), "await"),
        (from_fork(None), "await"),
        ({**from_fork(), "labels": []}, "skip"),
        ({**from_fork(), "draft": True}, "skip"),
    ],
)
def test_plan__pull_requests(pull, action):
    found = plan_event("pull_request", {"pull_request": pull})

    assert found.action == action
    assert (found.pull_request, found.head_sha, found.base_sha, found.is_smoke) == (7, HEAD, BASE, False)


def test_plan__a_merge_queue_runs_the_smoke_suite():
    found = plan_event("merge_group", {"merge_group": {"head_sha": HEAD, "base_sha": BASE}})

    assert (found.action, found.is_smoke, found.pull_request, found.head_sha) == ("run", True, 0, HEAD)


@pytest.mark.parametrize("default", [None, [], ["main"], {"main": 1}, 3])
def test_plan__a_default_branch_that_is_no_name(default):
    pull = make_pull(base={"sha": BASE, "ref": "main", "repo": {"full_name": "o/r", "default_branch": default}})

    assert plan_event("pull_request", {"pull_request": pull}).action == "refuse"
    assert plan_event("pull_request", {"pull_request": pull}, ("main",)).action == "run"


@pytest.mark.parametrize("event", ["pull_request_target", "push", "issue_comment", "workflow_run", ""])
def test_plan__no_other_event(event):
    with pytest.raises(InputError, match="plans pull_request and merge_group only"):
        plan_event(event, {"pull_request": make_pull()})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("head.sha", "main"),
        ("head.sha", "a" * 39),
        ("head.sha", "a" * 40 + "\n"),
        ("head.sha", None),
        ("base.sha", "$(id)"),
        ("number", "7; id"),
        ("number", True),
        ("number", -1),
        ("base.repo.full_name", "o/r/../x"),
        ("base.repo.full_name", "o/r\nx=1"),
        ("base.repo.full_name", None),
        ("labels", 1),
        ("labels", "perfgate"),
        ("labels", {"name": "perfgate"}),
    ],
)
def test_plan__a_field_that_could_become_code(path, value):
    pull = copy.deepcopy(make_pull())
    here = pull
    *steps, last = path.split(".")
    for step in steps:
        here = here[step]
    here[last] = value

    with pytest.raises(InputError, match=f"event: {path}: (missing or|no list)"):
        plan_event("pull_request", {"pull_request": pull})


@pytest.mark.parametrize("title", ['$(curl evil)"; id', "`id`", "${{ github.token }}", "\n::set-output name=x::y", "x" * 10**5])
def test_plan__a_hostile_title_and_branch_are_never_read(title):
    pull = make_pull(title=title, head={"sha": HEAD, "ref": title, "repo": {"full_name": "o/r"}})

    assert title not in repr(plan_event("pull_request", {"pull_request": pull}))


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff"])
def test_read_event__no_event(tmp_path, content):
    (tmp_path / "event.json").write_bytes(content)

    with pytest.raises(InputError, match="no event"):
        read_event(tmp_path / "event.json")


def test_read_event__no_file(tmp_path):
    with pytest.raises(InputError, match="is GITHUB_EVENT_PATH set"):
        read_event(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("comment", "command"),
    [
        ("/perfgate run", CommentCommand()),
        ("/perfgate rerun h20", CommentCommand(verb="rerun", hardware="h20")),
        ("/perfgate cancel", CommentCommand(verb="cancel")),
        (
            f'/perfgate accept h20 {HEAD} "it is worth it"',
            CommentCommand(verb="accept", hardware="h20", sha=HEAD, reason="it is worth it"),
        ),
        ("/perfgate accept \u201cit is worth it\u201d", CommentCommand(verb="accept", reason="it is worth it")),
        (f"  /perfgate run h20 closed {HEAD}\r\nbecause", CommentCommand(hardware="h20", scenario="closed", sha=HEAD)),
        (f"/perfgate run {HEAD}", CommentCommand(sha=HEAD)),
        (f"/perfgate run {markdown(HEAD)}", CommentCommand(sha=HEAD)),
        ("please /perfgate run", None),
        ("", None),
        (ZERO_WIDTH, None),
        ("\n\n", None),
    ],
)
def test_parse_command__what_it_takes(comment, command):
    assert parse_command(comment, ("h20", "h200"), ("closed",)) == command


@pytest.mark.parametrize(
    "comment",
    [
        "/perfgate",
        "/perfgate stop",
        "/perfgate run everything",
        "/perfgate run h20 h200",
        "/perfgate run aaaaaaaaaaaa",
        f"/perfgate run {'a' * 39}",
        "/perfgate run h20; id",
        "/perfgate run $(id)",
        "/perfgate run ../x",
        "/perfgate run h20  closed",
        "/perfgaterun",
        "/perfgate run h20 closed aaaaaaaaaaaa more",
    ],
)
def test_parse_command__what_it_refuses(comment):
    with pytest.raises(InputError):
        parse_command(comment, ("h20", "h200"), ("closed",))


@pytest.mark.parametrize(
    ("comment", "told"),
    [
        ('/perfgate accept "ok"', "takes a reason of 8 to 300 characters in quotes"),
        (f'/perfgate accept "{"x" * 301}"', "takes a reason of 8 to 300 characters in quotes"),
        ("/perfgate cancel h20 closed", "cancel is about all scenarios of a machine, not about closed alone"),
        ("/perfgate explain closed", "explain is about all scenarios of a machine, not about closed alone"),
        ('/perfgate accept closed "it is worth it"', "accept is about all scenarios of a machine, not about closed alone"),
    ],
)
def test_parse_command__says_which_word_it_does_not_take(comment, told):
    with pytest.raises(InputError, match=told):
        parse_command(comment, ("h20", "h200"), ("closed",))


@given(st.text(max_size=80))
def test_parse_command__nothing_but_known_words_gets_through(text):
    try:
        found = parse_command(f"/perfgate run {text}", ("h20",), ("closed",))
    except InputError:
        return

    assert found.hardware in {"", "h20"}
    assert found.scenario in {"", "closed"}
    assert set(found.sha) <= set("0123456789abcdef")


@pytest.mark.parametrize("value", ["a\nb=c", "a\rb", "\x00", "a\u2028b", "x" * (MAX_VALUE + 1)])
def test_attack__a_value_that_adds_a_line(tmp_path, value):
    path = tmp_path / "output"
    path.touch()

    with pytest.raises(InputError, match="holds a line break or is too long"):
        write_outputs({"good": "1", "reason": value}, {"GITHUB_OUTPUT": str(path)})
    assert path.read_text() == ""


def test_write_outputs__the_matrix_of_the_largest_settings(tmp_path):
    labels = [f"{number}{'l' * 99}" for number in range(8)]
    names = [f"{number}{'n' * 63}" for number in range(8)]
    tables = "".join(f"[hardware.{name}]\nscenarios = {names}\nruns_on = {labels}\n" for name in names)
    (tmp_path / "perfgate.toml").write_text(f"priorities = true\n{tables}")
    matrix = format_jobs(load_settings(tmp_path / "perfgate.toml").list_jobs())

    write_outputs({"matrix": matrix}, {"GITHUB_OUTPUT": str(tmp_path / "output")})
    assert len(parse_jobs((tmp_path / "output").read_text().removeprefix("matrix="))) == 64


def test_write_outputs__appends_lines(tmp_path):
    path = tmp_path / "output"
    write_outputs({"action": "run"}, {"GITHUB_OUTPUT": str(path)})
    write_outputs({"matrix": "[]"}, {"GITHUB_OUTPUT": str(path)})
    write_outputs({"name": "value"}, {})

    assert path.read_text() == "action=run\nmatrix=[]\n"


def test_add_summary__is_cut_before_github_drops_it(tmp_path):
    path = tmp_path / "summary"
    add_summary("line \N{GREEK SMALL LETTER ALPHA}\n" * 200_000, {"GITHUB_STEP_SUMMARY": str(path)})

    assert MAX_SUMMARY_BYTES / 2 < path.stat().st_size < 2**20
    assert path.read_text().rstrip().endswith("*The rest is in the artifact.*")


def test_add_summary__several_calls_share_one_file(tmp_path):
    """GitHub weighs the file, not the call: eight scenarios of half a megabyte each would lose all of it."""
    path = tmp_path / "summary"
    for _ in range(8):
        add_summary("line\n" * 100_000, {"GITHUB_STEP_SUMMARY": str(path)})

    assert path.stat().st_size <= MAX_SUMMARY_BYTES
    assert path.read_text().count("*The rest is in the artifact.*") == 1


def test_add_summary__no_room_for_a_line(tmp_path):
    path = tmp_path / "summary"
    path.write_text("x" * (MAX_SUMMARY_BYTES - 3))
    add_summary("line", {"GITHUB_STEP_SUMMARY": str(path)})

    assert path.stat().st_size < 2**20


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("100 % slower", "100 %25 slower"),
        ("a\n::add-mask::x", "a%0A::add-mask::x"),
        ("a\r::error::b", "a%0D::error::b"),
        ("x" * 5000, "x" * 4000),
    ],
)
def test_attack__a_message_that_begins_a_command(message, shown):
    assert format_annotation("error", "t", message) == f"::error title=t::{shown}"


def test_format_annotation__a_title_cannot_add_a_property():
    assert format_annotation("notice", "a,file=x::y", "m") == "::notice title=a%2Cfile=x%3A%3Ay::m"


GOOD = '[hardware.h20]\nscenarios = ["a", "b"]\nsmoke = ["a"]\n[hardware.h100]\nscenarios = ["a"]\n'


def test_load_settings__jobs(tmp_path):
    (tmp_path / "s.toml").write_text(GOOD)
    settings = load_settings(tmp_path / "s.toml")

    assert [(job.hardware, job.scenario) for job in settings.list_jobs()] == [("h100", "a"), ("h20", "a"), ("h20", "b")]
    (smoke,) = settings.list_jobs(is_smoke=True)
    assert (smoke.hardware, smoke.scenario, smoke.runs_on) == ("h20", "a", ("self-hosted", "linux", "perfgate", "h20"))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "hardware"),
        ("[hardware]", "hardware"),
        ('[hardware.h20]\nscenarios = ["../x"]', "hardware.h20.scenarios.0"),
        ("[hardware.h20]\nscenarios = []", "hardware.h20.scenarios"),
        ('[hardware."../x"]\nscenarios = ["a"]', "hardware"),
        (GOOD + "[extra]", "extra"),
        ("x = [", "not readable TOML"),
    ],
)
def test_load_settings__names_what_is_wrong(tmp_path, text, named):
    (tmp_path / "s.toml").write_text(text)

    with pytest.raises(InputError, match=rf"s\.toml: .*{named}"):
        load_settings(tmp_path / "s.toml")


@pytest.mark.parametrize(
    ("hardware", "scenario", "wanted"),
    [
        ("h20", "cpu-moe", "measures without a GPU, which slots have; leave it out"),
        ("cpu", "gpt-oss-20b-shape-mxfp4-mixed-c16", "is a machine without a GPU, which slots have; give the label of a GPU"),
        ("h20", "gpt-oss-20b-shape-mxfp4-tp2-closed-c16", r"takes 2 GPUs; list it under \[hardware\.h20-x2\]"),
        ("h20-x2", "gpt-oss-20b-shape-mxfp4-mixed-c16", r"takes 1 GPU; list it under \[hardware\.h20\]"),
        ("h20-x4", "gpt-oss-20b-shape-mxfp4-pd-closed-c16", r"takes 2 GPUs; list it under \[hardware\.h20-x2\]"),
    ],
)
def test_load_settings__a_scenario_where_slots_have_other_gpus(tmp_path, hardware, scenario, wanted):
    (tmp_path / "s.toml").write_text(f'[hardware.{hardware}]\nscenarios = ["{scenario}"]\n')

    with pytest.raises(InputError, match=rf"s\.toml: hardware\.{hardware}: (?:{scenario} )?{wanted}"):
        load_settings(tmp_path / "s.toml")


def test_load_settings__a_scenario_of_two_gpus(tmp_path):
    (tmp_path / "s.toml").write_text('[hardware.h20-x2]\nscenarios = ["gpt-oss-20b-shape-bf16-ep2-closed-c16"]\n')
    [job] = load_settings(tmp_path / "s.toml").list_jobs()

    assert job.labels == ("self-hosted", "linux", "perfgate", "h20-x2")


def test_load_settings__no_file(tmp_path):
    with pytest.raises(InputError, match="no such file; `perfgate github init` writes one"):
        load_settings(tmp_path / "s.toml")


@pytest.mark.parametrize("text", ["", "[", "{}", '[{"hardware": "h20"}]', '[{"hardware": "../x", "scenario": "a"}]', "[1]"])
def test_parse_jobs__only_what_a_plan_writes(text):
    with pytest.raises(InputError, match="give what `perfgate github plan` wrote"):
        parse_jobs(text)


def test_parse_jobs__reads_what_a_plan_writes():
    jobs = (MatrixJob(hardware="h20", scenario="a"), MatrixJob(hardware="h200", scenario="b"))

    found = parse_jobs(format_jobs(jobs))

    assert [(job.hardware, job.scenario) for job in found] == [("h20", "a"), ("h200", "b")]
    assert [job.runs_on for job in found] == [job.labels for job in jobs]
