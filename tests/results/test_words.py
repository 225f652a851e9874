import pytest

from perfgate.core import Remark, RemarkKind
from perfgate.evidence import Damage, DamageKind, DriverProblem
from perfgate.results.words import describe_damage, describe_driver_problem, describe_remark


@pytest.mark.parametrize("kind", RemarkKind)
def test_describe_remark__every_kind_has_words(kind):
    assert describe_remark(Remark(kind=kind, detail="{output_throughput}"))


@pytest.mark.parametrize("kind", DamageKind)
def test_describe_damage__every_kind_has_words(kind):
    assert "{windows/0000}" in describe_damage(Damage(kind=kind, file="{windows/0000}", detail="{windows/0000}"))


@pytest.mark.parametrize(
    ("remark", "words"),
    [
        (
            Remark(kind=RemarkKind.FAILED, found=1, due=400, detail="TimeoutError"),
            "1 of 400 requests failed (TimeoutError): read the server's log, then measure again",
        ),
        (
            Remark(kind=RemarkKind.OTHER_RATE, found=373912.0, due=20.0, detail="output_tok_per_s"),
            (
                "output_tok_per_s says 373912.00 where count over duration makes 20.00: the output was edited or mixed;"
                " measure again"
            ),
        ),
        (
            Remark(kind=RemarkKind.FEW_GAPS, found=29, due=36),
            (
                "29 inter-token gaps for 36 due: requests broke off, or the server sent several tokens at once, as one without"
                " processor time does; stream every token, stop other work on the machine, then measure again"
            ),
        ),
        (Remark(kind=RemarkKind.OF_SESSION, detail="the server died"), "the server died"),
    ],
)
def test_describe_remark__with_its_numbers(remark, words):
    assert describe_remark(remark) == words


@pytest.mark.parametrize(("round_", "words"), [(None, "the server died"), (2, "round 2: the server died")])
def test_describe_driver_problem__of_a_session_and_of_a_matrix(round_, words):
    assert describe_driver_problem(DriverProblem(message="the server died", round=round_)) == words
