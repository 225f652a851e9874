"""What a run comes to, with the effects as arguments: no process, no environment and no printing."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from perfgate.core import Fingerprint
from perfgate.errors import InputError
from perfgate.gate.baselines import find_path, load_baseline, save_baseline
from perfgate.gate.case import load_case
from perfgate.github.client import GitHub
from perfgate.github.comment.sections import parse, render
from perfgate.github.comment.states import State
from perfgate.github.comment.target import CommentTarget
from perfgate.github.events import find_merge_base
from perfgate.github.handoff.handoff import parse_handoff
from perfgate.github.handoff.packing import pack_folder
from perfgate.github.handoff.subject import HandoffSubject
from perfgate.github.judging import find_handoff
from perfgate.github.night.learning import learn_from
from perfgate.github.pages import WORST_PAGE, write_pages
from perfgate.github.planning import Measurement, choose_jobs, choose_resolved, name_machines, plan_measurement
from perfgate.github.reporter import MachineReport, Reporter, announce, publish
from perfgate.github.reporting import judge_machines
from perfgate.github.runs.collecting import MachineResult
from perfgate.github.runs.run import WorkflowRun
from perfgate.github.settings import JudgingOptions, MachineSettings, MatrixJob, Settings
from perfgate.report.words.length import close_folds, count_words
from tests.fakes.sessions import FACTS, SCENARIO_TEXT, make_baseline, make_scenario, make_session, write_folder

HEAD, BASE, LEFT_AT = "a" * 40, "b" * 40, "d" * 40
AT = "2026-11-21T10:00:00Z"
PULL = {
    "number": 7,
    "head": {"sha": HEAD, "repo": {"full_name": "o/r"}},
    "base": {"sha": BASE, "ref": "main", "repo": {"full_name": "o/r", "default_branch": "main"}},
}
RUN = WorkflowRun(repository="o/r", run_id=11, run_attempt=1, head_sha=HEAD, pull=PULL)
SETTINGS = Settings(
    hardware={"h20": MachineSettings(scenarios=("a", "b")), "h200": MachineSettings(scenarios=("a",), smoke=("a",))}
)


@pytest.fixture
def github(fake_github):
    fake_github.set(faults=[], log=[], comments=[], statuses=[], pulls={"7": PULL}, merge_bases={f"main...{HEAD}": LEFT_AT})
    return GitHub(token="t0ken", api_url=fake_github.url, sleep=lambda _: None)


@pytest.fixture
def summaries():
    return []


@pytest.fixture
def reporter(github, summaries):
    target = CommentTarget(repository="o/r", pull_request=7, settle_s=0.0)
    return Reporter(
        github=github,
        run=RUN,
        target=target,
        summarise=summaries.append,
        now=lambda: AT,
        note=summaries.append,
        keep=lambda _: None,
        read_comments=lambda: tuple(github.list_all(target.comments)),
    )


def write_scenario(tmp_path, name):
    """A scenario file of this side without the comparison of answers, which these sessions do not hold."""
    path = tmp_path / f"{name}.toml"
    text = SCENARIO_TEXT.replace('name = "unit"', f'name = "{name}"')
    path.write_text(text + "[equivalence]\nenabled = false\n")
    return str(path)


def measure(tmp_path, name, *, worse=0.0, hardware="test-gpu"):
    """Measure and hand over one scenario, as the GPU job does."""
    scenario = replace(make_scenario(), name=name)
    session = replace(make_session(scenario, worse=worse), scenario=name)
    folder = write_folder(tmp_path / f"measured-{name}-{worse}", session)
    record = orjson.loads((folder / "session.json").read_bytes())
    (folder / "session.json").write_bytes(orjson.dumps({**record, "scenario": name}))
    return pack_folder(folder, RUN.subject(hardware))


def make_options(*scenarios):
    return JudgingOptions(scenarios=scenarios, baselines=(), scenarios_in_pr=len(scenarios), machines=1)


def make_result(*contents, remarks=()):
    handoffs = tuple(parse_handoff(content, "test") for content in contents)
    state = State.INVALID if remarks else None
    return MachineResult(hardware="test-gpu", handoffs=handoffs, state=state, remarks=tuple(remarks))


def test_judge_machines__a_section_is_dated_and_headed_by_values(reporter, tmp_path, summaries):
    result = make_result(measure(tmp_path, "unit", worse=0.2))

    (section,) = judge_machines(reporter, [result], make_options(write_scenario(tmp_path, "unit")))

    assert (section.entry.state, section.entry.at) == (State.REGRESSION, AT)
    assert section.heading.startswith("## \N{CROSS MARK} REGRESSION (uncalibrated): ")
    assert "[run's summary](https://github.com/o/r/actions/runs/11)" in section.body
    assert len(summaries) == 1
    assert summaries[0].startswith("### \N{CROSS MARK} REGRESSION (uncalibrated): ")


@pytest.mark.parametrize(
    ("worse", "state", "heading"),
    [
        (0.0, State.INVALID, "## \N{NO ENTRY SIGN} invalid: the measurement cannot be trusted"),
        (0.2, State.REGRESSION, "## \N{CROSS MARK} REGRESSION (uncalibrated): "),
    ],
)
def test_judge_machines__what_is_missing_outweighs_a_pass_and_no_regression(reporter, tmp_path, worse, state, heading):
    result = make_result(measure(tmp_path, "unit", worse=worse), remarks=["other: no job ran"])

    (section,) = judge_machines(reporter, [result], make_options(write_scenario(tmp_path, "unit")))

    assert section.entry.state is state
    assert section.heading.startswith(heading)
    assert section.body.startswith("- other: no job ran\n- **What now:** the job's log in this run says why; remove the cause,")


@pytest.mark.parametrize("worse", [0.0, 0.2])
def test_judge_machines__what_is_missing_takes_its_words_from_the_verdict(reporter, tmp_path, worse):
    remarks = [f"scenario-{number}: its runner died before it measured, and so on" for number in range(5)]
    result = make_result(measure(tmp_path, "unit", worse=worse), remarks=remarks)

    (section,) = judge_machines(reporter, [result], make_options(write_scenario(tmp_path, "unit")))

    shown = close_folds(render({"test-gpu": section}, "https://github.com/o/r/actions/runs"))
    assert count_words(shown) <= 120
    assert shown.count("\n- scenario-") == 2
    assert "<summary>3 more that are missing</summary>\n\n- scenario-2: its runner died" in section.body


def test_judge_machines__a_regression_on_an_uncalibrated_machine_may_be_only_reported(reporter, tmp_path):
    options = replace(make_options(write_scenario(tmp_path, "unit")), uncalibrated="report")

    (section,) = judge_machines(reporter, [make_result(measure(tmp_path, "unit", worse=0.2))], options)

    assert section.entry.state is State.REPORTED
    assert section.entry.state.commit_status == "success"
    assert section.heading.startswith("## \N{CROSS MARK} REGRESSION (uncalibrated): ")


def test_judge_machines__a_regression_that_is_only_reported_does_not_pass_what_is_missing(reporter, tmp_path):
    options = replace(make_options(write_scenario(tmp_path, "unit")), uncalibrated="report")
    result = make_result(measure(tmp_path, "unit", worse=0.2), remarks=["other: no job ran"])

    (section,) = judge_machines(reporter, [result], options)

    assert section.entry.state is State.INVALID
    assert section.entry.state.commit_status == "error"


def test_publish__says_of_each_machine_what_became_of_it(reporter, fake_github):
    """The status comes first, and knows which run has answered; of that machine the comment is left as it is."""
    later = {
        "sha": HEAD,
        "context": "perfgate/h200",
        "state": "failure",
        "target_url": "https://github.com/o/r/actions/runs/12",
    }
    fake_github.set(statuses=[later])

    first, second = publish(reporter, [reporter.announce("h20", State.PASS), reporter.announce("h200", State.PASS)])

    (comment,) = fake_github.get()["comments"]
    assert parse(comment["body"]).keys() == {"h20"}
    assert first.line == f"h20: pass: {comment['html_url']}"
    assert second.facts == {"hardware": "h200", "left": "a later run has answered for this commit"}
    assert second.line == "h200: left as it is: a later run has answered for this commit"
    assert [path.split("/")[4] for path in fake_github.paths("POST")] == ["statuses", "issues"]


def test_announce__keeps_an_answer_and_ends_a_skip(reporter, fake_github):
    url = "https://github.com/o/r/actions/runs/9"
    statuses = [
        {"sha": HEAD, "context": "perfgate/h20", "state": "failure", "target_url": url},
        {"sha": HEAD, "context": "perfgate/h200", **SKIPPED, "target_url": url},
    ]
    fake_github.set(statuses=statuses)

    kept, set_ = announce(reporter, {"h20": State.RUNNING, "h200": State.RUNNING})

    assert (kept.left, set_.state) == ("a later run has answered for this commit", "running")
    assert [status["context"] for status in fake_github.get()["statuses"][2:]] == ["perfgate/h200"]
    assert fake_github.get()["comments"] == []


SKIPPED = {"state": "success", "description": "not asked for, so nothing was measured"}


def test_machine_report__without_a_comment():
    report = MachineReport(hardware="h20", state="not asked for")

    assert (report.line, report.facts) == ("h20: not asked for", {"hardware": "h20", "state": "not asked for"})


def test_write_pages__what_cannot_be_shown_is_left_out(tmp_path):
    results = [make_result(measure(tmp_path, "unit"), measure(tmp_path, "other"))]
    options = make_options(write_scenario(tmp_path, "unit"))
    lines = list(write_pages(results, options, tmp_path / "report"))

    place = tmp_path / "report" / "test-gpu"
    assert [path.name for path in place.glob("*.html")] == ["unit.html"]
    assert "<title>" in (place / "unit.html").read_text()
    assert lines[0] == f"{place / 'unit'}.html"
    assert lines[1].startswith("test-gpu: no page: scenario other is not one of this side's (unit)")
    assert lines[2:] == [str(tmp_path / "report" / WORST_PAGE)]


def test_write_pages__the_worst_sessions_page_lies_by_itself(tmp_path):
    results = [make_result(measure(tmp_path, "unit")), make_result(measure(tmp_path, "slow", worse=0.2))]
    options = make_options(write_scenario(tmp_path, "unit"), write_scenario(tmp_path, "slow"))
    list(write_pages(results, options, tmp_path / "report"))

    page, slow = (tmp_path / "report" / name for name in (WORST_PAGE, "test-gpu/slow.html"))
    assert page.read_text().partition("</header>")[0] == slow.read_text().partition("</header>")[0]


def test_write_pages__a_folder_keeps_the_noise_that_it_was_judged_by(tmp_path, monkeypatch):
    """Who downloads it has no bands of the repository's own, and is promised the verdict of the comment."""
    scenario = make_scenario()
    bands = tmp_path / "trusted" / "baselines"
    save_baseline(make_baseline(scenario, sessions=10), find_path(bands, Fingerprint(facts=FACTS), scenario.name))
    monkeypatch.setenv("PERFGATE_STATE", str(bands.parent))
    options = make_options(write_scenario(tmp_path, "unit"))
    list(write_pages([make_result(measure(tmp_path, "unit"))], options, tmp_path / "report"))
    folder = tmp_path / "report" / "test-gpu" / "unit"
    there = load_case(folder).verdict

    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "readers"))
    here = load_case(folder)
    assert there.policy["aa_blocks"] == 20
    assert (here.verdict, here.session.noise) == (there, str(folder / "baselines"))


