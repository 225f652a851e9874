from __future__ import annotations

import math

import pytest

from perfgate.core import Judgement, Outcome
from perfgate.metrics import METRICS
from perfgate.report.words import wording
from perfgate.report.words.families import list_families, sort_judgements
from perfgate.report.words.figure import MARGIN, WIDTH, ZERO, draw_interval


def judgement(metric="median_itl_ms", change=0.0, low=0.0, high=0.0, margin_ratio=0.1, **more):
    numbers = {"base": 10.0, "candidate": 10.0, "worse": change, "gating": True, "outcome": Outcome.PASS}
    return Judgement(metric=metric, change=change, low=low, high=high, margin_ratio=margin_ratio, **numbers | more)


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0.0244, "+2.4 %"),
        (-0.0244, "-2.4 %"),
        (0.0, "0.0 %"),
        (-0.0001, "0.0 %"),
        (None, "n/a"),
        (math.nan, "n/a"),
        (math.inf, "n/a"),
    ],
)
def test_percent__signs_and_gaps(ratio, text):
    assert wording.percent(ratio) == text


@pytest.mark.parametrize(
    ("metric", "number", "text"),
    [
        ("output_tok_per_s", 12345.67, "12,345.7 tok/s"),
        ("p99_itl_ms", 19.019, "19.02 ms"),
        ("p99_itl_ms", None, "n/a"),
        ("p99_itl_ms", math.nan, "n/a"),
    ],
)
def test_value__decimals_and_unit(metric, number, text):
    assert wording.value(metric, number) == text


def test_limit__is_in_the_readers_sense():
    assert wording.limit(judgement("output_tok_per_s", margin_ratio=0.25)) == "-20.0 %"
    assert wording.limit(judgement("p99_itl_ms", margin_ratio=0.25)) == "+25.0 %"


@pytest.mark.parametrize(
    ("text", "most", "shown"),
    [
        ("short; enough", 20, "short; enough"),
        ("47 of 48 requests completed; read the log", 36, "47 of 48 requests completed"),
        ("it; a clause that is hardly a beginning of what was said", 24, "it; a clause that is..."),
        ("oneverylongwordandnothingelse", 12, "oneverylo..."),
    ],
)
def test_shorten_sentence__ends_behind_a_clause_or_a_word(text, most, shown):
    assert wording.shorten_sentence(text, most) == shown
    assert len(shown) <= most


def test_excluded__a_gain_excludes_any_loss():
    assert wording.excluded(judgement(excluded=-0.01)) == wording.ANY_LOSS
    assert wording.excluded(judgement(excluded=0.02)) == "+2.0 %"


def test_finding__not_judged():
    assert wording.finding(judgement(change=None)) == "Median ITL not judged"


def test_interval__missing_end():
    assert wording.interval(judgement(low=None)) == "n/a"


def test_draw_interval__zero_margin_and_estimate_stand_in_their_places():
    drawn = draw_interval(judgement(change=math.expm1(1.6 * math.log1p(0.1)), low=0.12, high=0.25))

    assert len(drawn) == WIDTH
    assert (drawn[ZERO], drawn[MARGIN], drawn[ZERO + 8]) == ("0", "|", "*")


def test_draw_interval__where_the_metric_fails_from_has_its_place():
    drawn = draw_interval(judgement(fails_from=math.expm1(0.6 * math.log1p(0.1))))

    assert (drawn[ZERO + 3], drawn[MARGIN]) == ("!", "|")


def test_draw_interval__worse_is_right_for_either_direction():
    slower = draw_interval(judgement("median_itl_ms", change=0.08, low=0.06, high=0.1))
    less = draw_interval(judgement("output_tok_per_s", change=1 / 1.08 - 1, low=1 / 1.1 - 1, high=1 / 1.06 - 1))

    assert slower == less
    assert slower.index("*") > ZERO


def test_draw_interval__ends_outside_become_arrows():
    assert draw_interval(judgement(change=0.0, low=-0.9, high=9.0))[0] == "<"
    assert draw_interval(judgement(change=0.0, low=-0.9, high=9.0))[-1] == ">"
    assert draw_interval(judgement(change=3.0, low=2.0, high=4.0))[-1] == "*"
    assert draw_interval(judgement(change=-0.8, low=-0.9, high=-0.7))[0] == "*"


@pytest.mark.parametrize("gap", [{"low": None}, {"high": math.inf}, {"change": math.nan}, {"low": -1.0}])
def test_draw_interval__no_finite_interval_no_picture(gap):
    assert draw_interval(judgement(**gap)) == ""


def test_sort_judgements__worst_first_then_shown_only():
    given = (
        judgement("mean_ttft_ms", change=0.5, gating=False),
        judgement("median_itl_ms", change=0.02),
        judgement("mean_e2e_ms", change=0.08),
        judgement("p95_itl_ms", change=0.01, outcome=Outcome.REGRESSION),
        judgement("p99_itl_ms", gating=False),
        judgement("output_tok_per_s"),
    )

    names = [found.metric for found in sort_judgements(given)]

    assert names == ["p95_itl_ms", "mean_e2e_ms", "median_itl_ms", "output_tok_per_s", "mean_ttft_ms", "p99_itl_ms"]


def test_wording__every_outcome_has_its_words():
    assert all(outcome.icon and outcome.sentence for outcome in Outcome)


def test_wording__every_metric_has_a_title():
    assert all(wording.title(judgement(name)) for name in METRICS)


@pytest.mark.parametrize(
    ("metric", "change", "low", "high", "text"),
    [
        ("median_itl_ms", 0.05, 0.04, 0.06, "\N{UPWARDS ARROW} worse"),
        ("median_itl_ms", -0.05, -0.06, -0.04, "\N{DOWNWARDS ARROW} better"),
        ("output_tok_per_s", -0.05, -0.06, -0.04, "\N{DOWNWARDS ARROW} worse"),
        ("median_itl_ms", 0.05, -0.01, 0.1, "unclear"),
    ],
)
def test_point__says_the_direction_and_what_it_is_worth(metric, change, low, high, text):
    worse = -change if metric == "output_tok_per_s" else change

    assert wording.point(judgement(metric, change, low, high, worse=worse)) == text


def test_list_families__throughput_and_e2e_are_one_line_in_a_closed_loop():
    both = (judgement("mean_e2e_ms", 0.03, worse=0.03), judgement("output_tok_per_s", -0.029, worse=0.0294))

    (closed,), split = list_families(both, is_closed_loop=True), list_families(both, is_closed_loop=False)

    assert closed.title == "Output throughput (= Mean E2E +3.0 %)"
    assert [family.title for family in split] == ["Mean E2E", "Output throughput"]


def test_list_families__the_one_that_decided_gives_the_line():
    lost = judgement("mean_e2e_ms", 0.03, worse=0.03, outcome=Outcome.REGRESSION)

    (family,) = list_families((judgement("output_tok_per_s", -0.029, worse=0.0294), lost), is_closed_loop=True)

    assert family.judgement is lost
