"""Fixtures of the runs for real: a small scenario, and a machine state of their own."""

import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fakes.sessions import make_baseline

# Standard deviation of the logarithm of a window in the noise that is stored for a run whose outcome must not depend on what
# else this machine does: three times that of a quiet one, so that it hides nothing and finds what is large.
STORED_NOISE = 0.05

TESTS = Path(__file__).parents[1]
# Behind it the checkout, for where perfgate is not installed.
FORKING = os.pathsep.join(map(str, (TESTS / "fakes" / "forking", TESTS.parent)))

# Small windows and few blocks: these runs prove the path, the calibrated scenarios prove the numbers. Few long answers for many
# short ones: where the engine's API process gets no processor, an answer's first piece holds several tokens, whose gaps are
# missing. Of answers of six tokens on a busy machine that was more than the twentieth which a window may lack. SGLang does not
# end within two seconds of being asked, so that each server costs them; it is killed all the same. It forks
# what SGLang starts anew, and is ready after half of the work; test_cpu_server.py starts one as everywhere else.
CHANGES = {
    "num_prompts = 304": "num_prompts = 8",
    "output_len = 6": "output_len = 64",
    "windows = 3": "windows = 2",
    "looks = [2, 3, 4, 6]": "looks = [2]",
    "steady_ratio = 0.50": "steady_ratio = 5.0",
    "stop_timeout_s = 2.0": "stop_timeout_s = 0.2",
    'OMP_NUM_THREADS = "1"': f'OMP_NUM_THREADS = "1", PYTHONPATH = "{FORKING}"',
}


SHORT_ANSWERS = """
[equivalence]
output_len = 4
"""


def change_scenario(changes):
    """The text of cpu-moe with changes."""
    from perfgate.scenario.catalog import read_scenario_text

    text, _ = read_scenario_text("cpu-moe")
    for before, after in changes.items():
        if before not in text:
            pytest.fail(f"cpu-moe no longer says {before!r}: change CHANGES with it")
        text = text.replace(before, after)
    return text


@pytest.fixture(scope="session")
def small_scenario(tmp_path_factory):
    """cpu-moe with small windows."""
    path = tmp_path_factory.mktemp("scenario") / "small.toml"
    path.write_text(change_scenario(CHANGES))
    return path


@pytest.fixture(scope="session")
def state(tmp_path_factory):
    """A machine state of its own, shared by the runs, so that only the first one calibrates."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="session")
def short_scenario(tmp_path_factory):
    """Fewer steps a window and a question, for a server that takes very long over each.

    A server without a core for a moment sends two tokens of each answer at once, all at the same time: so many steps that one
    such moment is less than the twentieth.
    """
    path = tmp_path_factory.mktemp("scenario") / "short.toml"
    path.write_text(change_scenario({**CHANGES, "output_len = 6": "output_len = 24"}) + SHORT_ANSWERS)
    return path


@pytest.fixture(scope="session")
def stored_noise(short_scenario, tmp_path_factory):
    """A machine state whose noise was stored before. A calibration beside other work would store that work as noise."""
    from perfgate.gate.baselines import find_path, save_baseline
    from perfgate.machine.fingerprint import read_fingerprint
    from perfgate.scenario.schema import parse_scenario

    state = tmp_path_factory.mktemp("stored")
    scenario = parse_scenario(short_scenario.read_text(), str(short_scenario))
    # The made windows tell of no metric that only informs.
    judged = replace(scenario, gates={name: gate for name, gate in scenario.gates.items() if not gate.advisory})
    baseline = replace(make_baseline(judged, noise=STORED_NOISE), fingerprint=read_fingerprint())
    save_baseline(baseline, find_path(state / "baselines", baseline.fingerprint, scenario.name))
    return state


def pytest_collection_modifyitems(items):
    """Without the engine these tests cannot run; say how to get it."""
    if find_spec("sglang") is None:
        for item in items:
            if item.get_closest_marker("engine"):
                item.add_marker(
                    pytest.mark.skip(reason="SGLang is not installed: run `make test-all`, or `perfgate engine install`")
                )
