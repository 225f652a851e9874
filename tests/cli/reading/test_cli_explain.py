"""Five sentences on why a metric was judged as it was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfgate.cli import main
from perfgate.core import PUBLISHED, Outcome, Role
from perfgate.report.words.explanation import explain_metric
from tests.fakes.sessions import make_scenario, make_session, write_folder
from tests.fakes.verdicts import CASES, case_invalid, case_regression, make_window


@pytest.fixture(scope="module")
def slower(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("explain") / "slower", make_session(make_scenario(), worse=0.2, blocks=3))


def test_explain__a_loss_in_five_sentences(slower, capsys):
    assert main(["explain", str(slower), "median_itl_ms"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("Median ITL went from 1")
    assert lines[0].endswith("(worse): REGRESSION.")
    assert "stand against the margin of +3.0 % and no stored noise band: the loss is surely above zero" in lines[1]
    assert "It rests on 2 blocks of fresh servers and 12 judged windows; looks were planned after 2, 3, 4, 6 blocks" in lines[2]
    assert "each with at most 0.25 % false alarms" in lines[2]
    assert lines[3] == "No judged window was measured again, cut off or void."
    assert lines[4].startswith("Find the cause (`perfgate profile`")


@pytest.mark.parametrize(("low", "said"), [(-0.01, "+4.0 % (unclear): "), (0.01, "+4.0 % (worse): ")])
def test_explain_metric__calls_nothing_worse_that_the_table_calls_unclear(low, said):
    verdict, session, *_ = case_regression()
    judgement = replace(verdict.judgements[0], metric="median_itl_ms", change=0.04, worse=0.0392, low=low, high=0.09)

    assert said in explain_metric(judgement, verdict, session)[0]


def test_explain__takes_the_title_too(slower, capsys):
    assert main(["explain", str(slower), "p99 itl"]) == 0
    assert capsys.readouterr().out.startswith("P99 ITL went from")


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("p99_itl", "METRIC p99_itl: no such metric; did you mean p99_itl_ms"),
        ("throughput", "did you mean output_tok_per_s"),
        ("zzz", "did you mean output_tok_per_s, p99_itl_ms, median_itl_ms?"),
        ("max_itl_ms", "the scenario does not judge it; choose from output_tok_per_s"),
        ("\x1b[2J", "no such metric"),
    ],
)
def test_explain__an_unknown_metric_gives_the_near_names(slower, capsys, metric, words):
    assert main(["explain", str(slower), metric]) == 2

    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n"), "\x1b" in captured.err) == ("", 1, False)
    assert words in captured.err


@pytest.mark.parametrize("name", CASES)
def test_explain_metric__five_sentences_for_every_outcome(name):
    verdict, session, *_ = CASES[name]()

    for judgement in verdict.judgements:
        sentences = explain_metric(judgement, verdict, session)
        assert len(sentences) == 5
        assert all(sentence.endswith(".") and "None" not in sentence for sentence in sentences)


def test_explain_metric__undecided_names_a_command_that_runs_as_it_stands():
    """`perfgate power` alone is refused: it takes a scenario, and of several machines the noise that counted."""
    verdict, session, *_ = CASES["inconclusive"]()

    said = explain_metric(verdict.judgements[0], verdict, replace(session, noise="r/baselines"))[4]
    assert ": `perfgate power --scenario cpu-moe --baselines r/baselines` says what they find; see https" in said
    unknown = replace(verdict, policy={**verdict.policy, "aa_blocks": 0})
    assert "power" not in explain_metric(verdict.judgements[0], unknown, session)[4]


def test_explain_metric__says_what_was_measured_again():
    verdict, session, *_ = case_regression()
    window = make_window(role=Role.RERUN)

    said = explain_metric(verdict.judgements[0], verdict, replace(session, windows=(window,), superseded=(window, window)))[3]

    assert said == "1 window stalled and had to be measured again; 2 windows were cut off by a break and measured anew."


def test_explain_metric__says_what_voided_it():
    verdict, session, *_ = case_invalid()
    verdict = replace(verdict, reasons=("server ended by itself with exit code 1 (log a.log)", "and more"))

    sentences = explain_metric(verdict.judgements[0], verdict, session)

    assert sentences[0] == "Output throughput was not judged: INVALID."
    assert sentences[3] == "The session is void: server ended by itself with exit code 1 (log a.log) (and 1 more)."
    place = f"{PUBLISHED}docs/troubleshooting.md#a-server-did-not-start-or-ended"
    assert sentences[4] == f"Remove what voided the session ({place}), then measure again."


def test_explain_metric__one_that_only_informs():
    verdict, session, *_ = CASES["pass"]()
    shown = next(judgement for judgement in verdict.judgements if not judgement.gating)

    sentences = explain_metric(replace(shown, outcome=Outcome.REGRESSION), verdict, session)

    assert sentences[0].endswith("REGRESSION, and it only informs.")
    assert sentences[4].startswith("It cannot fail the change")
