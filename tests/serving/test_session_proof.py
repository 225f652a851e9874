"""The path under test is seen to run, or the session is void; a regression is explained by the kernels of both arms."""

import json
from dataclasses import replace

import pytest

from perfgate.check import judge
from perfgate.cli import main
from perfgate.core import Arm, Outcome, Role
from perfgate.errors import EvidenceError, ScenarioError
from perfgate.gate.gate import GateJob, run_gate
from perfgate.results.profiling.profiles import load_profiles, read_attribution
from perfgate.results.records import read_record
from perfgate.results.results import load_results
from perfgate.scenario.safeguards import Expect
from perfgate.scenario.schema import parse_scenario
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.engine.startup import find_line
from perfgate.serving.measure import measure, read_expect
from perfgate.serving.proof import SUM_FUSED, SUM_REDUCED, find_expect
from perfgate.verdict.validity.kernel_proof import describe_proof
from perfgate_moe.proof.values import Build, Exam, KernelFinding, KernelProof
from tests.fakes.requests import KeptProgress, build_request, build_text, list_problems, use_fake_engine

FUSED = {"FAKE_KERNELS": "fused_moe_kernel:33,attention:20"}


@pytest.fixture(autouse=True)
def fake_engine(monkeypatch, tmp_path):
    use_fake_engine(monkeypatch, tmp_path)


def run(folder, expect, env=FUSED, **changes):
    """Measure two blocks of which `expect` must be seen, and load the folder."""
    request = build_request(folder, candidate=ArmSpec(env=env), fields={"expect": expect}, **changes)
    measure(request, KeptProgress())
    return load_results(folder)


def make_kernels(*wrong):
    """Both arms examined; the candidate is wrong in `wrong`."""
    found = tuple(KernelFinding(name=name, problem="relative error 1") for name in wrong)
    return KernelProof(
        builds=tuple(Build(arm=arm, arch="sm_90", kernels=6) for arm in Arm),
        exams=(
            Exam(arm=Arm.BASE, implementation="sglang", sound=9, worst=0.5),
            Exam(arm=Arm.CANDIDATE, implementation="sglang", sound=9 - len(wrong), worst=0.5, wrong=found),
        ),
    )


def test_measure__wrong_kernels_cost_no_machine_time(tmp_path):
    measure(build_request(tmp_path / "out", fields={"kernels": make_kernels("E=8")}), KeptProgress())
    scenario, session = load_results(tmp_path / "out")
    verdict = judge(session, scenario, None)

    assert session.windows == ()
    assert [event["event"] for event in list_events(tmp_path / "out")] == ["session_ended"]
    assert verdict.outcome is Outcome.INVALID
    assert verdict.reasons[0].startswith("kernels: the candidate's sglang is wrong in 1 of 9 cases, first in E=8")


def test_measure__right_kernels_stand_in_the_report(tmp_path):
    measure(build_request(tmp_path / "out", fields={"kernels": make_kernels()}), KeptProgress())
    _, session = load_results(tmp_path / "out")

    assert list_problems(session) == ()
    assert "; sglang right in 9 of 9 cases" in describe_proof(session.kernels)


def test_measure__another_proof_does_not_go_on(tmp_path):
    """What was fixed before the first window stays."""
    measure(build_request(tmp_path / "out", fields={"kernels": make_kernels("E=8")}), KeptProgress())

    with pytest.raises(EvidenceError, match="cannot go on: kernels"):
        measure(build_request(tmp_path / "out", fields={"kernels": make_kernels(), "resume": True}), KeptProgress())


def list_events(folder):
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_measure__path_under_test_is_seen(tmp_path):
    expect = Expect(kernels=("fused_moe", "^attention$"), absent=("moe_sum",))
    _, session = run(tmp_path / "out", expect)
    profiles = load_profiles(tmp_path / "out")

    assert list_problems(session) == ()
    assert {window.block for window in session.windows} == {1, 2}
    assert [(profile.arm.value, profile.block) for profile in profiles] == [("base", 1), ("candidate", 1)]


