"""What real servers answer and run: a right one gives the base's answers, a wrong one is told from it, both show operators."""

import contextlib
import sys
from pathlib import Path

import pytest

from perfgate.core import Arm
from perfgate.engines.table import ENGINES
from perfgate.evidence import Answers
from perfgate.results.answers import load_answers, store_answers
from perfgate.results.profiling.profiles import Profile, attribute_profiles, load_profiles
from perfgate.scenario.catalog import load_scenario
from perfgate.scenario.schema import Scenario
from perfgate.serving.engine.launch import Launch
from perfgate.serving.engine.reaper import Reaper
from perfgate.serving.engine.server import Server
from perfgate.serving.equivalence import ask
from perfgate.serving.model.tiny_model import write_tiny_model
from perfgate.serving.profiling import profile_server
from perfgate.verdict.validity.equivalence import check_equivalence, compare_starts

# One group: two gates at once on one machine would be each other's noise.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), pytest.mark.xdist_group("engine")]

# The candidate sends each token to one expert of the two that it should visit: faster, and wrong.
WRONG = ("--json-model-override-args", '{"num_experts_per_tok": 1}')


def build_launch(scenario: Scenario, model: Path, args: tuple[str, ...]) -> Launch:
    return Launch(
        engine=ENGINES["sglang-cpu"],
        python=sys.executable,
        model=model,
        args=(*scenario.server.args, *args),
        env=scenario.server.env,
        ready_timeout_s=300.0,
        stop_timeout_s=2.0,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Answers of a base, asked twice, and of a wrong candidate; a profile of each."""
    folder = tmp_path_factory.mktemp("answers")
    scenario = load_scenario("cpu-moe")
    model = write_tiny_model(folder / "model", "tiny-qwen3-moe")
    reaper = Reaper()
    with contextlib.ExitStack() as stack:
        stack.callback(reaper.close)
        servers = {
            arm: stack.enter_context(Server(build_launch(scenario, model, args), folder / f"{arm.value}.log", reaper))
            for arm, args in {Arm.BASE: (), Arm.CANDIDATE: WRONG}.items()
        }
        for number, (arm, server) in enumerate(servers.items(), start=1):
            server.wait_ready()
            for start in (number, number + 10):
                body, question = ask(server, scenario.equivalence)
                store_answers(folder, body, Answers(arm=arm, block=1, start=start, question=question))
            profile_server(server, scenario.load, folder, Profile(arm=arm, block=1, start=number))
    return folder


def test_ask__a_server_gives_its_own_answers_again(folder):
    answers = {found.start: found for found in load_answers(folder)}
    drift = compare_starts(answers[1], answers[11])

    assert [found.problem for found in answers.values()] == [None] * 4
    assert drift.mean < 0.01


def test_check_equivalence__one_expert_of_two_is_wrong(folder):
    [problem] = check_equivalence(load_answers(folder), load_scenario("cpu-moe").equivalence)

    assert "its answers are wrong, however fast" in problem


def test_profile_server__shows_the_operators_of_both(folder):
    found = attribute_profiles(load_profiles(folder))
    # Which requests meet in the profiled steps is chance: an operator of prefill may show in one arm alone.
    shared = {part.name for part in found.parts if part.base_count > 0 and part.candidate_count > 0}

    assert found.kind == "operator"
    assert shared & {"aten::mm", "aten::linear"}, found.parts