def test_write_pages__of_nothing(tmp_path):
    assert list(write_pages([], make_options(), tmp_path / "report")) == []
    assert not (tmp_path / "report").exists()


JOB = MatrixJob(hardware="test-gpu", scenario="unit")


def learn(tmp_path, *scenarios):
    """What a baseline below `tmp_path` takes in of the jobs of `scenarios`, of which `unit` alone handed something over."""
    path, _ = find_handoff(tmp_path, JOB, RUN.subject("test-gpu"))
    if not path.exists():
        path.parent.mkdir()
        path.write_bytes(measure(tmp_path, "unit"))
    subjects = [(replace(JOB, scenario=name), RUN.subject("test-gpu")) for name in scenarios]
    return list(learn_from(subjects, tmp_path, (write_scenario(tmp_path, "unit"),), tmp_path / "baselines"))


def test_learn_from__names_a_session_after_the_run(tmp_path):
    (lesson,) = learn(tmp_path, "unit")

    (stored,) = (tmp_path / "baselines").rglob("*.json")
    assert {start.session for start in load_baseline(stored).starts} == {"run-11-1-test-gpu"}
    assert {start.commit for start in load_baseline(stored).starts} == {HEAD}
    assert lesson.message.startswith(f"{stored}: built (1 session, ")
    assert lesson.facts == {"hardware": "test-gpu", "scenario": "unit"}


