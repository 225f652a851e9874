"""benchmarks/museum: exhibits are whole, predictions come first, runs go on, patches do what they say."""

import asyncio
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import click
import orjson
import pytest

from benchmarks.museum import host, host_patches, render, run
from benchmarks.museum.exhibits import HERE, find_own_scenario, list_names, load_absent, load_all, load_exhibit
from benchmarks.museum.history import PACKAGE, write_history
from benchmarks.museum.hooks import Hook, Variant
from benchmarks.museum.host import (
    HostAnswer,
    HostAnswers,
    HostQuestion,
    HostSide,
    load_questions,
    read_answers,
    write_arm,
)
from benchmarks.museum.patches import PATCHES, describe_proof, parse_wanted
from benchmarks.museum.placement import order_experts
from benchmarks.museum.results import ExhibitResult, SideResult, read_result
from benchmarks.museum.rivals import build_evidence, count_alarms
from benchmarks.museum.run import Museum, build_argv, find_prediction, run_exhibit, take_sides, write_plug_in
from benchmarks.museum.searches import Searcher, load_searches, run_search
from perfgate.cli import program
from perfgate.core import Outcome
from perfgate.errors import InputError
from perfgate.gate.reports import write_report
from perfgate.resolution.arms import Source, find_source
from perfgate.resolution.table import MODELS
from perfgate.resolution.values import ArmReading, Resolution, ResolveAnswer
from perfgate.scenario.catalog import load_scenario
from perfgate.scenario.safeguards import Expect
from perfgate.serving.engine.environments import find_package

ROOT = Path(__file__).parents[2]
ROUTED = ROOT / "benchmarks/h200/serving/routed"
SLOWER, SAME = ROUTED / "mxfp4-mixed-c16-graphs-gpu-15", ROUTED / "mxfp4-mixed-c16-graphs-aa-2"
GIT = shutil.which("git")
GOOD = """
title = "a title"
machine = "cpu"
scenario = "cpu-moe"
[report]
url = "https://github.com/sgl-project/sglang/issues/1"
cause = "a cause"
size = "-10 %"
load = "c16"
[reenactment]
kind = "flag"
words = "a flag"
[reenactment.broken]
args = ["--slow"]
[expected]
outcome = "REGRESSION"
metric = "output_tok_per_s"
why = "it is slow"
"""


def write(home, text, name="one"):
    (home / name).mkdir(parents=True, exist_ok=True)
    (home / name / "exhibit.toml").write_text(text)
    return home


@pytest.fixture
def home(tmp_path):
    """A museum of one exhibit in a repository that has it committed."""
    home = write(tmp_path / "museum", GOOD)
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "predict"]):
        subprocess.run([GIT, "-C", str(home), *words], check=True)
    return home


class Gate:
    """Stands for the gate's process: it leaves a stored session in the folder that it is told."""

    def __init__(self, sessions, code=1):
        self.calls = []
        self._sessions, self._code = sessions, code

    def __call__(self, argv, environment):
        self.calls.append((argv, environment))
        folder = Path(argv[argv.index("--out") + 1])
        source = self._sessions.get(folder.name)
        if source is not None:
            shutil.copytree(source, folder)
        return self._code


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """Two stored sessions with their verdicts, as the gate leaves them."""
    home = tmp_path_factory.mktemp("judged")
    for side, source in (("broken", SLOWER), ("fixed", SAME)):
        shutil.copytree(source, home / side)
        write_report(home / side)
    return home


@pytest.fixture
def gate(judged):
    return Gate({side: judged / side for side in ("broken", "fixed")})


def make_museum(tmp_path, gate):
    return Museum(home=tmp_path / "home", python="engine/python", execute=gate)


def test_load_all__as_many_as_were_promised():
    shown = load_all()
    machines = Counter(placed.exhibit.machine for placed in shown)

    assert machines["cpu"] >= 14
    assert machines["h200"] >= 6
    assert len({placed.exhibit.report.url for placed in shown}) == len(shown)
    assert {placed.exhibit.expected.outcome for placed in shown} <= set(Outcome)
    assert len(load_absent()) >= 10


def test_load_all__each_patch_is_an_exhibits_or_a_searchs():
    patched = {placed.name for placed in load_all() if placed.exhibit.reenactment.kind == "patch"}

    assert patched | set(load_searches()) == set(PATCHES)


