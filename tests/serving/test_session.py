"""Whole sessions with a fake engine and a fake load generator: real processes, real files, seconds instead of minutes."""

import json
import re
import sys
from dataclasses import replace

import pytest

from perfgate.cli import main
from perfgate.core import Arm, Outcome, Role
from perfgate.engines.sglang import SGLANG_CPU
from perfgate.engines.sglang_releases import explain_refused
from perfgate.engines.table import ENGINES
from perfgate.errors import CalibrationError, EngineError, InputError
from perfgate.gate.gate import GateJob, run_gate
from perfgate.results.results import load_results
from perfgate.scenario.catalog import load_scenario
from perfgate.scenario.schema import parse_scenario
from perfgate.serving.engine.arms import ArmSpec, build_injection_environment, parse_environment, read_between
from perfgate.serving.engine.server import Server
from perfgate.serving.injection.injection_log import MEASURED, PROOF
from perfgate.serving.measure import measure, name_folder, require_engine
from perfgate.serving.progress import PlainProgress
from perfgate.serving.watch.telemetry import require_gpu
from perfgate.serving.window import Plan, order_arms
from perfgate.storage.journal import read_lines
from tests.fakes.requests import (
    ENGINE_MODULE,
    KeptProgress,
    build_request,
    build_text,
    list_problems,
    make_launch,
    use_fake_engine,
    use_fake_processes,
)


@pytest.fixture(autouse=True)
def fake_engine(monkeypatch, tmp_path):
    use_fake_engine(monkeypatch, tmp_path)


def test_measure__alternates_arms_over_fresh_starts(tmp_path):
    measure(build_request(tmp_path / "out"), KeptProgress())
    _, session = load_results(tmp_path / "out")
    measured = [window for window in session.windows if window.role is Role.MEASURED]

    assert session.is_complete
    assert session.is_aa
    assert list_problems(session) == ()
    assert [window.arm.value[0] for window in measured] == list("bccbbc" + "cbbccb")
    assert len({window.start for window in measured}) == 4
    assert {window.run.completed for window in measured} == {8}
    # The fake engine's own counters: a quarter of the prompt tokens came from its cache.
    assert {window.telemetry["cache_hit_rate"] for window in session.windows} == {0.25}


def test_measure__what_an_unknown_engine_could_not_be_verified_for_stands_in_the_session_and_its_reports(tmp_path, monkeypatch):
    line = "sglang 0.6.0: Decode batch is not in its source, so the requests that run may be missing or wrong"
    monkeypatch.setattr("perfgate.serving.measure.verify_facts", lambda *_: (line,))
    folder, progress = tmp_path / "out", KeptProgress()
    measure(build_request(folder, fields={"notes": ("by hand",)}), progress)
    files = [folder / name for name in ("check.txt", "check.json", "report.md", "page.html")]
    main(["check", str(folder), "--output", str(files[0])])
    main(["check", str(folder), "--format", "json", "--output", str(files[1])])
    main(["report", str(folder), "--output", str(files[2]), "--html", str(files[3])])

    assert line in progress.lines
    assert json.loads((folder / "session.json").read_text())["notes"] == ["by hand", line]
    assert [file.name for file in files if "Decode batch is not in its source" not in file.read_text()] == []


@pytest.mark.parametrize(("behaviour", "offered"), [("ok", "yes"), ("no_freeze", "no")])
def test_measure__freezes_the_collector_of_both_arms_after_their_warm_up(tmp_path, behaviour, offered):
    spec = ArmSpec(env={"FAKE_ENGINE": behaviour})
    measure(build_request(tmp_path / "out", fields={"arms": dict.fromkeys(Arm, spec)}), KeptProgress())
    frozen = [event for event in read_lines(tmp_path / "out" / "events.jsonl") if event["event"] == "gc_freeze"]
    _, session = load_results(tmp_path / "out")

    assert list(session.problems) == []
    assert [(event["arm"], event["start"]) for event in frozen] == [
        *(("base", 1), ("candidate", 2)),
        *(("candidate", 3), ("base", 4)),
    ]
    assert {event["offered"] for event in frozen} == {offered}
    for event in frozen:
        windows = [window for window in session.windows if window.start == event["start"]]
        warmed = [window.ended_s for window in windows if window.role is Role.WARMUP]
        counted = [window.begun_s for window in windows if window.role is Role.MEASURED]
        assert max(warmed) <= event["at_s"] <= min(counted)


