"""What the candidate's kernels lost against the base's voids a session; what both get wrong does not."""

import json
from dataclasses import replace

import pytest

from perfgate.core import Arm
from perfgate.errors import EvidenceError, InputError
from perfgate.results.records import load_proof, save_proof
from perfgate.verdict.validity.kernel_proof import check_kernels, describe_proof
from perfgate_moe.proof.values import Build, Exam, KernelError, KernelFinding, KernelProof

CASE, OTHER = "E=8,k=4,H=64,I=96,M=16,dtype=bfloat16", "E=8,k=4,H=64,I=96,M=16,dtype=float16"


def bad(name, problem="relative error 0.5 > 0.0042"):
    return KernelFinding(name=name, problem=problem)


def make_proof(base=(), candidate=(), *, base_left=(), candidate_left=(), base_refused=(), refused=(), sound=20, kernels=6):
    return KernelProof(
        builds=(
            Build(arm=Arm.BASE, arch="sm_90", kernels=6, refused=base_refused),
            Build(arm=Arm.CANDIDATE, arch="sm_90", kernels=kernels, refused=refused),
        ),
        exams=(
            Exam(arm=Arm.BASE, implementation="sglang", sound=20, worst=0.5, wrong=base, left_out=base_left),
            Exam(arm=Arm.CANDIDATE, implementation="sglang", sound=sound, worst=0.6, wrong=candidate, left_out=candidate_left),
        ),
    )


def test_check_kernels__nothing_was_lost():
    assert list(check_kernels(None)) == []
    assert list(check_kernels(make_proof())) == []


def test_check_kernels__what_both_get_wrong_is_no_fault_of_the_change():
    assert list(check_kernels(make_proof((bad(CASE),), (bad(CASE, "worse still"),)))) == []
    assert list(check_kernels(make_proof(base_left=(bad(CASE),), candidate_left=(bad(CASE),)))) == []
    assert list(check_kernels(make_proof(base_refused=(bad("down"),), refused=(bad("down"),)))) == []


def test_check_kernels__a_case_that_only_the_candidate_gets_wrong():
    (problem,) = check_kernels(make_proof((bad(CASE),), (bad(CASE), bad(OTHER)), sound=19))

    assert (
        problem == f"kernels: the candidate's sglang is wrong in 1 of 21 cases, first in {OTHER}: relative error 0.5 > 0.0042"
    )


def test_check_kernels__cases_that_the_candidate_no_longer_answers():
    (problem,) = check_kernels(make_proof(candidate_left=(bad(CASE, "a name is missing"),), sound=19))

    assert (
        problem == f"kernels: the candidate's sglang leaves out 1 cases that the base answers, first {CASE}: a name is missing"
    )


def test_check_kernels__no_answer_at_all():
    left = (bad(CASE, "no GPU"),)
    proof = make_proof(sound=0, base_left=left * 2, candidate_left=left * 22)

    assert list(check_kernels(proof)) == ["kernels: sglang of the candidate is right in no case: no GPU"]


def test_check_kernels__an_exam_that_failed_in_both_arms_proves_nothing():
    proof = make_proof((bad(CASE),), (bad(CASE),), sound=0)
    both = replace(proof, exams=tuple(replace(exam, sound=0) for exam in proof.exams))

    assert list(check_kernels(both)) == ["kernels: sglang of the base is right in no case: relative error 0.5 > 0.0042"]


def test_check_kernels__a_candidate_that_was_asked_less():
    (problem,) = check_kernels(make_proof(sound=1))

    assert problem == (
        "kernels: the candidate's sglang was asked 1 cases where the base was asked 20; run `perfgate kernels prove` anew"
    )


def test_check_kernels__a_wheel_that_could_not_be_built():
    proof = KernelProof(failure="base/sgl-kernel: no wheel: nvcc: not found")

    assert list(check_kernels(proof)) == ["kernels: base/sgl-kernel: no wheel: nvcc: not found"]
    assert describe_proof(proof) == "not examined"


@pytest.mark.parametrize(
    ("proof", "words"),
    [
        (make_proof(refused=(bad("down/M=16", "spills: 8 bytes of stack"),)), "candidate's down/M=16 was refused: spills"),
        (make_proof(kernels=0), "none of the candidate was built for sm_90"),
    ],
)
def test_check_kernels__a_build_that_fails(proof, words):
    (problem,) = check_kernels(proof)

    assert words in problem