@pytest.mark.parametrize("name", list_names())
def test_exhibits__expect_a_metric_that_their_scenario_judges(name):
    exhibit = load_exhibit(name).exhibit
    own = find_own_scenario(exhibit.scenario)

    scenario = load_scenario(str(own) if own.is_file() else exhibit.scenario)

    assert exhibit.expected.metric in scenario.gates
    assert not scenario.gates[exhibit.expected.metric].advisory
    assert scenario.server.engine.endswith("-cpu") is (exhibit.machine == "cpu")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("machine =", "maschine =", r"one/exhibit\.toml: (maschine|machine)"),
        ('"cpu-moe"', '"cpu-mo"', r"scenario: cpu-mo: no such scenario; did you mean cpu-moe"),
        ('args = ["--slow"]', "args = []", r"broken: is the base itself"),
        ('args = ["--slow"]', 'patch = "broken"', r"a flag takes no patch"),
        ('kind = "flag"\n', 'kind = "patch"\nbase.patch = "fixed"\n', r"patches\.py has no patch one"),
        ('"output_tok_per_s"', '"output_token"', r"metric: output_token: no such metric; did you mean"),
        ("issues/1", "issues/one", r"report\.url"),
        ("REGRESSION", "SLOWER", r"expected\.outcome"),
    ],
)
def test_load_exhibit__says_which_field_is_wrong(tmp_path, old, new, said):
    home = write(tmp_path, GOOD.replace(old, new))

    with pytest.raises(InputError, match=said):
        load_exhibit("one", home)


def test_load_exhibit__near_name(tmp_path):
    with pytest.raises(InputError, match="on: no such exhibit; did you mean one"):
        load_exhibit("on", write(tmp_path, GOOD))


def test_run_exhibit__stores_both_verdicts_and_little_else(tmp_path, home, gate):
    placed = load_exhibit("one", home)

    result = run_exhibit(placed, make_museum(tmp_path, gate))

    assert [Path(argv[argv.index("--out") + 1]).name for argv, _ in gate.calls] == ["broken", "fixed"]
    assert (result.broken.outcome, result.fixed.outcome) == (Outcome.REGRESSION, Outcome.PASS)
    assert result.broken.teller == "median_itl_ms"
    assert result.broken.metrics["median_itl_ms"].worse == pytest.approx(0.06, abs=0.02)
    assert read_result(placed) == result
    assert (placed.folder / "result.json").stat().st_size < 20_000


def test_run_exhibit__keeps_each_window_that_counts(tmp_path, home, gate):
    result = run_exhibit(load_exhibit("one", home), make_museum(tmp_path, gate))

    windows = result.broken.windows["output_tok_per_s"]
    assert [len(block) for arm in ("base", "candidate") for block in windows[arm]] == [5, 5, 5, 5]


def test_run_exhibit__goes_on_with_what_is_missing(tmp_path, home, gate, judged):
    placed = load_exhibit("one", home)
    first = Gate({"broken": judged / "broken"})
    with pytest.raises(InputError, match="no verdict of fixed"):
        run_exhibit(placed, make_museum(tmp_path, first))

    run_exhibit(placed, make_museum(tmp_path, gate))
    again = Gate({})
    run_exhibit(placed, make_museum(tmp_path, again))

    assert [Path(argv[argv.index("--out") + 1]).name for argv, _ in gate.calls] == ["fixed"]
    assert again.calls == []


def test_run_exhibit__a_gate_that_failed_is_no_answer(tmp_path, home, judged):
    with pytest.raises(InputError, match="the gate ended with 70 and no verdict of broken"):
        run_exhibit(load_exhibit("one", home), make_museum(tmp_path, Gate({"broken": judged / "broken"}, code=70)))
    assert read_result(load_exhibit("one", home)) is None


@pytest.fixture
def side(home, judged, tmp_path):
    """The slow side of `one`, and a session that served as it says."""
    folder = shutil.copytree(judged / "broken", tmp_path / "taken")
    record = json.loads((folder / "session.json").read_text())
    record["arms"]["candidate"]["argv"] = [*record["arms"]["base"]["argv"], "--slow"]
    (folder / "session.json").write_text(json.dumps(record))
    return load_exhibit("one", home), folder


def test_take_sides__a_session_that_another_machine_measured(side):
    placed, folder = side
    take_sides(placed, {"broken": folder})

    result = read_result(placed)
    assert (result.broken.outcome, result.fixed) == (Outcome.REGRESSION, None)
    assert result.predicted == find_prediction(placed)


@pytest.mark.parametrize(
    ("change", "arm"),
    [
        (lambda arms: arms["candidate"]["argv"].pop(), "candidate"),
        (lambda arms: arms["candidate"]["argv"].insert(-1, "--more"), "candidate"),
        (lambda arms: arms["candidate"]["env"].update(PERFGATE_MUSEUM="overlap-barrier:broken"), "candidate"),
        (lambda arms: arms["base"]["env"].update(PERFGATE_MUSEUM="overlap-barrier:fixed"), "base"),
    ],
)
def test_take_sides__refuses_a_session_of_something_else(side, change, arm):
    placed, folder = side
    record = json.loads((folder / "session.json").read_text())
    change(record["arms"])
    (folder / "session.json").write_text(json.dumps(record))

    with pytest.raises(InputError, match=f"one: broken: {arm} of that session served something else"):
        take_sides(placed, {"broken": folder})
    assert read_result(placed) is None