def test_measure__one_server_at_a_time(tmp_path):
    measure(build_request(tmp_path / "out", **{'resident = "both"': 'resident = "one"'}), KeptProgress())
    events = [json.loads(line) for line in (tmp_path / "out" / "events.jsonl").read_text().splitlines()]
    order = [event["event"] for event in events if event["event"] in ("server_started", "server_stopped")]

    assert order == ["server_started", "server_stopped"] * 4


def test_measure__stops_at_the_look_that_decides(tmp_path):
    measure(build_request(tmp_path / "out", looks=(2, 3), is_decided=lambda _: True), KeptProgress())

    assert {window.block for window in load_results(tmp_path / "out")[1].windows} == {1, 2}


def test_measure__budget_spent(tmp_path):
    measure(build_request(tmp_path / "out", **{"budget_minutes = 20.0": "budget_minutes = 0.001"}), KeptProgress())
    _, session = load_results(tmp_path / "out")

    assert {window.block for window in session.windows} == {1}
    assert "budget_spent" in (tmp_path / "out" / "events.jsonl").read_text()


@pytest.mark.parametrize(
    ("name", "args", "lasts_s"),
    [
        ("gpt-oss-20b-shape-mxfp4-closed-c16", (), 1800),
        ("gpt-oss-20b-shape-mxfp4-tp2-closed-c16", (), 1800),
        ("gpt-oss-20b-shape-mxfp4-pd-closed-c16", (), 1800),
        ("gpt-oss-20b-shape-mxfp4-closed-c16", ("--tp-size", "2"), 900),
        ("cpu-moe", (), 1200),
    ],
)
def test_is_spent__on_each_gpu_that_the_session_holds(tmp_path, name, args, lasts_s):
    scenario = load_scenario(name)
    launches = {arm: ArmSpec(args=args if arm is Arm.CANDIDATE else ()).build_launch(scenario, tmp_path) for arm in Arm}
    plan = Plan(scenario=scenario, launches=launches, looks=(2,), is_decided=lambda: False)

    assert not plan.is_spent(lasts_s)
    assert plan.is_spent(lasts_s + 1)


