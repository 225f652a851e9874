"""Host work of two arms against each other: what fails, what is told, what did not repeat."""

from dataclasses import replace

import pytest

from perfgate.resolution.values import EXIT_CODES, Kind, ResolveAnswer
from perfgate.scheduler.judge import RULES, compare_work
from perfgate.scheduler.report import list_counts, write_document, write_lines
from perfgate.scheduler.values import CostGap, GapKind, HostWork

STEP = "scheduler.decode_step"
LEVELS = {"instructions": (2_000_000.0, 2_010_000.0, 2_004_000.0), "cpu_us": (510.0, 900.0, 520.0)}


def make_work(changes=None):
    """An arm whose windows are the same in both runs but for CPU time; `changes` are windows by key."""
    runs = {}
    for key in RULES:
        name = key.rpartition(".")[2]
        windows = (changes or {}).get(key) or LEVELS.get(name, (3.0, 3.0, 3.0))
        runs[key] = (windows,) if name == "instructions" else (windows, windows)
    return HostWork(name="tree", version="0.5.15.post1", runs=runs)


def compare_one(key, windows, accepted=None):
    return compare_work(make_work(), make_work({key: windows}), accepted or {})


def grow(share):
    return tuple(value * (1 + share) for value in LEVELS["instructions"])


def test_compare_work__equal_arms_have_no_difference():
    comparison = compare_work(make_work(), make_work(), {})

    assert (comparison.answer, comparison.differences, comparison.unverified) == (ResolveAnswer.SAME, (), ())
    assert len(list(write_lines(comparison))) == 8  # the arms, six costs, the answer


def test_list_counts__of_parts_whose_instructions_repeated():
    comparison = compare_one(f"{STEP}.instructions", grow(0.03))
    scattered = replace(
        comparison, unverified=(CostGap(key="detokenizer.decode_step.instructions", kind=GapKind.UNSTEADY, arm="tree"),)
    )

    assert [(one.part, round(one.change, 6)) for one in list_counts(scattered)] == [
        ("scheduler", 0.03),
        ("tokenizer_manager", 0.0),
    ]


@pytest.mark.parametrize(
    ("key", "windows"),
    [
        (f"{STEP}.instructions", grow(0.03)),
        ("tokenizer_manager.request.instructions", grow(0.021)),
        (f"{STEP}.host_reads", (4.0, 4.0, 4.0)),
        (f"{STEP}.log_records", (3.5, 3.5, 3.5)),
        ("detokenizer.request.copies", (4.0, 4.0, 4.0)),
        ("scheduler.round.steps", (4.0, 4.0, 4.0)),
        ("scheduler.queue.steps", (3.07, 3.07, 3.07)),
    ],
)
def test_compare_work__more_than_the_limit_is_one_loss(key, windows):
    comparison = compare_one(key, windows)

    assert [(one.key, one.kind) for one in comparison.differences] == [(key, Kind.LOST)]
    assert EXIT_CODES[comparison.answer] == 1
    assert any(line.startswith(f"lost  {key} ") for line in write_lines(comparison))


@pytest.mark.parametrize(
    ("key", "windows"),
    [
        (f"{STEP}.instructions", grow(0.015)),
        (f"{STEP}.instructions", grow(-0.10)),
        (f"{STEP}.host_reads", (2.0, 2.0, 2.0)),
        (f"{STEP}.log_records", (3.025, 3.025, 3.025)),
        ("channels.decode_step.bytes", (4.0, 4.0, 4.0)),
        ("scheduler.queue.steps", (3.05, 3.05, 3.05)),
    ],
)
def test_compare_work__less_than_the_limit_is_told_and_never_fails(key, windows):
    comparison = compare_one(key, windows)

    assert [(one.key, one.kind) for one in comparison.differences] == [(key, Kind.CHANGED)]
    assert EXIT_CODES[comparison.answer] == 0


def test_compare_work__time_is_shown_and_decides_nothing():
    comparison = compare_one(f"{STEP}.cpu_us", (5100.0, 9000.0, 5200.0))

    assert comparison.answer is ResolveAnswer.SAME
    assert "2.004 M instructions, 520 us -> 2.004 M instructions, 5200 us" in list(write_lines(comparison))[1]


def test_compare_work__an_accepted_loss_passes_with_its_reason():
    key = f"{STEP}.instructions"

    comparison = compare_one(key, grow(0.05), {key: "pays for the cache"})

    assert comparison.answer is ResolveAnswer.CHANGED
    assert "(+5.0 %); accepted: pays for the cache" in list(write_lines(comparison))[-2]


def test_compare_work__runs_of_one_arm_that_differ_say_nothing_of_the_key():
    key, candidate = f"{STEP}.host_reads", make_work()
    unsteady = replace(candidate, runs={**candidate.runs, key: ((3.0, 3.0, 3.0), (3.0, 4.0, 3.0))})

    comparison = compare_work(make_work(), unsteady, {})

    assert comparison.answer is ResolveAnswer.UNVERIFIED
    assert EXIT_CODES[comparison.answer] == 3
    assert comparison.unverified[0] == CostGap(key=key, kind=GapKind.UNSTEADY, arm="tree")
    assert f"unverified  {key}: two runs of tree differ; what changes from run to run cannot be compared" in write_lines(
        comparison
    )


def test_compare_work__a_change_of_one_window_is_no_change_of_the_arm():
    key = f"{STEP}.instructions"
    first, *others = LEVELS["instructions"]

    comparison = compare_one(key, (first * 1.04, *others))

    assert comparison.answer is ResolveAnswer.UNVERIFIED
    assert comparison.unverified[0].kind is GapKind.UNEVEN


def test_compare_work__a_change_of_all_windows_is_a_loss_however_they_scatter():
    key = f"{STEP}.instructions"
    first, second, third = LEVELS["instructions"]

    comparison = compare_one(key, (first * 1.04, second * 1.08, third * 1.05))

    assert comparison.answer is ResolveAnswer.LOST


@pytest.mark.parametrize(
    ("runs", "gap"),
    [((), {"kind": GapKind.MISSING, "arm": "tree"}), (((1.0,),), {"kind": GapKind.OTHER_WINDOWS})],
)
def test_compare_work__windows_that_are_missing_are_no_sameness(runs, gap):
    key, candidate = f"{STEP}.instructions", make_work()

    comparison = compare_work(make_work(), replace(candidate, runs={**candidate.runs, key: runs}), {})

    assert comparison.answer is ResolveAnswer.UNVERIFIED
    assert comparison.unverified[0] == CostGap(key=key, **gap)


def test_write_document__has_every_window():
    document = write_document(compare_one(f"{STEP}.instructions", grow(0.03)))

    assert document["answer"] == "lost"
    assert document["base"]["runs"][f"{STEP}.cpu_us"][1] == LEVELS["cpu_us"]
