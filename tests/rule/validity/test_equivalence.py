"""Answers of two arms, judged: from the raw replies of real HTTP servers, and from numbers."""

import gzip
import json
from dataclasses import replace

import pytest

from perfgate.core import Arm, Role
from perfgate.errors import EvidenceError
from perfgate.evidence import Answers, Question, Reply
from perfgate.readers.replies import draw_prompts
from perfgate.results.answers import ANSWERS_FILE, load_answers, store_answers
from perfgate.scenario.safeguards import Equivalence
from perfgate.verdict.validity.equivalence import (
    UNRELATED_DRIFT,
    check_answered,
    check_equivalence,
    compare_answers,
    compare_starts,
    describe_equivalence,
)
from tests.fakes.engine import fake_answers
from tests.fakes.sessions import make_scenario, make_session

RULES = Equivalence()
QUESTION = Question(prompts=6, input_len=16, output_len=12, vocab=4096, seed=1)


def ask(fault, question=QUESTION):
    """The body that the fake engine replies with."""
    sampling = {"max_new_tokens": question.output_len}
    return fake_answers.generate({"input_ids": draw_prompts(question), "sampling_params": sampling}, fault)[1]


def store(folder, faults, question=QUESTION):
    """Store starts 1, 2, ... that answer with `faults`, base and candidate in turn, and load them."""
    for number, fault in enumerate(faults):
        arm = Arm.CANDIDATE if number % 2 else Arm.BASE
        asked = Answers(arm=arm, block=number // 2 + 1, start=number + 1, question=question)
        store_answers(folder, ask(fault, question), asked)
    return load_answers(folder)


def check(folder, *faults, **rules):
    return list(check_equivalence(store(folder, faults), replace(RULES, **rules)))


def test_check_equivalence__same_answers(tmp_path):
    answers = store(tmp_path, ["ok", "ok", "ok", "ok"])

    assert list(check_equivalence(answers, RULES)) == []
    assert describe_equivalence(answers, RULES) == (
        "log-probs of the candidate differ from the base's by 0.00 % of their spread on average (limit 10 %), by 0.00 % in the "
        "worst of 6 prompts (limit 30 %; the base against itself 0.00 %); all 6 prompts have equal tokens"
    )


def test_check_equivalence__last_bits_and_flipped_tokens_are_no_fault(tmp_path):
    answers = store(tmp_path, ["noisy", "near"])

    assert list(check_equivalence(answers, RULES)) == []
    assert "6 of 6 prompts have other tokens, the earliest at token 5 of prompt 0" in describe_equivalence(answers, RULES)


def test_check_equivalence__wrong_but_fast(tmp_path):
    [problem] = check(tmp_path, "ok", "ok", "ok", "wrong")

    assert problem.startswith(
        "block 2, candidate, start 4: its answers are wrong, however fast: log-probs differ from the base's by 1"
    )
    assert "(limit 10.0 %; the base against itself 0.00 %); 6 of 6 prompts have other tokens" in problem


def test_check_equivalence__same_tokens_and_another_tokenizer(tmp_path):
    [problem] = check(tmp_path, "ok", "other_text")

    assert problem.startswith("block 1, candidate, start 2: prompt 0: the base's tokens, and another text")


def test_check_equivalence__one_prompt_is_wrong(tmp_path):
    [problem] = check(tmp_path, "ok", "one_prompt", max_mean_drift=0.5)

    assert "its answers are wrong, however fast: in prompt 5 log-probs differ" in problem
    assert "one base start, so its own noise is not known" in problem


def test_check_equivalence__agreement_is_asked_for(tmp_path):
    [problem] = check(tmp_path, "ok", "near", min_agreement=0.9)

    assert "0 % of them are the base's token by token, the scenario wants 90 %" in problem


def test_check_equivalence__gives_way_to_the_bases_own_noise(tmp_path):
    noisy = check(tmp_path, "ok", "near", "near", "near", max_mean_drift=0.01, min_agreement=0.9)

    assert noisy == []


def test_compare_answers__noise_never_excuses_unrelated_answers(tmp_path):
    compared = compare_answers(store(tmp_path, ["ok", "ok", "wrong", "ok"]), RULES)

    assert compared.max_mean == UNRELATED_DRIFT / 2
    assert compared.drift.mean > compared.max_mean


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("empty", "equivalence prompt 3: nothing was generated (finish reason length); the answer is empty"),
        ("early", "equivalence prompt 3: ended by itself after 5 of 12 tokens although it was told to go on"),
        ("cut", "equivalence prompt 3: 5 tokens came back where 12 were asked for and 12 are claimed (finish reason length)"),
        ("cut_scores", "equivalence prompt 0: 12 tokens came with 11 log-probs; the answer was cut"),
        ("missing", "answered 5 of 6 equivalence prompts"),
        ("cached", "equivalence prompt 3: 16 of its 16 tokens came from a cache that was just emptied"),
        ("mixed", "equivalence prompt 3: the server scored another prompt than it was asked"),
        ("nan", "equivalence prompt 3: the log-prob of a generated token is no number; the server computes NaN or infinity"),
        ("positive", "equivalence prompt 3: the log-prob of a generated token is 3.5, above zero"),
        ("html", "answered the equivalence prompts with no valid JSON"),
        ("other", "answered the equivalence prompts in an unknown form: output_ids: Field required"),
    ],
)
def test_check_equivalence__each_fault_in_its_own_words(tmp_path, fault, words):
    [problem] = check(tmp_path, "ok", fault)

    assert problem.startswith(f"block 1, candidate, start 2: {words}")
    assert "\n" not in problem