def test_learn_from__a_refusal_is_a_warning_and_the_next_job_goes_on(tmp_path):
    learn(tmp_path, "unit")
    missing, refused = learn(tmp_path, "missing", "unit")

    assert "handoff-missing.json: no such file" in missing.problem
    assert refused.message.startswith("::warning title=perfgate test-gpu unit::session run-11-1-test-gpu is in the baseline")
    assert refused.facts["problem"].startswith("session run-11-1-test-gpu is in the baseline already")


@pytest.mark.parametrize(
    ("hardware", "scenarios", "chosen"),
    [
        ("", "", [("h20", "a"), ("h20", "b"), ("h200", "a")]),
        ("h20", "", [("h20", "a"), ("h20", "b")]),
        ("", " a ,", [("h20", "a"), ("h200", "a")]),
        ("h20", "b", [("h20", "b")]),
    ],
)
def test_choose_jobs__by_machine_and_scenario(hardware, scenarios, chosen):
    jobs = choose_jobs(SETTINGS, hardware, scenarios)

    assert [(job.hardware, job.scenario) for job in jobs] == chosen
    assert name_machines(jobs) == tuple(sorted({name for name, _ in chosen}))


@pytest.mark.parametrize(("hardware", "scenarios"), [("h100", ""), ("h200", "b"), ("", "a,c")])
def test_choose_jobs__what_the_settings_do_not_have(hardware, scenarios):
    with pytest.raises(InputError, match="--hardware, --only: the settings have no such machine"):
        choose_jobs(SETTINGS, hardware, scenarios)


