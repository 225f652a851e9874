"""A gate that ends before it measures, for real: stopped, never ready, dead, or of a model that has no experts."""

import signal

import pytest

from tests.e2e.commands import interrupt_perfgate, run_perfgate, wait_for_leftovers

# One group, and not that of the gates: nothing is measured here. Two of these at once would be four servers that load.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800), pytest.mark.xdist_group("engine-loading")]


@pytest.mark.parametrize(
    ("number", "marker"),
    # At "block 1" the servers are just being started: the moment at which one could be started and not yet be known.
    [(signal.SIGINT, "block 1"), (signal.SIGTERM, "block 1"), (signal.SIGKILL, "server loading")],
)
def test_run__stopped_while_a_server_loads_leaves_nothing(small_scenario, tmp_path, number, marker):
    state = tmp_path / "state"
    ended = interrupt_perfgate(state, number, marker, "run", small_scenario, "--out", tmp_path / "cut")

    assert ended.code == (-number if number == signal.SIGKILL else 130), ended.err
    assert wait_for_leftovers(state) == []
    assert (tmp_path / "cut" / "session.json").exists()


def test_run__server_that_never_becomes_ready_is_invalid(stored_noise, short_scenario, tmp_path):
    text = short_scenario.read_text().replace("ready_timeout_s = 300.0", "ready_timeout_s = 1.0")
    (tmp_path / "hasty.toml").write_text(text)
    ended = run_perfgate(stored_noise, "gate", tmp_path / "hasty.toml", "--out", tmp_path / "hasty")

    assert ended.code == 3, ended.out + ended.err
    assert "not ready after 1 s" in ended.out
    assert wait_for_leftovers(stored_noise) == []


def test_run__server_that_dies_tells_the_line_of_its_log(stored_noise, short_scenario, tmp_path):
    arguments = ("gate", short_scenario, "--out", tmp_path / "dead")
    ended = run_perfgate(stored_noise, *arguments, "--candidate-arg=--no-such-flag-of-sglang")

    assert ended.code == 3, ended.out + ended.err
    assert "ended by itself with exit code 2" in ended.out
    assert "no-such-flag-of-sglang" in ended.out
    assert wait_for_leftovers(stored_noise) == []


def test_gate__dense_model_is_invalid_before_anything_starts(small_scenario, tmp_path):
    state, model = tmp_path / "state", tmp_path / "dense"
    model.mkdir()
    (model / "config.json").write_text('{"architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 28, "hidden_size": 1536}')
    (tmp_path / "dense.toml").write_text(small_scenario.read_text().replace("generated:tiny-qwen3-moe", str(model)))
    ended = run_perfgate(state, "run", tmp_path / "dense.toml", "--out", tmp_path / "result")
    judged = run_perfgate(state, "check", tmp_path / "result")

    assert judged.code == 3
    assert "num_experts_per_tok" in judged.out
    assert not list((tmp_path / "result" / "logs").iterdir())
    assert ended.code == 3