@pytest.mark.parametrize(
    "spoil",
    [
        lambda proof: replace(proof, exams=proof.exams[1:]),
        lambda proof: replace(proof, exams=proof.exams[:1]),
        lambda proof: replace(proof, exams=(*proof.exams, proof.exams[1])),
        lambda proof: replace(proof, builds=proof.builds[:1]),
        lambda proof: replace(proof, builds=()),
        lambda _: KernelProof(),
        lambda proof: replace(proof, exams=(proof.exams[0], replace(proof.exams[1], implementation="another"))),
    ],
)
def test_check_kernels__arms_that_were_not_asked_alike(spoil):
    (problem,) = check_kernels(spoil(make_proof()))

    assert "not built and examined alike" in problem


def with_errors(base, candidate):
    """A proof whose arms answered the same cases with these errors."""
    proof = make_proof()
    sides = zip(proof.exams, (base, candidate), strict=True)
    exams = (
        replace(exam, errors=tuple(KernelError(name=f"M={count}", error=error) for count, error in enumerate(errors)))
        for exam, errors in sides
    )
    return replace(proof, exams=tuple(exams))


@pytest.mark.parametrize(
    ("base", "candidate", "words"),
    [
        ((1e-3, 2e-3, 3e-3), (1.16e-3, 2.32e-3, 3.6e-3), "1.16 times the base's in the median of 3 cases, 1.20 times in M=2"),
        ((1e-3, 2e-3, 3e-3), (1e-3, 2e-3, 4.5e-3), "1.00 times the base's in the median of 3 cases, 1.50 times in M=2"),
        ((0.0, 2e-3), (1e-3, 3e-3), "1.50 times the base's in the median of 1 cases, 1.50 times in M=1"),
    ],
)
def test_describe_proof__a_loss_of_accuracy_within_the_limits(base, candidate, words):
    proof = with_errors(base, candidate)

    assert f"sglang is less accurate than the base: its error is {words}" in describe_proof(proof)
    assert list(check_kernels(proof)) == []


@pytest.mark.parametrize("candidate", [(1e-3, 2e-3), (1.04e-3, 2.1e-3), (1e-4, 2e-4), (0.0, 0.0), ()])
def test_describe_proof__about_as_accurate(candidate):
    assert "less accurate" not in describe_proof(with_errors((1e-3, 2e-3), candidate))


def test_describe_proof__says_what_the_candidate_did():
    told = describe_proof(replace(make_proof((), (bad(CASE),), candidate_left=(bad(OTHER),)), wheel="sgl_kernel-1.whl"))

    assert told == (
        "6 compiled for sm_90, none refused; sglang right in 20 of 21 cases against the float64 oracle (largest error 60 % of "
        "its limit), 1 not covered; sgl_kernel-1.whl built anew, as its sources differ"
    )
    assert describe_proof(None) == ""


def test_proof__is_read_as_it_was_written(tmp_path):
    proof = make_proof((bad(CASE),), (bad(OTHER),))
    save_proof(proof, tmp_path / "new" / "proof.json")

    assert load_proof(tmp_path / "new" / "proof.json") == proof


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content["exams"][0].update(sound=-1), "exams.0.sound"),
        (lambda content: content["exams"][0].update(sound="20"), "exams.0.sound"),
        (lambda content: content["exams"][0].update(worst=float("nan")), "exams.0.worst"),
        (lambda content: content["exams"][0].update(implementation="a\nb"), "exams.0.implementation"),
        (lambda content: content["builds"][0].update(arch="../x"), "builds.0.arch"),
        (lambda content: content.update(verdict="PASS"), "verdict"),
        (lambda content: content["exams"][1].update(wrong=[{"name": "x", "problem": "y"}] * 2001), "exams.1.wrong"),
    ],
)
def test_load_proof__names_the_field(tmp_path, change, words):
    save_proof(make_proof(), tmp_path / "proof.json")
    content = json.loads((tmp_path / "proof.json").read_text())
    change(content)
    (tmp_path / "proof.json").write_text(json.dumps(content).replace("NaN", "-5"))

    with pytest.raises(EvidenceError, match=rf"proof\.json: {words}"):
        load_proof(tmp_path / "proof.json")


@pytest.mark.parametrize(
    ("content", "words"), [("{", "not valid JSON"), (" " * (16 * 2**20 + 1), "more than"), (None, "cannot be read")]
)
def test_load_proof__no_proof(tmp_path, content, words):
    if content is not None:
        (tmp_path / "proof.json").write_text(content)

    with pytest.raises(InputError, match=words):
        load_proof(tmp_path / "proof.json")


def test_save_proof__where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(InputError, match=r"--output .*file: cannot be written"):
        save_proof(make_proof(), tmp_path / "file" / "proof.json")
