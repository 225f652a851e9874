"""A verdict as JUnit XML, which GitLab, Jenkins and Buildkite show as tests: one case a gating metric and a counter."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, indent, tostring

from perfgate.core import CountState, Judgement, Outcome, Verdict
from perfgate.metrics import METRICS
from perfgate.report.escape import plain
from perfgate.report.words import wording
from perfgate.verdict.counters import COUNTERS, describe_count

FAILED = {Outcome.REGRESSION: "failure", Outcome.INCONCLUSIVE: "error", Outcome.INVALID: "error"}
"""What an outcome is called: a failure is a loss, an error says that the evidence does not tell."""


def format_junit(verdict: Verdict) -> bytes:
    """Write a suite of one case for the verdict and one for each metric and counter; what only informs is skipped."""
    suite = Element("testsuite", name=f"perfgate {plain(verdict.scenario)}", hostname=plain(verdict.hardware))
    _add(suite, "verdict", verdict.outcome, "; ".join(verdict.reasons))
    for judgement in verdict.judgements:
        title = METRICS[judgement.metric].title if judgement.metric in METRICS else plain(judgement.metric)
        if judgement.gating:
            _add(suite, title, judgement.outcome, _describe(judgement))
        else:
            SubElement(_add_case(suite, title), "skipped", message=plain(_describe(judgement)))
    for count in verdict.counts:
        outcome = Outcome.REGRESSION if count.state is CountState.LOST else Outcome.PASS
        _add(suite, COUNTERS[count.counter].title, outcome, describe_count(count))
    for kind in ("failure", "error", "skipped"):
        suite.set(f"{kind}s" if kind != "skipped" else kind, str(len(suite.findall(f"./testcase/{kind}"))))
    suite.set("tests", str(len(suite)))
    root = Element("testsuites")
    root.append(suite)
    indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{tostring(root, encoding="unicode")}\n'.encode()


def _add(suite: Element, name: str, outcome: Outcome, message: str) -> None:
    case = _add_case(suite, name)
    if outcome in FAILED:
        SubElement(case, FAILED[outcome], type=outcome.value, message=plain(f"{outcome}: {message}"))


def _add_case(suite: Element, name: str) -> Element:
    return SubElement(suite, "testcase", classname=suite.get("name", ""), name=name)


def _describe(judgement: Judgement) -> str:
    is_known = judgement.metric in METRICS
    limit = wording.limit(judgement) if is_known else wording.percent(judgement.margin_ratio)
    return f"{wording.percent(judgement.change)} (margin {limit}, bounds {wording.interval(judgement)})"