@pytest.mark.parametrize(
    ("expect", "words"),
    [
        (
            Expect(kernels=("fused_down_sum",)),
            "block 1, candidate, start 2: no kernel matches 'fused_down_sum' among 2 (most time: fused_moe_kernel, attention)",
        ),
        (
            Expect(absent=("attention",)),
            "block 1, candidate, start 2: kernel attention ran 6 times where 'attention' must not run",
        ),
        (
            Expect(log=("perfgate moe active",)),
            "candidate: no line of its log matches 'perfgate moe active': what was measured",
        ),
    ],
)
def test_measure__path_under_test_did_not_run(tmp_path, expect, words):
    """One block is enough to know it; no second one is measured."""
    scenario, session = run(tmp_path / "out", expect)

    [problem] = list_problems(session)
    assert problem.startswith(words)
    assert {window.block for window in session.windows} == {1}
    assert judge(session, scenario, None).outcome is Outcome.INVALID


def test_measure__line_of_the_log_is_seen(tmp_path):
    _, session = run(tmp_path / "out", Expect(log=("active: .*down",)), env={"FAKE_LOG": "perfgate moe active: fused down-sum"})
    [event] = [event for event in list_events(tmp_path / "out") if event["event"] == "log_expected"]

    assert list_problems(session) == ()
    assert event["line"] == "perfgate moe active: fused down-sum"


ASKED = {"SGLANG_MOE_FUSE_DOWN_SUM_REDUCE": "1"}


def test_measure__variable_of_the_moe_path_brings_its_expectation(tmp_path):
    progress = KeptProgress()
    candidate = ArmSpec(env={**ASKED, "FAKE_LOG": "perfgate moe active: auto: slots/eager 1"})
    measure(build_request(tmp_path / "out", candidate=candidate), progress)
    _, session = load_results(tmp_path / "out")

    assert list_problems(session) == ()
    assert read_record(tmp_path / "out").expect == Expect(log=("perfgate moe active",))
    [told] = [line for line in progress.lines if "must show" in line]
    assert told.startswith("the candidate asks for another MoE path, so it must show a line 'perfgate moe active' in its log;")


def test_measure__variable_that_is_never_read_is_found_before_the_windows_that_count(tmp_path):
    measure(build_request(tmp_path / "out", candidate=ArmSpec(env=ASKED)), KeptProgress())
    scenario, session = load_results(tmp_path / "out")
    verdict = judge(session, scenario, None)

    assert {window.role for window in session.windows if window.arm is Arm.CANDIDATE} == {Role.WARMUP}
    [problem] = list_problems(session)
    assert problem.startswith("candidate: no line of its log matches 'perfgate moe active': what was measured is not what was")
    assert problem.endswith(
        "a branch of SGLang that reads SGLANG_MOE_FUSE_DOWN_SUM_REDUCE itself needs its own --expect-log or --expect-kernel"
    )
    assert verdict.outcome is Outcome.INVALID
    assert problem in verdict.reasons


def test_measure__what_the_user_expects_replaces_it(tmp_path):
    progress = KeptProgress()
    expect = Expect(log=("own line",))
    candidate = ArmSpec(env={**ASKED, "FAKE_LOG": "own line"})
    measure(build_request(tmp_path / "out", candidate=candidate, fields={"expect": expect}), progress)
    _, session = load_results(tmp_path / "out")

    assert list_problems(session) == ()
    assert read_record(tmp_path / "out").expect == expect
    assert not any("must show" in line for line in progress.lines)


