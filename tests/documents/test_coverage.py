"""The page of what is covered: its scenarios ship, its exhibits exist, and nothing that ships is left out."""

import re

import pytest

from perfgate.scenario.catalog import list_matrices, list_pairs, list_scenarios
from tests.documents.tracked import ROOT

PAGE = ROOT / "docs" / "evidence" / "coverage.md"
NAME = re.compile(r"`([^`]+)`")
HEAD = ("feature", "measured by", "evidence", "missing")


def read_rows(text):
    """The cells of the first table, without its head."""
    lines = [line for line in text.split("\n\n## ")[0].splitlines() if line.startswith("| ")]
    rows = [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines]
    assert rows[0] == HEAD
    return rows[1:]


ROWS = read_rows(PAGE.read_text(encoding="utf-8"))


def split_names(cell):
    """The scenarios and matrices, and the exhibits, that a cell names."""
    served, _, museum = cell.partition("museum ")
    return NAME.findall(served), NAME.findall(museum)


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_coverage__names_what_exists_and_says_what_is_missing(row):
    assert len(row) == len(HEAD)
    scenarios, exhibits = split_names(row[1])

    assert set(scenarios) <= {*list_scenarios(), *list_matrices()}
    assert [name for name in exhibits if not (ROOT / "benchmarks" / "museum" / name / "exhibit.toml").is_file()] == []
    assert row[2] != "none" or len(row[3]) > 5
    assert row[1]


def test_coverage__every_model_and_matrix_that_ships_has_a_row():
    named = {name for row in ROWS for name in split_names(row[1])[0]}
    models = {pair.model for pair in list_pairs().values()}

    assert models == {list_pairs()[name].model for name in named if name in list_pairs()}
    assert set(list_matrices()) <= named


def test_coverage__every_feature_of_the_mission_has_a_row():
    text = "\n".join(row[0].lower() for row in ROWS)

    wanted = ["gpt-oss-20b", "deepseek", "mxfp4", "fp8", "triton runner", "fused sum", "vllm", "cuda graphs"]
    wanted += ["tensor parallelism", "expert parallelism", "data parallelism", "prefill and decode on", "eplb", "hicache"]
    wanted += ["multi-token prediction", "speculative decoding", "chunked prefill", "overlap scheduler"]
    assert [feature for feature in wanted if feature not in text] == []