def test_find_prediction__is_the_commit_that_has_the_text(home):
    head = subprocess.run([GIT, "-C", str(home), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)

    assert find_prediction(load_exhibit("one", home)) == head.stdout.strip()


def test_find_prediction__refuses_what_was_changed_or_never_committed(home, tmp_path):
    write(home, GOOD.replace("REGRESSION", "PASS"))
    write(home, GOOD, name="two")
    outside = write(tmp_path / "outside", GOOD)

    for name, place in (("one", home), ("two", home), ("one", outside)):
        with pytest.raises(InputError, match="is not committed as it stands"):
            find_prediction(load_exhibit(name, place))


def test_read_result__of_another_text_is_refused(tmp_path, home, gate):
    run_exhibit(load_exhibit("one", home), make_museum(tmp_path, gate))
    write(home, GOOD.replace("a cause", "another cause"))

    with pytest.raises(InputError, match=r"result\.json: digest: is of another text"):
        read_result(load_exhibit("one", home))


def test_build_argv__arms_say_what_they_serve_with(tmp_path, gate):
    museum = make_museum(tmp_path, gate)

    argv = build_argv(load_exhibit("eviction-heap"), "broken", museum, tmp_path / "out")

    assert argv[2:5] == ["perfgate", "gate", "cpu-moe-pool"]
    assert "--both-arg=--max-total-tokens" in argv
    assert "--both-env=PERFGATE_MUSEUM=eviction-heap:fixed" in argv
    assert "--candidate-env=PERFGATE_MUSEUM=eviction-heap:broken" in argv
    assert argv[argv.index("--expect-log") + 1] == describe_proof("eviction-heap", "broken")
    assert "--resume" not in argv


def test_build_argv__a_scenario_of_the_museum_is_a_file(tmp_path, gate):
    argv = build_argv(load_exhibit("grammar-copy"), "fixed", make_museum(tmp_path, gate), tmp_path / "out")

    assert argv[4].endswith("benchmarks/museum/scenarios/museum-grammar-c16.toml")


def test_build_argv__goes_on_with_a_session_that_was_cut_off(tmp_path, gate):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "session.json").write_text("{}")

    argv = build_argv(load_exhibit("prefix-lost"), "broken", make_museum(tmp_path, gate), tmp_path / "out")

    assert argv[-1] == "--resume"
    assert "--candidate-arg=--disable-radix-cache" in argv
    assert "--expect-log" not in argv


def test_main__says_in_a_line_what_is_wrong(capsys, tmp_path):
    with pytest.raises(SystemExit) as error:
        run.main(["no-such-exhibit", "--home", str(tmp_path)], standalone_mode=False)

    assert error.value.code == 2
    assert "museum: no-such-exhibit: no such exhibit" in capsys.readouterr().err


def test_write_plug_in__names_what_can_be_imported(tmp_path):
    write_plug_in(tmp_path)

    (entries,) = tmp_path.glob("*.dist-info/entry_points.txt")
    module, _, function = entries.read_text().rpartition("= ")[2].strip().partition(":")
    assert callable(getattr(__import__(module, fromlist=[function]), function))


# What the host's work tells.


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('answer = "lost"', 'answer = "same"', "asked.0: Value error, key: 'scheduler.request.copies': name a key"),
        ('key = "scheduler.request.copies"', 'key = "scheduler.request.copied"', "key: 'scheduler.request.copied'"),
        ('answer = "lost"', 'answer = "slow"', "asked.0.answer"),
        (
            'why = "it copies"',
            'why = "it copies"\n[asked.edit]\nfile = "a"\nbefore = "b"\nafter = "c"',
            "name a key of perfgate resolve",
        ),
    ],
)
def test_load_questions__says_which_field_is_wrong(tmp_path, old, new, said):
    path = tmp_path / "host.toml"
    told = '[[asked]]\nexhibit = "one"\nanswer = "lost"\nkey = "scheduler.request.copies"\nwhy = "it copies"\n'
    path.write_text(told.replace(old, new))

    with pytest.raises(InputError, match=re.escape(said)):
        load_questions(path)