def test_check_equivalence__constant_log_probs_tell_nothing(tmp_path):
    answers = store(tmp_path, ["constant", "ok"])
    [problem] = check_equivalence(answers, RULES)

    assert "block 1, base, start 1: gives every token the same log-prob" in problem
    assert describe_equivalence(answers, RULES) == ""


def test_check_equivalence__different_questions_are_not_compared(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    answers = [*store(tmp_path, ["ok"]), *store(other, ["ok"], replace(QUESTION, seed=2))]
    [problem] = check_equivalence(answers, RULES)

    assert "were asked different equivalence prompts" in problem
    assert describe_equivalence(answers, RULES) == ""


def make_answers(tokens, logprobs, prompt=(-1.0, -3.0)):
    reply = Reply(tokens=tuple(tokens), logprobs=tuple(logprobs), prompt_logprobs=prompt)
    return Answers(arm=Arm.BASE, block=1, start=1, question=QUESTION, replies=(reply,))


def test_measure_drift__stops_after_the_first_difference():
    """The spread is 1 nat; the fourth token follows another text and says nothing."""
    drift = compare_starts(
        make_answers([5, 6, 7, 8], [-1.0, -1.0, -1.0, -1.0]),
        make_answers([5, 6, 9, 8], [-1.0, -1.5, -2.0, -9.0], (-1.0, -3.25)),
    )

    assert drift.first == (0, 2)
    assert drift.mean == pytest.approx((0.25 + 0.5 + 1.0) / 5)
    assert (drift.spread_nats, drift.agreement) == (1.0, 0.0)


def test_describe_equivalence__says_where_little_can_be_seen():
    reference = make_answers([1], [-12.0], (-12.00001, -12.00003))
    described = describe_equivalence([reference, replace(reference, arm=Arm.CANDIDATE)], RULES)

    assert described.endswith("; all tokens are nearly as likely (spread 1e-05 nats), so a small fault would not show")


def test_measure_drift__is_the_same_for_nearly_equal_log_probs():
    """Drawn weights give log-probs that hardly differ; the same relative fault must weigh the same."""
    full = compare_starts(make_answers([1], [-2.0]), make_answers([1], [-2.5]))
    faint = compare_starts(
        make_answers([1], [-12.0], (-12.0001, -12.0003)), make_answers([1], [-12.00005], (-12.0001, -12.0003))
    )

    assert faint.mean == pytest.approx(full.mean, rel=1e-6)
    assert faint.worst == pytest.approx(full.worst, rel=1e-6)


def test_check_answered__measured_and_never_asked():
    session = make_session(make_scenario(), blocks=1)
    answers = [Answers(arm=Arm.BASE, block=1, start=1, question=QUESTION)]

    assert list(check_answered(session.windows, answers)) == [
        "block 1, candidate, start 2: measured but never asked the equivalence prompts; measure again"
    ]
    assert list(check_answered([w for w in session.windows if w.role is Role.WARMUP], [])) == []


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.unlink(), "answers/start-02.json.gz is missing although the index names it"),
        (lambda path: path.write_bytes(gzip.compress(b"[]")), "answers/start-02.json.gz does not match its digest"),
        (lambda path: path.write_bytes(path.read_bytes()[:-40]), "answers/start-02.json.gz does not match its digest"),
    ],
)
def test_load_answers__damaged_file(tmp_path, spoil, words):
    store(tmp_path, ["ok", "ok"])
    spoil(tmp_path / "answers" / "start-02.json.gz")
    good, bad = load_answers(tmp_path)

    assert (good.problem, bad.name) == (None, "block 1, candidate, start 2")
    assert bad.problem.startswith(words)


def test_load_answers__file_that_was_never_whole(tmp_path, monkeypatch):
    """Truncated before its digest was taken, as a broken disk or a foreign tool would leave it."""
    monkeypatch.setattr(gzip, "compress", lambda raw, **_: gzip.zlib.compress(raw)[:20])
    [found] = store(tmp_path, ["ok"])

    assert "start-01.json.gz cannot be read" in found.problem


def test_load_answers__torn_and_damaged_index(tmp_path):
    store(tmp_path, ["ok", "ok"])
    index = tmp_path / ANSWERS_FILE
    whole = index.read_bytes()
    index.write_bytes(whole[:-30])
    after_crash = load_answers(tmp_path)
    index.write_bytes(whole.replace(b'"seed":1', b'"seed":-1'))

    assert len(after_crash) == 1
    with pytest.raises(EvidenceError, match=r"answers\.jsonl:1: seed: Input should be greater than or equal to 0"):
        load_answers(tmp_path)


def test_question__draws_the_same_prompts_everywhere():
    prompts = draw_prompts(QUESTION)

    assert prompts[0][:6] == [849, 3186, 2911, 1244, 2032, 1881]
    assert {len(prompt) for prompt in prompts} == {16}
    assert all(409 <= token < 3686 for prompt in prompts for token in prompt)
    assert json.loads(json.dumps(prompts)) == draw_prompts(Question(prompts=6, input_len=16, output_len=1, vocab=4096, seed=1))