@pytest.mark.parametrize(
    ("kernels", "words"),
    [
        ("fused_moe_kernel:33,fill<FillFunctor<c10::BFloat16>>:1", []),
        (
            "fused_moe_kernel:30,moe_sum_reduce:6",
            ["block 1, candidate, start 2: kernel moe_sum_reduce still runs where"],
        ),
        ("fused_moe_kernel:33", ["block 1, candidate, start 2: kernels that match 'FillFunctor"]),
    ],
)
def test_measure__fused_sum_shows_by_what_differs_from_the_base(tmp_path, kernels, words):
    candidate = ArmSpec(args=("--enable-fused-moe-sum-all-reduce",), env={"FAKE_KERNELS": kernels})
    progress = KeptProgress()
    measure(build_request(tmp_path / "out", candidate=candidate), progress)
    _, session = load_results(tmp_path / "out")

    expect = read_record(tmp_path / "out").expect
    assert (expect.kernels, expect.removed, expect.added) == ((), (SUM_REDUCED,), (SUM_FUSED,))
    assert len(list_problems(session)) == len(words)
    assert all(problem.startswith(start) for problem, start in zip(list_problems(session), words, strict=True))
    assert any(line.startswith("the candidate asks for another MoE path, so it must show that") for line in progress.lines)


@pytest.mark.parametrize(
    ("base", "candidate", "log"),
    [
        ({}, "slots", ("perfgate moe active",)),
        ({}, "true", ("perfgate moe active",)),
        ({"SGLANG_MOE_FUSE_DOWN_SUM_REDUCE": "slots"}, "owner", ("perfgate moe active",)),
        ({"SGLANG_MOE_FUSE_DOWN_SUM_REDUCE": "slots"}, "slots", ()),
        ({}, "0", ()),
        ({}, "off", ()),
        ({}, "", ()),
    ],
)
def test_find_expect__variable_that_sets_the_candidate_apart(base, candidate, log):
    arms = {Arm.BASE: ArmSpec(env=base), Arm.CANDIDATE: ArmSpec(env={"SGLANG_MOE_FUSE_DOWN_SUM_REDUCE": candidate})}

    assert find_expect(parse_scenario(build_text(), "test"), arms) == Expect(log=log)


def test_find_expect__fused_sum_of_both_arms_is_no_change():
    arms = dict.fromkeys(Arm, ArmSpec(args=("--enable-fused-moe-sum-all-reduce",)))

    assert find_expect(parse_scenario(build_text(), "test"), arms).is_empty


def test_read_expect__calibration_has_no_path_under_test(tmp_path):
    request = build_request(tmp_path / "out", candidate=ArmSpec(env=ASKED), fields={"purpose": "calibration"})

    assert read_expect(request).is_empty


@pytest.mark.parametrize("fault", ["refuse", "traceless", "truncated", "empty", "page"])
def test_measure__profile_that_proves_nothing(tmp_path, fault):
    scenario, session = run(tmp_path / "out", Expect(kernels=("fused_moe",)), env={"FAKE_PROFILE": fault})

    assert len(list_problems(session)) == 1
    assert judge(session, scenario, None).outcome is Outcome.INVALID


def test_measure__lost_profile_is_missed(tmp_path):
    run(tmp_path / "out", Expect(kernels=("fused_moe",)))
    (tmp_path / "out" / "profiles.jsonl").unlink()
    _, session = load_results(tmp_path / "out")

    assert list_problems(session) == (
        "candidate: it was never profiled, so it is unknown whether the path under test ran; measure again",
    )


def test_measure__scenario_says_what_to_expect(tmp_path):
    expected = {"[warmup]": '[expect]\nkernels = ["fused_down_sum"]\n\n[warmup]'}
    _, session = run(tmp_path / "out", Expect(), **expected)

    assert "no kernel matches 'fused_down_sum' among 2" in list_problems(session)[0]


def test_measure__profiler_that_fails_where_nothing_is_expected(tmp_path):
    request = build_request(tmp_path / "out", candidate=ArmSpec(env={"FAKE_PROFILE": "refuse"}), fields={"is_profiled": True})
    measure(request, KeptProgress())
    _, session = load_results(tmp_path / "out")

    assert list_problems(session) == ()
    assert [event["arm"] for event in list_events(tmp_path / "out") if event["event"] == "profile_failed"] == ["candidate"]


