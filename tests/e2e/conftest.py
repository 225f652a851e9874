"""Fixtures of the runs for real: a small scenario, and a machine state that is nobody's."""

from importlib.util import find_spec

import pytest

# Small windows and few blocks: these runs prove the path, the calibrated scenarios prove the numbers.
CHANGES = {
    "num_prompts = 304": "num_prompts = 64",
    "looks = [2, 3, 4, 6]": "looks = [2]",
    "steady_ratio = 0.50": "steady_ratio = 5.0",
}


@pytest.fixture(scope="session")
def small_scenario(tmp_path_factory):
    """cpu-moe with small windows."""
    from perfgate.scenario.schema import read_scenario_text

    text, _ = read_scenario_text("cpu-moe")
    for before, after in CHANGES.items():
        if before not in text:
            pytest.fail(f"cpu-moe no longer says {before!r}: change CHANGES with it")
        text = text.replace(before, after)
    path = tmp_path_factory.mktemp("scenario") / "small.toml"
    path.write_text(text)
    return path


@pytest.fixture(scope="session")
def state(tmp_path_factory):
    """A machine state of its own, shared by the runs, so that only the first one calibrates."""
    return tmp_path_factory.mktemp("state")


def pytest_collection_modifyitems(items):
    """Without the engine these tests cannot run; say how to get it."""
    if find_spec("sglang") is None:
        for item in items:
            if item.get_closest_marker("engine"):
                item.add_marker(
                    pytest.mark.skip(reason="SGLang is not installed: run `make test`, or `perfgate engine install`")
                )