def test_plan_measurement__a_queue_asks_no_client():
    payload = {"merge_group": {"head_sha": HEAD, "base_sha": BASE}}

    def connect():
        raise InputError("a token was asked for")

    outputs = plan_measurement("merge_group", payload, SETTINGS, connect)

    assert (outputs["action"], outputs["base_sha"], outputs["scenarios"]) == ("run", BASE, "3")
    labels = ["self-hosted", "linux", "perfgate", "h200"]
    assert orjson.loads(outputs["matrix"]) == [{"hardware": "h200", "scenario": "a", "runs_on": labels}]


def test_measurement__its_outputs_are_lines_of_text(github):
    base = find_merge_base(github, PULL)
    measurement = Measurement(pull_request=7, head_sha=HEAD, base_sha=base, jobs=(JOB,), scenarios=1)

    assert measurement.outputs == {
        "pull_request": "7",
        "head_sha": HEAD,
        "base_sha": LEFT_AT,
        "matrix": '[{"hardware":"test-gpu","scenario":"unit","runs_on":["self-hosted","linux","perfgate","test-gpu"]}]',
        "scenarios": "1",
        "resolve": "",
    }


@pytest.mark.parametrize(
    ("hardware", "is_on", "resolved"), [("", True, ("h20", "h200")), ("h200", True, ("h200",)), ("", False, ())]
)
def test_choose_resolved__the_machines_of_these_jobs(hardware, is_on, resolved):
    settings = replace(SETTINGS, resolve=is_on)
    jobs = choose_jobs(settings, hardware, "")

    assert choose_resolved(settings, jobs) == resolved
    payload = {"merge_group": {"head_sha": HEAD, "base_sha": BASE}}
    assert plan_measurement("merge_group", payload, settings, GitHub)["resolve"] == ("h200" if is_on else "")


def test_outputs__each_gpu_is_asked_about_once():
    """A slot of several is asked about by its GPU, which `perfgate resolve` knows."""
    resolved = ("h20", "h20-x2", "h200-x2")
    measurement = Measurement(pull_request=7, head_sha=HEAD, base_sha=BASE, jobs=(JOB,), scenarios=1, resolved=resolved)

    assert measurement.outputs["resolve"] == "h20,h200"


def test_subject__of_a_run_names_the_machine():
    assert RUN.subject("h20") == HandoffSubject(
        repository="o/r", pull_request=7, head_sha=HEAD, run_id=11, run_attempt=1, hardware="h20"
    )
