"""Profiles in words: what a stranger reads, and names of kernels that try to be more than names."""

from __future__ import annotations

from dataclasses import replace

import pytest
from markdown_it import MarkdownIt

from perfgate.core import Outcome
from perfgate.evidence import LaunchShape
from perfgate.report.table import lay_out, lay_out_markdown
from perfgate.report.words.breakdown import (
    FASTER_SHOWN,
    LEDGER_SHOWN,
    SLOWER_SHOWN,
    build_breakdown,
    describe_code,
    describe_launches,
    describe_ledger,
    describe_where,
    find_loss,
)
from perfgate.results.profiling.attribution import LaunchDifference, LayerDifference, name_unnamed
from perfgate.results.profiling.host_counts import HostCount
from tests.fakes.verdicts import make_attribution, make_part, median


def make_loss(loss_us, outcome=Outcome.REGRESSION):
    """A judgement of a step of 10 ms that became slower by so many microseconds."""
    return (median(loss_us / 11_130, outcome=outcome),)


def test_build_breakdown__nothing_and_a_reason():
    assert build_breakdown(None) is None
    assert build_breakdown("t.json.gz: truncated").sentence == (
        "The arms were profiled, but that cannot be read: t.json.gz: truncated."
    )


def count_calls(*parts):
    base, candidate = (sum(getattr(part, f"{arm}_count") for part in parts) for arm in ("base", "candidate"))
    return replace(make_attribution(*parts), base_calls=base, candidate_calls=candidate)


def test_build_breakdown__the_three_kinds_of_layer_that_differ_most():
    layers = tuple(
        LayerDifference(layer=layer, base_us=base_us, candidate_us=candidate_us)
        for layer, base_us, candidate_us in (
            ("MoE", 6290.3, 6649.7),
            ("the rest", 130.6, 128.8),
            ("norms", 226.2, 225.0),
            ("attention", 1965.4, 1964.6),
        )
    )
    found = replace(make_attribution(make_part("spin")), layers=layers)

    assert (
        "By layer, what differs most: MoE +359.4 us (6,290.3 to 6,649.7), the rest -1.8 us (130.6 to 128.8), "
        "norms -1.2 us (226.2 to 225.0)."
    ) in build_breakdown(found).sentence


def test_describe_ledger__new_gone_and_more_often():
    parts = (
        make_part("moe_sum", base_count=24.0, candidate_count=0.0),
        make_part("spin", base_count=0.0, candidate_count=24.75),
        make_part("copy", base_count=3.0, candidate_count=4.0),
        make_part("attention", base_count=24.0, candidate_count=24.5),
    )

    assert describe_ledger(count_calls(*parts)) == (
        "Ledger, 51 calls a step in the base, 53.2 in the candidate: +24.8 spin (new), -24.0 moe_sum (gone), +1.0 copy; "
        "all others run as often."
    )
    assert build_breakdown(count_calls(*parts)).sentence.endswith("all others run as often.")


def test_describe__a_kernel_whose_name_was_left_behind():
    """Its digest alone would not say what it is."""
    part = make_part(
        name_unnamed("kernel", "a5a2729ffa0e"), base_us=0.0, candidate_us=24.0, base_count=0.0, candidate_count=24.0
    )

    assert describe_where(make_attribution(part), 24.0).startswith("unnamed-kernel-a5a2729ffa0e (new) +24.0 us a step, all")
    assert "+24.0 unnamed-kernel-a5a2729ffa0e (new);" in describe_ledger(count_calls(make_part("attention"), part))


def test_describe_ledger__the_same_calls_and_none_that_were_summed_up():
    part = make_part("attention", base_count=24.0, candidate_count=24.0)

    assert describe_ledger(count_calls(part)) == (
        "Both arms call the same kernels as often: 24 calls a step in the base, 24 in the candidate."
    )
    assert describe_ledger(make_attribution(part)) == ""