def test_write_arm__its_plug_in_asks_for_the_patch_in_a_process_of_its_own(tmp_path):
    placed = load_exhibit("sampling-deepcopy")
    engine = tmp_path / "sglang"
    (engine / "srt").mkdir(parents=True)

    arm = write_arm(tmp_path / "broken", engine, placed, placed.exhibit.reenactment.broken)

    program = (
        "import os; from importlib.metadata import entry_points\n"
        "[found] = entry_points(group='sglang.srt.plugins', name='perfgate-museum'); found.load()\n"
        "print(os.environ['PERFGATE_MUSEUM'], found.load().__module__)"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(arm)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "sampling-deepcopy:broken benchmarks.museum.patches\n"
    assert find_source(str(arm), sys.executable, option="arm").folder == arm


def test_write_arm__an_unchanged_one_is_the_engine_alone(tmp_path):
    placed = load_exhibit("sampling-deepcopy")

    arm = write_arm(tmp_path / "base", tmp_path, placed, placed.exhibit.reenactment.base)

    assert [entry.name for entry in arm.iterdir()] == ["sglang"]


def test_follow__a_candidate_gets_what_the_base_serves_with_before_its_own():
    told = load_exhibit("decode-fragmented").exhibit.reenactment

    assert told.broken.follow(told.base).args == ("--min-free-slots-delay", "3", "--min-free-slots-delay", "1")
    assert told.fixed.follow(told.base) == told.base


def test_write_arm__arguments_of_a_server_follow_those_that_it_is_driven_with(tmp_path):
    placed = load_exhibit("prefix-lost")
    engine = tmp_path / "sglang"
    (engine / "srt").mkdir(parents=True)
    # Regular packages: where an engine is installed, it would go before a folder that is none.
    for package in (engine, engine / "srt"):
        (package / "__init__.py").touch()
    (engine / "srt" / "server_args.py").write_text("prepare_server_args = tuple\n")

    arm = write_arm(tmp_path / "broken", engine, placed, placed.exhibit.reenactment.broken)

    program = (
        "from importlib.metadata import entry_points\n"
        "[found] = entry_points(group='sglang.srt.plugins', name='perfgate-museum'); found.load()\n"
        "from sglang.srt import server_args; print(server_args.prepare_server_args(['--device', 'cpu']))"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(arm)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "('--device', 'cpu', '--disable-radix-cache')\n"


def make_resolution(name, **choices):
    reading = ArmReading(choices={"moe_runner": "triton_kernel", "pool_tokens": 100, **choices}, flags={})
    cases = [("gpt-oss-20b", "h200"), ("gpt-oss-120b", "h200")]
    return Resolution(name=name, version="0.5.23", torch="2.14.1", triton="3.8.0", readings=dict.fromkeys(cases, reading))


def test_ask_choices__the_slow_arm_is_the_release_with_the_fault_in_its_source(tmp_path, monkeypatch):
    """What the arms hold is read by a stand-in for the engine: their source."""
    placed = load_exhibit("moe-backend-default")
    (question,) = (one for one in load_questions() if one.exhibit == placed.name)
    release, file = tmp_path / "release", question.edit.file
    (release / file).parent.mkdir(parents=True)
    (release / file).write_text(f"if wanted:\n    {question.edit.before}\n")
    asked = []

    def find_source(given, python, *, option):
        return Source(name=option, python=python, folder=release if option == "base" else Path(given))

    def ask_arms(sources, models, gpus):
        asked.append(([one.name for one in gpus], len(models)))
        words = [(source.folder / file).read_text().rpartition(" = ")[2].strip().strip('"') for source in sources]
        return [make_resolution(source.name, moe_runner=word) for source, word in zip(sources, words, strict=True)]

    monkeypatch.setattr(host, "find_source", find_source)
    monkeypatch.setattr(host, "ask_arms", ask_arms)

    version, found = host.ask_choices(placed, question.edit, "python")

    assert version == host.RELEASE
    assert found["broken"] == HostSide(answer=ResolveAnswer.LOST, lost={"moe_runner": 2})
    assert found["fixed"] == HostSide(answer=ResolveAnswer.SAME, lost={})
    assert asked == [(["h200"], len(MODELS))]
    assert [one.name for one in tmp_path.iterdir()] == ["release"]


def make_answer(placed, **lost):
    side = HostSide(answer=ResolveAnswer.LOST if lost else ResolveAnswer.SAME, lost=lost)
    twin = HostSide(answer=ResolveAnswer.SAME, lost={})
    return HostAnswer(digest=placed.digest, predicted="0" * 40, sglang="0.5.23", broken=side, fixed=twin)


def test_read_answers__of_another_text_are_refused(tmp_path):
    placed, path = load_exhibit("sampling-deepcopy"), tmp_path / "host.json"
    path.write_bytes(orjson.dumps(HostAnswers(answers={placed.name: make_answer(placed)})))

    assert read_answers([placed], path).answers == {placed.name: make_answer(placed)}
    with pytest.raises(InputError, match=r"host.json: answers.sampling-deepcopy.digest: is of another text"):
        read_answers([replace(placed, digest="another")], path)


def test_write_page__says_how_many_models_lost_a_choice():
    placed = load_exhibit("moe-backend-default")
    (question,) = (one for one in load_questions() if one.exhibit == placed.name)
    shown = render.Shown(placed=placed, result=None, question=question, host=make_answer(placed, moe_runner=2.0))

    page = render.write_page([shown], ())

    assert "| moe-backend-default | resolve | lost, moe_runner | lost (as expected) | moe_runner of 2 models | same |" in page
    assert "Together they find 1 of 1" in page


def test_write_page__says_what_the_host_lost_and_what_the_gate_had_missed():
    placed = load_exhibit("sampling-deepcopy")
    key = "scheduler.decode_step.instructions"
    question = HostQuestion(exhibit=placed.name, answer=ResolveAnswer.LOST, key=key, why="copies")
    found = make_answer(placed, **{key: 1.5, "scheduler.decode_step.operators": 16.0})
    shown = [
        render.Shown(placed=placed, result=read_result(placed), question=question, host=answer)
        for answer in (found, make_answer(placed), None)
    ]

    page = render.write_page(shown, ())

    assert (
        "They found 1 of 2, and a loss in 0 of 2 repaired twins.\n"
        "Of those found, the gate had missed or not yet run 1: sampling-deepcopy." in page
    )
    assert f"| sampling-deepcopy | scheduler | lost, {key} | lost (as expected) | {key} +150.0 % | same |" in page
    assert f"| sampling-deepcopy | scheduler | lost, {key} | same (not as expected) |  | same |" in page
    assert f"| sampling-deepcopy | scheduler | lost, {key} | not run yet |  | not run yet |" in page


# The page.


def test_page__is_what_the_exhibits_say():
    page = render.write_page(render.load_shown(), load_absent())

    assert render.PAGE.read_text(encoding="utf-8") == page, "run benchmarks.museum.render"


def test_write_page__counts_hits_with_their_exact_bound(tmp_path, home, gate):
    placed = load_exhibit("one", home)
    result = run_exhibit(placed, make_museum(tmp_path, gate))
    missed = replace(result, broken=replace(result.broken, outcome=Outcome.PASS))

    page = render.write_page([render.Shown(placed=placed, result=one) for one in (result, result, missed)], ())

    # Two of three: the smallest share that has as many with probability 5 % is 13.5 %.
    assert "3 were run. The gate called 2 slower (67 %); with 95 % confidence\nthe share is at least 14 %" in page
    assert "It called 0 of 3 repaired twins slower; with 95 % confidence the share is at most 63 %" in page
    assert "REGRESSION (by another metric) | Median ITL +6" in page
    assert "PASS (not as expected)" in page


def test_write_page__a_counter_tells_a_loss_that_no_metric_has_decided(tmp_path, home, gate):
    placed = load_exhibit("one", home)
    result = run_exhibit(placed, make_museum(tmp_path, gate))
    undecided = {name: replace(one, outcome=Outcome.INCONCLUSIVE) for name, one in result.broken.metrics.items()}
    reasons = ("Decode steps in a CUDA graph 100.0 % to 0.0 % (-100.0 %, fails beyond -1.0 %)",)
    counted = replace(result, broken=replace(result.broken, metrics=undecided, reasons=reasons))

    page = render.write_page([render.Shown(placed=placed, result=counted)], ())

    assert "REGRESSION (by a counter) | Decode steps in a CUDA graph 100.0 % to 0.0 %; " in page


def make_side(base, candidate):
    metric = {"base": (tuple(base),), "candidate": (tuple(candidate),)}
    return SideResult(
        outcome=Outcome.INCONCLUSIVE,
        reasons=(),
        uncalibrated=True,
        blocks=1,
        minutes=1.0,
        hardware="cpu",
        metrics={},
        windows={"output_tok_per_s": metric},
    )


def test_count_alarms__each_rule_by_what_it_looks_at():
    slow = make_side([100, 101, 99, 100, 101, 99], [93, 94, 92, 93, 94, 92])
    same = make_side([100, 101, 99, 100, 101, 99], [100, 99, 101, 100, 99, 101])
    noisy = make_side([100, 130, 70, 100, 130, 70], [94, 124, 64, 94, 124, 64])

    counts = {one.name: one for one in count_alarms([ExhibitResult(digest="", predicted="", broken=slow, fixed=same)])}
    unsure = {one.name: one for one in count_alarms([ExhibitResult(digest="", predicted="", broken=noisy)])}

    assert {name: (one.found, one.false) for name, one in counts.items()} == {
        "fixed 5 %": (1, 0),
        "fixed 10 %": (0, 0),
        "mean + 3 sd": (1, 0),
        "Welch t": (1, 0),
        "benchstat": (1, 0),
        "vLLM's nightly: 2 sd and 1 % of seven": (1, 0),
    }
    assert (unsure["fixed 5 %"].found, unsure["benchstat"].found) == (1, 0)
    assert (unsure["mean + 3 sd"].exhibits, unsure["fixed 5 %"].twins) == (0, 0)


def test_build_evidence__a_side_without_windows_tells_nothing():
    void = replace(make_side([1.0], [1.0]), windows={"output_tok_per_s": {"base": (), "candidate": ()}})

    assert build_evidence(ExhibitResult(digest="", predicted="", broken=void), "broken") is None
    assert build_evidence(ExhibitResult(digest="", predicted="", broken=void), "fixed") is None


def test_write_page__says_what_was_not_run(home):
    page = render.write_page([render.Shown(placed=load_exhibit("one", home), result=None)], ())

    assert "None was run yet, so the share of regressions found is unknown." in page
    assert "| not run yet |" in page


# A repository in which one commit brings the fault.


def test_write_history__one_commit_brings_the_fault(tmp_path):
    made = write_history(load_exhibit("host-leak"), tmp_path / "history", commits=4, culprit=2)

    log = subprocess.run(
        [GIT, "-C", str(made.repository), "log", "--reverse", "--format=%H"], capture_output=True, text=True, check=True
    ).stdout.split()
    texts = [
        subprocess.run(
            [GIT, "-C", str(made.repository), "show", f"{one}:{PACKAGE}/__init__.py"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for one in log
    ]
    assert (log[0], log[2], log[3]) == (made.good, made.culprit, made.bad)
    assert ["host-leak:broken" in text for text in texts] == [False, False, True, True]
    assert len(set(texts)) == 4
    assert find_package(made.repository) == made.repository


def test_write_history__what_sglang_loads_asks_for_the_patch(tmp_path, monkeypatch):
    made = write_history(load_exhibit("host-leak"), tmp_path / "history", commits=2, culprit=1)
    monkeypatch.syspath_prepend(str(made.repository))
    monkeypatch.setenv("PERFGATE_MUSEUM", "")
    asked = []
    monkeypatch.setattr("benchmarks.museum.patches.register", lambda: asked.append(os.environ["PERFGATE_MUSEUM"]))

    entry = tomllib.loads((made.repository / "pyproject.toml").read_text())["project"]["entry-points"]["sglang.srt.plugins"]
    module, _, function = entry["perfgate-museum"].partition(":")
    getattr(importlib.import_module(module), function)()

    assert asked == ["host-leak:broken"]


def test_write_history__command_is_one_of_perfgates(tmp_path):
    placed = load_exhibit("host-leak")

    command = write_history(placed, tmp_path / "history", commits=3, culprit=1).write_command(placed)

    words = shlex.split(command)[2:]
    bisect = program.get_command(click.Context(program), words[0])
    assert bisect.make_context("bisect", words[1:]).params["scenario"] == "cpu-moe-memory"


@pytest.mark.parametrize(
    ("name", "commits", "culprit", "said"),
    [
        ("prefix-lost", 4, 2, "prefix-lost: is no patch"),
        ("host-leak", 4, 0, "--culprit 0: must lie behind the first"),
        ("host-leak", 4, 4, "--culprit 4: must lie"),
    ],
)
def test_write_history__refuses(tmp_path, name, commits, culprit, said):
    with pytest.raises(InputError, match=said):
        write_history(load_exhibit(name), tmp_path / "history", commits, culprit)
    assert not (tmp_path / "history").exists()


def test_load_searches__each_is_of_a_patch_and_gates_what_it_is_searched_by():
    planned = load_searches()

    assert len(planned) >= 3
    for name, plan in planned.items():
        placed = load_exhibit(name)
        own = find_own_scenario(placed.exhibit.scenario)
        gates = load_scenario(str(own) if own.is_file() else placed.exhibit.scenario).gates
        assert name in PATCHES
        assert 1 <= plan.culprit < plan.commits
        assert not gates[plan.metric].advisory
        assert plan.expected.most_minutes <= plan.budget_minutes


SEARCH = """
[searches.eviction-heap]
commits = 4
culprit = 2
metric = "median_itl_ms"
budget_minutes = 5.0
expected = { is_found = true, most_minutes = 4.0, why = "it is large" }
"""


class Bisect:
    """Stands for the search's process: it names the commit at `place` of the history, and leaves a journal and a log."""

    def __init__(self, place, minutes=3.0, code=0, log="perfgate museum runs eviction-heap:broken"):
        self.calls, self._place, self._minutes, self._code, self._log = [], place, minutes, code, log

    def __call__(self, argv, environment):
        self.calls.append(argv)
        # The commits' plug-in imports the patches of this checkout.
        assert environment["PYTHONPATH"] == str(ROOT)
        out = Path(argv[argv.index("--out") + 1])
        logs = out / "measurements" / "0001-abc" / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        (logs / "server-01-candidate.log").write_text(f"{self._log}\n")
        (out / "journal.jsonl").write_text("{}\n")
        repository = argv[argv.index("--repo") + 1]
        log = subprocess.run(
            [GIT, "-C", repository, "rev-list", "--reverse", "main"], capture_output=True, text=True, check=True
        )
        told = dict.fromkeys(("outcome", "blocks", "measurements", "builds", "metric", "warnings"))
        return self._code, json.dumps({**told, "culprit": log.stdout.split()[self._place], "minutes": self._minutes})


@pytest.fixture
def planned(home):
    (home / "searches.toml").write_text(SEARCH)
    for words in (["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "plan"]):
        subprocess.run([GIT, "-C", str(home), *words], check=True)
    return home


@pytest.mark.parametrize(
    ("bisect", "is_right", "as_expected"),
    [(Bisect(2), True, True), (Bisect(1), False, False), (Bisect(2, minutes=4.5), True, False)],
)
def test_run_search__holds_the_answer_against_the_prediction(planned, tmp_path, bisect, is_right, as_expected):
    searcher = Searcher(home=tmp_path, store=tmp_path / "store", ask=bisect)
    result = run_search("eviction-heap", searcher, planned)

    assert (result["is_right"], result["as_expected"]) == (is_right, as_expected)
    assert json.loads((tmp_path / "store" / "eviction-heap" / "result.json").read_text()) == result
    assert (tmp_path / "store" / "eviction-heap" / "journal.jsonl").read_text() == "{}\n"


def test_run_search__command_serves_all_commits_as_the_base_and_goes_on(planned, tmp_path):
    bisect = Bisect(2)
    for _ in range(2):
        run_search("eviction-heap", Searcher(home=tmp_path, store=tmp_path / "store", ask=bisect), planned)
    first, second = bisect.calls

    assert second == [*first, "--resume"]
    assert first[1:4] == ["-m", "perfgate", "bisect"]
    # What is no option of the command ends here.
    program.get_command(click.Context(program), "bisect").make_context("bisect", second[4:])
    assert [word for word in first if word.startswith("--both-arg")] == ["--both-arg=--max-total-tokens", "--both-arg=20480"]


@pytest.mark.parametrize(
    ("name", "change", "wrong", "said"),
    [
        ("host-lek", "", {}, "host-lek: no such search"),
        ("eviction-heap", "# changed", {}, "is not committed as it stands"),
        ("eviction-heap", "", {"code": 2}, "the search ended with 2 and no answer"),
        ("eviction-heap", "", {"log": "ready"}, "no server's log .* 'perfgate museum runs eviction-heap:broken'"),
    ],
)
def test_run_search__refuses(planned, *, tmp_path, name, change, wrong, said):
    (planned / "searches.toml").write_text(SEARCH + change)

    with pytest.raises(InputError, match=said):
        run_search(name, Searcher(home=tmp_path, store=tmp_path / "store", ask=Bisect(2, **wrong)), planned)
    assert not (tmp_path / "store").exists()


# The patches, without an engine.


@pytest.mark.parametrize("text", ["", "no-such:broken", "host-leak", "host-leak:slow", "host-leak:broken,"])
def test_parse_wanted__refuses(text):
    with pytest.raises(ValueError, match="give NAME:broken or NAME:fixed"):
        parse_wanted(text)


@pytest.mark.parametrize("name", PATCHES)
@pytest.mark.parametrize("variant", Variant)
def test_patches__each_has_one_hook_that_proves_it(name, variant):
    hooks = PATCHES[name](variant)

    assert parse_wanted(f"{name}:{variant}") == ((name, variant),)
    assert [hook.is_proof for hook in hooks].count(True) == 1
    assert all(hook.target.startswith("sglang.srt.") for hook in hooks)
    assert Expect(log=(describe_proof(name, variant),)).log


def test_announce__tells_once(capsys):
    hook = Hook(target="a.b", around=lambda original, value: original(value) + 1).announce("it runs")

    assert [hook(abs, -1), hook(abs, -2)] == [2, 3]
    assert capsys.readouterr().out == "it runs\n"


@pytest.mark.parametrize(
    ("variant", "ranks", "order"),
    [
        (Variant.BROKEN, 2, [4, 2, 0, 5, 1, 3]),
        (Variant.FIXED, 2, [4, 5, 1, 2, 0, 3]),
        (Variant.FIXED, 3, [4, 3, 2, 1, 0, 5]),
    ],
)
def test_order_experts__popular_ones_together_or_dealt_out(variant, ranks, order):
    assert order_experts([3.0, 1.0, 4.0, 0.5, 9.0, 2.0], ranks, variant) == order


class Tree:
    """A cache of prefixes in little: a root whose children are leaves, as thin as SGLang's after short requests."""

    def __init__(self, priorities):
        self.root_node = Root()
        self.evictable_leaves, self.freed = set(), []
        self.eviction_strategy = SimpleNamespace(get_priority=lambda node: node.priority)
        self.token_to_kv_pool_allocator = SimpleNamespace(free=self.freed.append)
        self.nodes = [Node(number, priority, self.root_node) for number, priority in enumerate(priorities)]

    def _delete_leaf(self, node):
        del node.parent.children[node.id]
        self.evictable_leaves.discard(node)

    def _record_remove_event(self, node):
        """Nothing listens."""


class Root:
    def __init__(self):
        self.children, self.evicted, self.id = {}, False, -1


class Node:
    def __init__(self, number, priority, parent):
        self.id, self.priority, self.parent = number, priority, parent
        self.value, self.children, self.evicted = (number, number), {}, False
        parent.children[number] = self


def fill(tree, heap):
    for node in tree.nodes:
        heap.watch(lambda cache, node: cache.evictable_leaves.add(node), tree, node)


def test_lazy_heap__frees_in_the_order_of_a_heap_that_is_built_anew():
    tree = Tree([5, 3, 9, 1, 7])
    heap = host_patches.LazyHeap()
    fill(tree, heap)

    assert heap.free(tree, 5) == 6
    assert tree.freed == [(3, 3), (1, 1), (0, 0)]


def test_lazy_heap__what_was_used_since_waits_and_what_is_locked_stays():
    tree = Tree([1, 2, 3])
    heap = host_patches.LazyHeap()
    fill(tree, heap)
    tree.nodes[0].priority = 9
    tree.evictable_leaves.discard(tree.nodes[1])

    assert heap.free(tree, 100) == 4
    assert tree.freed == [(2, 2), (0, 0)]


def test_lazy_heap__is_empty_after_the_tree_was():
    tree = Tree([1, 2])
    heap = host_patches.LazyHeap()
    fill(tree, heap)

    heap.clear()

    assert heap.free(tree, 1) == 0


def test_free_by_walk__frees_in_the_same_order():
    tree = Tree([5, 3, 9, 1, 7])
    tree.evictable_leaves.update(tree.nodes)
    tree.evictable_leaves.discard(tree.nodes[3])

    assert host_patches.free_by_walk(tree, 3) == 4
    assert tree.freed == [(1, 1), (0, 0)]


class Told:
    """Counts how often it is put into words."""

    def __init__(self):
        self.times = 0

    def __repr__(self):
        self.times += 1
        return "told"


@pytest.mark.parametrize(("variant", "times"), [(Variant.BROKEN, 2), (Variant.FIXED, 0)])
def test_format_queue__only_the_broken_one_puts_into_words_what_no_log_takes(variant, times):
    told = Told()
    (hook,) = host_patches.format_queue(variant)

    assert hook.around(lambda *_: "result", SimpleNamespace(waiting_queue=[told]), SimpleNamespace(reqs=[told])) == "result"
    assert told.times == times


class Tokenizer:
    def __init__(self):
        self.counted = 0

    def __len__(self):
        self.counted += 1
        return 10

    def get_vocab(self):
        self.counted += 1
        return dict.fromkeys(range(10))


@pytest.mark.parametrize(("variant", "counted"), [(Variant.BROKEN, 6), (Variant.FIXED, 1)])
def test_check_tokens__the_broken_one_counts_for_each_token(variant, counted):
    manager = SimpleNamespace(tokenizer=Tokenizer())
    (hook,) = host_patches.check_tokens(variant)

    for _ in range(2):
        assert hook.around(lambda *_: ["text"], manager, SimpleNamespace(decode_ids=[[1, 2], [3]])) == ["text"]
    assert manager.tokenizer.counted == counted


@pytest.mark.parametrize(("variant", "counted"), [(Variant.BROKEN, 3), (Variant.FIXED, 1)])
def test_count_vocabulary__the_broken_one_counts_for_each_request(variant, counted):
    manager = SimpleNamespace(tokenizer=Tokenizer())
    (hook,) = host_patches.count_vocabulary(variant)

    async def tokenize(_manager, request):
        return request

    assert [asyncio.run(hook.around(tokenize, manager, number)) for number in range(3)] == [0, 1, 2]
    assert manager.tokenizer.counted == counted


def test_keep_window__the_broken_one_begins_at_the_first_token():
    status = {"a": SimpleNamespace(surr_offset=7)}
    (broken,), (fixed,) = host_patches.keep_window(Variant.BROKEN), host_patches.keep_window(Variant.FIXED)
    received = SimpleNamespace(rids=["a", "new"])

    fixed.around(lambda *_: None, SimpleNamespace(decode_status=status), received)
    assert status["a"].surr_offset == 7
    broken.around(lambda *_: None, SimpleNamespace(decode_status=status), received)
    assert status["a"].surr_offset == 0


def test_copy_requests__the_broken_one_copies_what_hangs_on_a_request():
    copied = []

    class Parameters:
        def __deepcopy__(self, _memo):
            copied.append(self)
            return self

    request = SimpleNamespace(sampling_params=Parameters(), origin_input_ids=[1], output_ids=[2])
    for variant in Variant:
        (hook,) = host_patches.copy_requests(variant)
        hook.around(lambda *_: None, None, SimpleNamespace(reqs=[request]))

    assert len(copied) == 1


def test_results__are_json_that_can_be_read_elsewhere(tmp_path, home, gate):
    run_exhibit(load_exhibit("one", home), make_museum(tmp_path, gate))

    found = json.loads((home / "one" / "result.json").read_text())

    assert set(found) == {"digest", "predicted", "broken", "fixed"}
    assert HERE.name == "museum"
