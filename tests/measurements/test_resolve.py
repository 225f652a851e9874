"""The page about releases stands on the stored comparisons."""

from itertools import pairwise

from benchmarks.resolve.page import NOT_FOUND, PAGE, SAMPLED, load, render
from benchmarks.resolve.releases import RELEASES
from benchmarks.resolve.seeds import SEEDS


def test_page__is_what_the_results_say():
    assert PAGE.read_text(encoding="utf-8") == render(), "python -m benchmarks.resolve.page"


def test_seeds__each_was_found_by_one_line_and_equal_trees_have_none():
    results = load("seeds")

    assert list(results) == [seed.name for seed in SEEDS]
    for seed in SEEDS:
        lines = results[seed.name]["lines"][1:-1]
        assert [line.split("  ")[1].startswith(seed.key) for line in lines] == [True] * bool(seed.key), seed.name


def test_releases__every_part_of_every_pair_was_verified():
    for base, candidate in pairwise(RELEASES):
        document = load(f"{base}-{candidate}")

        assert (document["base"]["version"], document["candidate"]["version"]) == (base, candidate)
        assert document["unverified"] == []


def test_sampled__every_pair_was_looked_up():
    names = {f"{base} -> {candidate}" for base, candidate in pairwise(RELEASES)}

    assert {pair for pair, *_ in SAMPLED} | NOT_FOUND.keys() == names | {"all"}