def relaunch(less, more, calls=24.0):
    """Launches of a kernel that the candidate takes less, and more."""
    pairs = [(less, calls, 0.0), (more, 0.0, calls)]
    return tuple(
        LaunchDifference(
            shape=LaunchShape(grid=found[0], block=found[1], registers=found[2], shared_bytes=found[3]),
            base_count=base,
            candidate_count=candidate,
        )
        for found, base, candidate in pairs
        if found
    )


PLAIN = ((360, 1, 1), (256, 1, 1), 16, 0)


@pytest.mark.parametrize(
    ("launches", "words"),
    [
        (relaunch(PLAIN, ((180, 1, 1), (256, 1, 1), 31, 0)), "moe, 24 a step: grid 360 to 180, registers 16 to 31"),
        (
            relaunch(((12, 1, 64), (32, 12, 1), 16, 0), ((12, 1, 8), (32, 12, 1), 16, 12_288)),
            "moe, 24 a step: grid 12x1x64 to 12x1x8, shared bytes 0 to 12,288",
        ),
        (relaunch(None, PLAIN, 0.7), "moe +0.7 a step with grid 360, block 256, registers 16, shared bytes 0"),
        (relaunch(PLAIN, None), "moe -24.0 a step with grid 360, block 256, registers 16, shared bytes 0"),
    ],
)
def test_describe_launches__what_differs_between_the_most_taken(launches, words):
    found = replace(count_calls(make_part("moe", launches=launches)), has_launches=True)

    assert describe_launches(found) == f"Launched otherwise, as often: {words}."
    assert "Nothing on the device changed" not in describe_ledger(found)


def test_describe_launches__a_long_list_is_cut_and_none_is_no_sentence():
    parts = [make_part(f"moe{number}", launches=relaunch(PLAIN, ((1, 1, 1), *PLAIN[1:]))) for number in range(7)]

    assert describe_launches(count_calls(*parts)).endswith("; and 3 more.")
    assert describe_launches(count_calls(make_part("moe"))) == ""


def test_describe_ledger__nothing_on_the_device_changed_where_launches_were_told():
    same = count_calls(make_part("moe"))

    assert "Nothing on the device changed" not in describe_ledger(same)
    assert describe_ledger(replace(same, has_launches=True)).endswith(
        "Nothing on the device changed, as far as names, grids, registers and shared memory tell."
    )
    assert describe_ledger(replace(same, has_launches=True, same_code=3)).endswith(
        "registers and shared memory and the machine code of 3 that Triton compiled tell."
    )


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        (4_020_000.0, "tell, nor on the host: a decode step takes as many instructions there, within 1 %."),
        (3_970_000.0, "tell, nor on the host: a decode step takes as many instructions there, within 1 %."),
        (4_200_000.0, "tell; on the host a decode step takes another number of instructions: tokenizer manager +5.0 %."),
    ],
)
def test_describe_ledger__the_hosts_instructions_where_they_were_counted(candidate, words):
    host = (
        HostCount(part="scheduler", base=9e6, candidate=9.01e6),
        HostCount(part="tokenizer_manager", base=4e6, candidate=candidate),
    )
    same = replace(count_calls(make_part("moe")), has_launches=True, host=host)

    assert describe_ledger(same).endswith(
        f"Nothing on the device changed, as far as names, grids, registers and shared memory {words}"
    )


def test_describe_code__kernels_that_were_compiled_to_other_code():
    parts = [make_part(f"moe{number}", code="other") for number in range(6)]
    found = replace(count_calls(*parts, make_part("same", code="same")), has_launches=True, same_code=1)

    assert describe_code(found) == (
        "Other machine code: moe0, moe1, moe2, moe3 and 2 more; the same in 1 that Triton compiled."
    )
    assert describe_code(count_calls(make_part("moe"))) == ""
    assert "Nothing on the device changed" not in describe_ledger(found)


def test_describe_ledger__a_long_one_is_cut():
    parts = [make_part(f"k{number}", base_count=1.0, candidate_count=3.0 + number) for number in range(LEDGER_SHOWN + 3)]

    assert "and 3 more; all others" in describe_ledger(count_calls(*parts))