def test_measure__never_steady_voids_the_session(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_BENCH", "unsteady")
    measure(build_request(tmp_path / "out"), KeptProgress())
    _, session = load_results(tmp_path / "out")

    [problem] = list_problems(session)
    assert "never got steady" in problem
    # Each window takes twice as long as the one before, and its numbers scatter by 2 %.
    curve = re.search(r"within 50 % \(slowness against its first window: (.*) %\); is something else", problem)
    slowness = [float(one) for one in curve[1].split(" %, ")]
    assert slowness == pytest.approx([0, 100, 300, 700], rel=0.1)
    assert {window.role for window in session.windows} == {Role.WARMUP}


@pytest.mark.parametrize(("slow", "problems"), [("9.0", 0), ("1.5", 1)])
def test_measure__windows_scatter_less_than_what_lies_between_the_arms(tmp_path, monkeypatch, slow, problems):
    monkeypatch.setenv("FAKE_BENCH", "ragged")
    arms = {Arm.BASE: ArmSpec(), Arm.CANDIDATE: ArmSpec(env={"FAKE_SLOW": slow})}
    steady = {"steady_ratio = 0.50": "steady_ratio = 0.03"}
    measure(build_request(tmp_path / "out", fields={"arms": arms}, **steady), KeptProgress())
    _, session = load_results(tmp_path / "out")

    found = list_problems(session)
    assert len(found) == problems
    assert all("candidate server never got steady" in problem for problem in found)
    assert session.is_complete


def test_measure__failing_load_generator_voids_the_session_and_keeps_its_windows(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_BENCH", "fail_third")
    measure(build_request(tmp_path / "out"), KeptProgress())
    _, session = load_results(tmp_path / "out")

    [problem] = list_problems(session)
    assert problem == f"the load generator failed: bench_serving exited with 1 (log {tmp_path}/out/logs/client.log)"
    assert len(session.windows) == 2


def test_measure__injection_that_never_runs_is_no_slow_candidate(tmp_path):
    slowed = ArmSpec(env=build_injection_environment("step:0.5"))
    measure(build_request(tmp_path / "out", candidate=slowed), KeptProgress())

    assert "the injection step:0.5 never ran" in list_problems(load_results(tmp_path / "out")[1])[0]


def test_measure__notes_what_was_injected(tmp_path):
    said = f'{PROOF}: host:500\n{MEASURED}{{"kind": "host", "steps": 100, "injected_us": 61000.0}}'
    slowed = ArmSpec(env={**build_injection_environment("host:500"), "FAKE_SAYS": said})
    measure(build_request(tmp_path / "out", candidate=slowed), KeptProgress())
    noted = [event for event in read_lines(tmp_path / "out" / "events.jsonl") if event["event"] == "injected"]

    assert [(event["arm"], event["steps"], event["injected_us"]) for event in noted] == [("candidate", 100, 61000.0)] * 2


def test_measure__wrong_model_starts_nothing(tmp_path):
    measure(build_request(tmp_path / "out", **{"experts = 8": "experts = 16"}), KeptProgress())
    _, session = load_results(tmp_path / "out")

    assert "experts" in list_problems(session)[0]
    assert list((tmp_path / "out" / "logs").iterdir()) == []


def test_run_gate__calibrates_measures_judges_and_reports(tmp_path):
    text = build_text()
    progress = KeptProgress()
    job = GateJob(
        scenario=parse_scenario(text, "test"),
        text=text,
        arms={Arm.BASE: ArmSpec(), Arm.CANDIDATE: ArmSpec(env={"FAKE_SLOW": "2.0"})},
        folder=tmp_path / "out",
    )
    result = run_gate(job, progress)
    again = run_gate(replace(job, folder=tmp_path / "again"), KeptProgress())

    assert result.verdict.outcome is Outcome.REGRESSION
    assert again.verdict.outcome is Outcome.REGRESSION
    assert any("no noise bands for this machine yet" in line for line in progress.lines)
    assert not (tmp_path / "again-calibration").exists()
    assert (tmp_path / "out" / "report.md").read_text().startswith("### ")


def test_run_gate__void_calibration_stores_no_noise(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_BENCH", "fail_third")
    text = build_text()
    arms = {Arm.BASE: ArmSpec(), Arm.CANDIDATE: ArmSpec()}
    job = GateJob(scenario=parse_scenario(text, "test"), text=text, arms=arms, folder=tmp_path / "out")

    with pytest.raises(CalibrationError, match="load generator failed"):
        run_gate(job, KeptProgress())

    assert not (tmp_path / "state" / "baselines").exists()


def test_order_arms__alternates_over_blocks():
    assert order_arms(1) == (Arm.BASE, Arm.CANDIDATE)
    assert order_arms(2) == (Arm.CANDIDATE, Arm.BASE)


def test_parse_environment__not_a_pair():
    assert parse_environment(["A=1", "B=x=y"]) == {"A": "1", "B": "x=y"}
    with pytest.raises(InputError, match="1A=2: expected NAME=VALUE"):
        parse_environment(["1A=2"])


@pytest.mark.parametrize("text", ["step", "step:0", "step:-1", "step:nan", "nap:1", "step:x"])
def test_build_injection_environment__refused(text):
    with pytest.raises(InputError, match="is no injection"):
        build_injection_environment(text)


def test_require_engine__not_installed():
    scenario = parse_scenario(build_text(), "test")

    with pytest.raises(EngineError, match="not installed there; run `perfgate engine install`"):
        require_engine(scenario, ArmSpec(python="/some/python"), {"pytest": "absent"})


@pytest.mark.parametrize(
    ("asked", "version", "said"),
    [
        ((), "0.5.17", None),
        (("--speculative-algorithm", "NGRAM"), "0.5.23", "speculative decoding: drafts are verified by CUDA kernels alone"),
        (
            ("--enable-hierarchical-cache",),
            "0.5.15.post1",
            "HiCache: memory of the host is registered with CUDA; take",
        ),
        (("--dp-size=2", "--enable-dp-attention"), "0.5.16", "DP attention: "),
        (("--disaggregation-transfer-backend", "nixl"), "0.5.23", "prefill and decode apart: "),
        (("--tp-size", "2", "--ep-size=2"), "0.5.23", "expert parallelism: "),
        (("--tp-size", "2", "--ep-size", "1"), "0.5.23", None),
        (("--extra-request-body", '{"regex": "a+"}'), "0.5.17", "take a release after 0.5.17, or a GPU"),
        (("--extra-request-body", '{"response_format": {"type": "json_object"}}'), "0.5.15.post1", "ends the server"),
        (("--extra-request-body", '{"regex": "a+"}'), "0.5.18", None),
    ],
)
def test_explain_refused__what_a_release_cannot_serve_on_a_cpu(asked, version, said):
    told = explain_refused(asked, version)

    assert told is said if said is None else said in told


@pytest.mark.parametrize("words", [["run"], ["gate"], ["calibrate"]])
def test_measure__a_scenario_of_a_gpu_on_a_machine_without_one(words, tmp_path, monkeypatch, capsys):
    """It is refused before its model is made: servers loaded for half a minute before they said that nothing is there."""
    monkeypatch.setattr("perfgate.serving.watch.telemetry.lacks_gpu", lambda: True)
    name, out = "gpt-oss-20b-shape-mxfp4-mixed-c16", tmp_path / "out"

    assert main([*words, name, "--out", str(out)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f'perfgate: gpu: scenario {name} needs 1 GPU (server.engine = "sglang"), and this machine has none')
    assert "measure on a machine with a GPU, or take a scenario of the CPU, such as cpu-moe" in line
    assert not out.exists()


def test_require_gpu__of_a_scenario_that_needs_none_nobody_asks(monkeypatch):
    monkeypatch.setattr("perfgate.serving.watch.telemetry.lacks_gpu", lambda: True)

    require_gpu(load_scenario("cpu-moe"))


def test_require_engine__a_grammar_that_the_cpu_engine_cannot_apply(monkeypatch):
    monkeypatch.setitem(ENGINES, "sglang-cpu", SGLANG_CPU)

    with pytest.raises(
        EngineError, match=r"^/some/python: sglang 0\.5\.15 cannot serve .*, structured output: .* a release after"
    ):
        require_engine(load_scenario("cpu-moe-chat"), ArmSpec(python="/some/python"), {"sglang": "0.5.15"})


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        ("mori", "--disaggregation-transfer-backend mori: prefill and decode apart need one of nixl, mooncake, mooncake_tcp"),
        ("nixl", "sglang-router is missing, which prefill and decode apart need"),
    ],
)
def test_read_between__what_prefill_and_decode_apart_lack(backend, said):
    launch = make_launch("sglang")
    apart = replace(launch, python=sys.executable, args=("--disaggregation-transfer-backend", backend))

    assert read_between(launch) == {}
    with pytest.raises(EngineError, match=re.escape(said)):
        read_between(apart)


def test_measure__prefill_and_decode_apart(tmp_path, monkeypatch):
    """Three real processes an arm: the fake engine stands for the balancer, too."""
    use_fake_processes(monkeypatch, tmp_path)
    monkeypatch.setattr("perfgate.serving.engine.launch.BALANCER", ENGINE_MODULE)
    monkeypatch.setattr("perfgate.serving.engine.arms.read_between", lambda _: {"nixl": "1.5.1"})
    request = build_request(tmp_path / "out")
    server = replace(request.scenario.server, args=("--disaggregation-transfer-backend", "nixl"))
    measure(replace(request, scenario=replace(request.scenario, server=server)), KeptProgress())
    _, session = load_results(tmp_path / "out")

    assert list_problems(session) == ()
    assert session.fingerprints[Arm.BASE].facts["nixl"] == "1.5.1"
    assert {path.name for path in (tmp_path / "out" / "logs").glob("server-01-base*.log")} == {
        *("server-01-base.balancer.log", "server-01-base.prefill.log", "server-01-base.log"),
    }


def test_measure__a_kept_cache_is_emptied_by_questions_alone_and_filled_again(tmp_path, monkeypatch):
    moments, flush = [], Server.flush_cache
    monkeypatch.setattr(Server, "flush_cache", lambda server: (moments.append(server.port), flush(server)))
    asked = {"max_concurrency = 16": "max_concurrency = 16\nkeep_cache = true"}
    measure(build_request(tmp_path / "out", **asked), KeptProgress())
    _, session = load_results(tmp_path / "out")
    roles = [window.role for window in session.windows if window.start == 1]

    assert list_problems(session) == ()
    # Each start is asked once, and the first two are asked for their routing, too.
    assert len(moments) < len(session.windows) / 2
    assert roles.count(Role.WARMUP) == 3


@pytest.mark.parametrize(("form", "malformed"), [("(word ?)+", 0.0), ("[0-9]+", 8.0)])
def test_measure__counts_the_answers_that_are_not_of_the_form(tmp_path, form, malformed):
    asked = {"max_concurrency = 16": f"max_concurrency = 16\nanswer_form = '{form}'"}
    measure(build_request(tmp_path / "out", **asked), KeptProgress())
    _, session = load_results(tmp_path / "out")

    assert {window.telemetry["answers_malformed"] for window in session.windows} == {malformed}


def test_name_folder__second_run_in_a_second(tmp_path):
    first = name_folder("s", tmp_path)
    first.mkdir()
    second = name_folder("s", tmp_path)

    assert second != first


def test_plain_progress__signs_of_life_only_after_silence(capsys):
    progress = PlainProgress(sys.stderr, interval_s=3600)
    progress.step("begun")
    progress.wait("waiting")

    assert capsys.readouterr().err == "[ 0:00] begun\n"
