"""Five packages of real wheels were bumped, one of them is slower: it is the one that is named."""

from benchmarks.deps.run import NAMES, search


def test_deps__the_slow_package_is_named_and_the_search_can_be_read_again(tmp_path):
    told = search(tmp_path, "delta")

    (culprit,) = (row for row in told["commits"] if row["commit"] == told["culprit"])
    assert (told["outcome"], culprit["subject"]) == ("FOUND", "delta 1 -> 2")
    assert told["meaning"] == "this package made it slower"
    assert told["command"] is None
    assert [row["subject"] for row in told["commits"][1:]] == [f"{name} 1 -> 2" for name in NAMES]
    assert 0.05 < told["commits"][-1]["change"] < 0.15
