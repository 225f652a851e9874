"""A matrix file: what it says, in which order it is measured, and what is wrong with it."""

from dataclasses import fields
from pathlib import Path

import pytest

from perfgate.errors import ScenarioError
from perfgate.readers.matrix_log import parse_matrix_log
from perfgate.scenario.catalog import find_matrix, list_matrices, load_scenario, read_matrix_text
from perfgate.scenario.matrix import parse_matrix

FILE = Path(__file__).parents[1] / "fakes" / "matrix.toml"
TEXT = FILE.read_text()


def test_order__every_other_round_goes_backwards():
    order = list(parse_matrix(TEXT, "test").order())

    assert order == [
        (1, "plain", ("closed", "paced")),
        (1, "slowed", ("closed", "paced")),
        (2, "slowed", ("paced", "closed")),
        (2, "plain", ("paced", "closed")),
    ]


def test_build_scenario__a_cell_is_what_a_scenario_would_be():
    matrix = parse_matrix(TEXT, "test")
    cell = matrix.build_scenario("slowed", "paced")

    assert (cell.server.env, cell.load.request_rate) == ({"FAKE_SLOW": "2.0"}, 4.0)
    assert cell.workload_hash != matrix.build_scenario("plain", "paced").workload_hash


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("rounds = 2", "rounds = 0", "test:4: rounds: must be greater than or equal to 1, not 0"),
        ("rounds = 2", "round = 2", "test:4: round: no such key; did you mean rounds?"),
        ("windows = 2", "windows = true", "windows: must be a valid integer, not True"),
        ("[loads.paced]", "[loads.Paced]", "loads.Paced"),
        ("num_prompts = 8", "num_prompts = 0", "loads.closed.num_prompts: must be greater than 0, not 0"),
        ("[warmup]", "[warmup", "not valid TOML"),
        ('engine = "sglang-cpu"', 'engine = "other"', "servers.plain.engine"),
    ],
)
def test_parse_matrix__refused(before, after, words):
    assert before in TEXT

    with pytest.raises(ScenarioError) as caught:
        parse_matrix(TEXT.replace(before, after, 1), "test")

    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_parse_matrix__the_one_in_the_documentation():
    page = (FILE.parents[2] / "docs" / "how-to" / "matrix.md").read_text()
    matrix = parse_matrix(page.split("```toml\n")[1].split("```")[0], "docs/how-to/matrix.md")

    assert len(list(matrix.order())) == 4
    assert all(f"| `{field.name}` |" in page or f"`{field.name}.NAME`" in page for field in fields(matrix))


@pytest.mark.parametrize("side", ["servers", "loads"])
def test_parse_matrix__a_side_is_empty(side):
    kept = [block for block in TEXT.split("\n\n") if not block.startswith(f"[{side}.")]

    with pytest.raises(ScenarioError, match=f"{side}: is empty; name at least one"):
        parse_matrix("\n\n".join([*kept, f"[{side}]"]), "test")


def test_find_matrix__the_sweep_that_ships():
    matrix = parse_matrix(read_matrix_text(find_matrix("gpt-oss-20b-shape-sweep")), "sweep")
    widths = [load.max_concurrency for load in matrix.loads.values()]

    assert list_matrices() == ("gpt-oss-20b-shape-backends", "gpt-oss-20b-shape-spread", "gpt-oss-20b-shape-sweep")
    assert widths == [2**power for power in range(8)]
    assert list(matrix.loads) == [f"c{width}" for width in widths]
    # A window shorter than a few turns of all its requests is mostly begin and end.
    assert all(load.num_prompts >= 4 * load.max_concurrency for load in matrix.loads.values())
    assert matrix.model == load_scenario("gpt-oss-20b-shape-mxfp4-closed-c16").model


def test_find_matrix__what_is_spread_over_two_gpus_differs_in_that_alone():
    matrix = parse_matrix(read_matrix_text(find_matrix("gpt-oss-20b-shape-spread")), "spread")
    one, two = (load_scenario(f"gpt-oss-20b-shape-bf16{spread}-closed-c16") for spread in ("", "-ep2"))
    experts = two.server.args.index("--ep-size")
    tensor = (*two.server.args[:experts], *two.server.args[experts + 2 :])

    assert {name: server.args for name, server in matrix.servers.items()} == {
        "tp1": one.server.args,
        "tp2": tensor,
        "ep2": two.server.args,
    }
    assert [server.gpus for server in matrix.servers.values()] == [1, 2, 2]
    assert {server.env == two.server.env for server in list(matrix.servers.values())[1:]} == {True}
    assert matrix.model == one.model
    assert [load.max_concurrency for load in matrix.loads.values()] == [1, 8, 32, 128]
    # Shards draw their own weights.
    assert not matrix.equivalence.enabled


def test_find_matrix__the_founding_matrix_that_ships():
    """The loads are those of the founding log, by name and by number."""
    matrix = parse_matrix(read_matrix_text(find_matrix("gpt-oss-20b-shape-backends")), "backends")
    cells = parse_matrix_log((FILE.parents[1] / "fixtures" / "runs" / "matrix.log").read_text(), "matrix.log")
    logged = {cell.client: cell.run.workload for cell in cells}

    assert len(list(matrix.order())) == 2 * 2
    assert list(matrix.loads) == list(logged)
    for name, load in matrix.loads.items():
        assert (load.num_prompts, load.max_concurrency) == tuple(map(int, name.removeprefix("rand").split("x")))
        assert (load.input_len, load.output_len) == (logged[name]["random_input_len"], logged[name]["random_output_len"])
    assert [server.args[:2] for server in matrix.servers.values()] == [
        ("--moe-runner-backend", "triton"),
        ("--moe-runner-backend", "triton_kernel"),
    ]
    assert len({server.args[2:] for server in matrix.servers.values()}) == 1
    # They round apart, by more than two builds of one runner may.
    assert not matrix.equivalence.enabled
    assert matrix.model == load_scenario("gpt-oss-20b-shape-mxfp4-closed-c16").model


def test_find_matrix__names_and_paths():
    assert find_matrix("here.toml") == Path("here.toml")
    assert find_matrix("some/where") == Path("some/where")
    with pytest.raises(ScenarioError, match="unknown matrix 'sweep': choose from gpt-oss-20b-shape-backends, gpt-oss-20b-"):
        find_matrix("sweep")


def test_read_matrix_text__no_such_file(tmp_path):
    with pytest.raises(ScenarioError, match="cannot be read"):
        read_matrix_text(tmp_path / "none.toml")
