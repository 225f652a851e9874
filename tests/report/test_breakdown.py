"""Profiles in words: what a stranger reads, and names of kernels that try to be more than names."""

import pytest
from markdown_it import MarkdownIt

from perfgate.report.breakdown import ROWS_SHOWN, build_breakdown
from perfgate.report.table import lay_out, lay_out_markdown
from perfgate.results.attribution import Attribution, KernelDifference


def make_part(name, base_us=30.0, candidate_us=36.0, share=0.5, **counts):
    calls = {"base_count": 2.0, "candidate_count": 2.0, **counts}
    return KernelDifference(name=name, base_us=base_us, candidate_us=candidate_us, share=share, **calls)


def make_attribution(*parts, kind="kernel"):
    base, candidate = sum(part.base_us for part in parts), sum(part.candidate_us for part in parts)
    return Attribution(kind=kind, parts=parts, base_us=base, candidate_us=candidate)


def test_build_breakdown__nothing_and_a_reason():
    assert build_breakdown(None) is None
    assert build_breakdown("t.json.gz: truncated").sentence == (
        "The arms were profiled, but that cannot be read: t.json.gz: truncated."
    )


def test_build_breakdown__sentence_and_rows():
    found = build_breakdown(
        make_attribution(make_part("moe", 1000.0, 1200.0, 0.8), make_part("sum", 50.0, 0.0, -0.2, candidate_count=0.0))
    )

    assert found.sentence.startswith(
        "All kernels of one forward step take 1,050.0 us in the base and 1,200.0 us in the candidate (+14.3 %)"
    )
    assert found.table.rows == [
        ("moe", "1,000.0", "1,200.0", "+200.0", "+80 %", "2"),
        ("sum", "50.0", "0.0", "-50.0", "-20 %", "2 -> 0"),
    ]


def test_build_breakdown__long_names_and_many_rows():
    parts = [make_part(f"{'void at::native::' * 9}{number}", share=0.05) for number in range(20)]
    table = build_breakdown(make_attribution(*parts)).table

    assert len(table.rows) == ROWS_SHOWN + 1
    assert table.rows[-1] == ("8 others", "240.0", "288.0", "+48.0", "40 %", "")
    assert all(len(row[0]) <= 72 for row in table.rows)


def test_build_breakdown__base_that_spent_nothing():
    assert "(n/a)" in build_breakdown(make_attribution(make_part("moe", 0.0, 5.0))).sentence


@pytest.mark.parametrize("name", ["a | b", "</details><script>x</script>", "x\n# heading", "[l](http://e.example)", "\x1b[2J"])
def test_lay_out__hostile_names_stay_names(name):
    table = build_breakdown(make_attribution(make_part(name))).table
    html = MarkdownIt("commonmark").enable("table").render(lay_out_markdown(table))

    assert html.count("<td>") + html.count("<td ") == len(table.header)
    assert not {"<script", "<h1", "<a ", "</details"} & {tag for tag in ("<script", "<h1", "<a ", "</details") if tag in html}
    assert "\x1b" not in lay_out(table)