def build_job(folder, **changes):
    text = build_text(**{"calibrate_first = true": "calibrate_first = false"})
    arms = {Arm.BASE: ArmSpec(), Arm.CANDIDATE: ArmSpec(env={"FAKE_SLOW": "2.0", "FAKE_KERNELS": "fused_moe_kernel:90"})}
    return replace(GateJob(scenario=parse_scenario(text, "test"), text=text, arms=arms, folder=folder), **changes)


def test_run_gate__regression_is_explained_by_fresh_servers(tmp_path, capsys):
    result = run_gate(build_job(tmp_path / "out"), KeptProgress())
    report = (tmp_path / "out" / "report.md").read_text()
    again = main(["report", str(tmp_path / "out")]), capsys.readouterr().out
    table = main(["profile", str(tmp_path / "out")]), capsys.readouterr().out

    assert result.verdict.outcome is Outcome.REGRESSION
    assert [profile.block for profile in load_profiles(tmp_path / "out")] == [0, 0]
    assert "| kernel | base us | candidate us | difference us | of the loss | calls a step |" in report
    assert "| fused_moe_kernel | 30.0 | 90.0 | +60.0 |" in report
    assert again == (0, report)
    assert table[0] == 0
    assert "moe_sum_reduce" in table[1]


def test_run_gate__explanation_that_fails_leaves_the_verdict(tmp_path):
    job = build_job(tmp_path / "out")
    slow = replace(job.arms[Arm.CANDIDATE], env={**job.arms[Arm.CANDIDATE].env, "FAKE_PROFILE": "traceless"})
    progress = KeptProgress()
    result = run_gate(replace(job, arms={**job.arms, Arm.CANDIDATE: slow}), progress)

    assert result.verdict.outcome is Outcome.REGRESSION
    assert any(line.startswith("no profile of the candidate: the server's profiler wrote no trace") for line in progress.lines)
    assert "Where the time went" not in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.parametrize(("choice", "blocks"), [("never", []), ("always", [1, 1])])
def test_run_gate__profile_by_choice(tmp_path, choice, blocks):
    result = run_gate(build_job(tmp_path / "out", profile=choice), KeptProgress())

    assert result.verdict.outcome is Outcome.REGRESSION
    assert [profile.block for profile in load_profiles(tmp_path / "out")] == blocks


def test_report__profiles_that_were_changed_are_said_to_be(tmp_path, capsys):
    run(tmp_path / "out", Expect(kernels=("fused_moe",)))
    trace = load_profiles(tmp_path / "out")[0].traces[0]
    trace.write_bytes(b"")
    codes = [main([command, str(tmp_path / "out")]) for command in ("report", "profile")]
    shown = capsys.readouterr()

    assert codes == [0, 2]
    assert "The arms were profiled, but that cannot be read:" in shown.out
    assert "does not match its digest" in shown.err


def test_profile__no_profile_at_all(tmp_path, capsys):
    measure(build_request(tmp_path / "out"), KeptProgress())
    codes = [main(["profile", str(tmp_path / name)]) for name in ("out", "nowhere")]

    assert read_attribution(tmp_path / "out") is None
    assert codes == [2, 2]
    assert "holds no profile of both arms; measure with `perfgate gate --profile always`" in capsys.readouterr().err


def test_parse_scenario__expectation_that_is_no_pattern():
    text = build_text(**{"[warmup]": '[expect]\nkernels = ["moe("]\n\n[warmup]'})

    with pytest.raises(ScenarioError, match=r"expect\.kernels: 'moe\(' is no regular expression"):
        parse_scenario(text, "test")


def test_run__expectation_that_is_no_pattern(tmp_path, capsys):
    code = main(["run", "cpu-moe", "--out", str(tmp_path / "out"), "--expect-kernel", "moe("])

    assert code == 2
    assert "--expect-log: kernels: 'moe(' is no regular expression" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_find_line__no_log(tmp_path):
    assert find_line(tmp_path / "absent", "x") is None