@pytest.mark.parametrize(
    ("parts", "loss_us", "words"),
    [
        (
            [(1000.0, 1200.0), (50.0, 40.0)],
            200.0,
            "moe0 +200.0 us a step, all of the loss of 200.0 us; all kernels",
        ),
        (
            [(1000.0, 1100.0)],
            200.0,
            "all kernels together +100.0 us; the rest is outside of them: the host",
        ),
        (
            [(1000.0, 1014.0), (900.0, 791.0)],
            2800.0,
            "Kernels explain nothing of the loss: together they took 95.0 us less, and a step +2,800.0 us: look at the host",
        ),
        ([(1000.0, 1014.0)], 2800.0, "Kernels explain next to nothing of the loss (+14.0 of +2,800.0 us a step)"),
        ([(1000.0, 1500.0)], 200.0, "they do not add up to it"),
    ],
    ids=["explained", "half", "host", "host, and a little", "more than the loss"],
)
def test_build_breakdown__says_how_much_of_the_loss_the_parts_are(parts, loss_us, words):
    made = [make_part(f"moe{place}", *times) for place, times in enumerate(parts)]

    found = build_breakdown(make_attribution(*made), make_loss(loss_us))

    assert words in found.where
    assert found.sentence.startswith(found.where)


def test_build_breakdown__never_blames_a_part_that_got_faster():
    found = build_breakdown(make_attribution(make_part("aten::mm", 900.0, 791.0)), make_loss(2800.0))

    assert "aten::mm" not in found.where
    assert "aten::mm" not in build_breakdown(make_attribution(make_part("aten::mm", 900.0, 791.0))).where


def test_build_breakdown__rows_add_up_to_the_sum():
    parts = make_part("moe", 1000.0, 1200.0), make_part("sum", 50.0, 0.0, candidate_count=0.0)
    found = build_breakdown(make_attribution(*parts, rest_us=10.0), make_loss(300.0))

    assert found.table.rows == [
        ("moe", "1,000.0", "1,200.0", "+200.0", "+67 %", "2"),
        ("sum", "50.0", "0.0", "-50.0", "-17 %", "2 -> 0"),
        ("all others", "10.0", "10.0", "+0.0", "0 %", ""),
        ("sum", "1,060.0", "1,210.0", "+150.0", "+50 %", ""),
    ]


def test_build_breakdown__long_names_and_many_rows():
    slower = [make_part(f"{'void at::native::' * 9}{number}") for number in range(20)]
    faster = [make_part(f"faster{number}", 9.0, 8.0) for number in range(20)]
    table = build_breakdown(make_attribution(*slower, *faster)).table

    assert len(table.rows) == SLOWER_SHOWN + FASTER_SHOWN + 2
    assert table.rows[-2] == ("all others", "504.0", "560.0", "+56.0", "n/a", "")
    assert all(len(row[0]) <= 72 for row in table.rows)


@pytest.mark.parametrize("outcome", [Outcome.PASS, Outcome.REGRESSION])
def test_find_loss__is_of_a_step_that_got_slower(outcome):
    assert find_loss(make_loss(200.0, outcome)) == (pytest.approx(200.0) if outcome is Outcome.REGRESSION else None)
    assert find_loss(make_loss(-200.0, outcome)) is None


def test_build_breakdown__base_that_spent_nothing():
    assert "(n/a)" in build_breakdown(make_attribution(make_part("moe", 0.0, 5.0))).sentence


@pytest.mark.parametrize("name", ["a | b", "</details><script>x</script>", "x\n# heading", "[l](http://e.example)", "\x1b[2J"])
def test_lay_out__hostile_names_stay_names(name):
    table = build_breakdown(make_attribution(make_part(name))).table
    html = MarkdownIt("commonmark").enable("table").render(lay_out_markdown(table))

    assert html.count("<td>") + html.count("<td ") == 2 * len(table.header)
    assert not {"<script", "<h1", "<a ", "</details"} & {tag for tag in ("<script", "<h1", "<a ", "</details") if tag in html}
    assert "\x1b" not in lay_out(table)
