"""Does the candidate still give the base's answers? A wrong kernel may well be faster, so speed alone proves nothing.

Batched low-precision kernels do not repeat to the last bit, and one flipped bit may flip a greedy token, after which two
answers have nothing in common. So what is judged is the drift of log-probs wherever both servers saw the same text: at every
token of the prompt, and at the generated ones up to and with the first that differs (there, the highest log-prob of each). It
is taken in units of the spread of the base's own log-probs, so that it means the same for trained weights and for drawn ones,
whose log-probs are nearly equal and whose tokens flip at a touch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import pi, sqrt
from statistics import fmean, pstdev

from perfgate.core import Arm, Role, Window
from perfgate.evidence import Answers, Reply
from perfgate.scenario.safeguards import Equivalence
from perfgate.storage.rounding import format_percent

UNRELATED_DRIFT = 2 / sqrt(pi)
"""The mean absolute difference of two independent normal values of unit spread: the drift of answers that know nothing of each
other."""

# However much the base differs from itself, a candidate halfway to unrelated answers is another model.
MAX_EXCUSED_DRIFT = UNRELATED_DRIFT / 2
# Below this many nats all log-probs are the same, and no drift could be seen.
MIN_SPREAD_NATS = 1e-6
# Near 12 nats neighbouring floats lie 1e-6 apart: with a spread below this, a hundredth of it is no more than one float.
FAINT_SPREAD_NATS = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How far two starts' answers to the same prompts lie apart.

    `mean` is over all compared places, `worst` the mean within the prompt that differs most, both in units of `spread_nats`:
    the standard deviation of the first start's prompt log-probs. `agreement` is the share of prompts whose tokens are equal to
    the end; `first` names prompt and token of the earliest difference.
    """

    mean: float
    worst: float
    worst_prompt: int
    spread_nats: float
    agreement: float
    prompts: int
    first: tuple[int, int] | None


def compare_starts(reference: Answers, other: Answers) -> Drift:
    """Compare two starts' replies to the same prompts."""
    pairs = list(zip(reference.replies, other.replies, strict=True))
    spread = measure_logprob_deviation(reference)
    differences = [_list_differences(one, two) for one, two in pairs]
    means = [fmean(found) / spread for found in differences]
    flipped = [(token, prompt) for prompt, pair in enumerate(pairs) if (token := find_difference(*pair)) is not None]
    every = [value for found in differences for value in found]
    return Drift(
        mean=fmean(every) / spread,
        worst=max(means),
        worst_prompt=means.index(max(means)),
        spread_nats=spread,
        agreement=1 - len(flipped) / len(pairs),
        prompts=len(pairs),
        first=min(flipped)[::-1] if flipped else None,
    )


def measure_logprob_deviation(answers: Answers) -> float:
    """The standard deviation, in nats, of the log-probs of all prompts' tokens."""
    return pstdev(value for reply in answers.replies for value in reply.prompt_logprobs)


def find_difference(one: Reply, two: Reply) -> int | None:
    """The first place where the generated tokens differ; None when they are equal."""
    return next((place for place, (a, b) in enumerate(zip(one.tokens, two.tokens, strict=True)) if a != b), None)


def _list_differences(one: Reply, two: Reply) -> list[float]:
    """Absolute differences of log-probs, in nats, wherever both servers saw the same text before the token."""
    first = find_difference(one, two)
    end = len(one.tokens) if first is None else first + 1
    generated = zip(one.logprobs[:end], two.logprobs[:end], strict=True)
    prompt = zip(one.prompt_logprobs, two.prompt_logprobs, strict=True)
    return [abs(a - b) for a, b in (*prompt, *generated)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerComparison:
    """The candidate against the base by the pair of starts that differs most, and the limits for it.

    `noise` is the base against itself by the pair that differs most, None with one base start; the limits give way to it.
    """

    drift: Drift
    noise: Drift | None
    max_mean: float
    max_worst: float
    min_agreement: float
    candidate: str


def compare_answers(answers: Sequence[Answers], rules: Equivalence) -> AnswerComparison | None:
    """Compare every candidate start with every base start; None while an arm has not answered or gives nothing to compare."""
    sound = [found for found in answers if found.problem is None]
    bases = [found for found in sound if found.arm is Arm.BASE]
    candidates = [found for found in sound if found.arm is Arm.CANDIDATE]
    if not bases or not candidates or any(measure_logprob_deviation(base) < MIN_SPREAD_NATS for base in bases):
        return None
    drifts = [(compare_starts(base, candidate), candidate.name) for base, candidate in product(bases, candidates)]
    own = [compare_starts(one, two) for one, two in combinations(bases, 2)]
    drift, name = max(drifts, key=lambda pair: max(pair[0].mean / rules.max_mean_drift, pair[0].worst / rules.max_prompt_drift))
    return AnswerComparison(
        drift=drift,
        noise=max(own, key=lambda pair: pair.mean, default=None),
        max_mean=_give_way(rules.max_mean_drift, rules.noise_factor, [pair.mean for pair in own]),
        max_worst=_give_way(rules.max_prompt_drift, rules.noise_factor, [pair.worst for pair in own]),
        min_agreement=min([rules.min_agreement, *(pair.agreement for pair in own)]),
        candidate=name,
    )


def _give_way(tolerance: float, factor: float, own: Sequence[float]) -> float:
    return max(tolerance, min(MAX_EXCUSED_DRIFT, factor * max(own, default=0.0)))


def check_equivalence(answers: Sequence[Answers], rules: Equivalence) -> Iterator[str]:
    """Name every reason why the candidate's answers are not the base's."""
    yield from (f"{found.name}: {found.problem}" for found in answers if found.problem is not None)
    if len({found.question for found in answers}) > 1:
        yield "the starts were asked different equivalence prompts, so their answers cannot be compared; measure again"
        return
    for found in answers:
        if found.problem is None and found.arm is Arm.BASE and measure_logprob_deviation(found) < MIN_SPREAD_NATS:
            yield (
                f"{found.name}: gives every token the same log-prob, so a wrong candidate could not be told from a right one; "
                "serve weights that mean something, or set equivalence.enabled = false"
            )
            return
    yield from _check_texts(answers)
    compared = compare_answers(answers, rules)
    if compared is not None:
        yield from _judge(compared)


def _check_texts(answers: Sequence[Answers]) -> Iterator[str]:
    """Tokens are compared as numbers: what they say is for the tokenizer, and both arms must have the same one."""
    bases = [found for found in answers if found.arm is Arm.BASE]
    for base, candidate in product(bases, [found for found in answers if found.arm is Arm.CANDIDATE]):
        for number, (one, two) in enumerate(zip(base.replies, candidate.replies, strict=False)):
            if one.tokens == two.tokens and one.text and two.text and one.text != two.text:
                yield (
                    f"{candidate.name}: prompt {number}: the base's tokens, and another text: its tokenizer is another one; "
                    "serve both arms with the scenario's"
                )
                return


def check_answered(windows: Iterable[Window], answers: Sequence[Answers]) -> Iterator[str]:
    """Name each start that was measured and never asked: a candidate without answers may be wrong."""
    asked = {(found.arm, found.start) for found in answers}
    measured = {(window.start, window.arm, window.block) for window in windows if window.role is Role.MEASURED}
    for start, arm, block in sorted(measured):
        if (arm, start) not in asked:
            yield f"block {block}, {arm.value}, start {start}: measured but never asked the equivalence prompts; measure again"


def _judge(compared: AnswerComparison) -> Iterator[str]:
    drift, noise = compared.drift, _tell_noise(compared.noise)
    tokens = f"{_tell_tokens(drift)}; correct the candidate"
    fault = f"{compared.candidate}: its answers are wrong, however fast:"
    if drift.mean > compared.max_mean:
        yield (
            f"{fault} log-probs differ from the base's by {format_percent(drift.mean)} of their spread on average "
            f"(limit {format_percent(compared.max_mean)}; {noise}); {tokens}"
        )
    elif drift.worst > compared.max_worst:
        yield (
            f"{fault} in prompt {drift.worst_prompt} log-probs differ from the base's by {format_percent(drift.worst)} of "
            f"their spread (limit {format_percent(compared.max_worst)}; {noise}); {tokens}"
        )
    if drift.agreement < compared.min_agreement:
        yield (
            f"{fault} {format_percent(drift.agreement, 0)} of them are the base's token by token, the scenario wants "
            f"{format_percent(compared.min_agreement, 0)}; {tokens}"
        )


def _tell_noise(noise: Drift | None) -> str:
    return (
        "one base start, so its own noise is not known"
        if noise is None
        else f"the base against itself {format_percent(noise.mean, 2)}"
    )


def _tell_tokens(drift: Drift) -> str:
    if drift.first is None:
        return f"all {drift.prompts} prompts have equal tokens"
    prompt, token = drift.first
    flipped = round(drift.prompts * (1 - drift.agreement))
    return f"{flipped} of {drift.prompts} prompts have other tokens, the earliest at token {token} of prompt {prompt}"


def describe_equivalence(answers: Sequence[Answers], rules: Equivalence) -> str:
    """Say in one sentence what the comparison found; empty where nothing was compared."""
    if len({found.question for found in answers}) != 1 or (compared := compare_answers(answers, rules)) is None:
        return ""
    drift = compared.drift
    faint = ""
    if drift.spread_nats < FAINT_SPREAD_NATS:
        faint = f"; all tokens are nearly as likely (spread {drift.spread_nats:.1g} nats), so a small fault would not show"
    return (
        f"log-probs of the candidate differ from the base's by {format_percent(drift.mean, 2)} of their spread on average "
        f"(limit {format_percent(compared.max_mean, 0)}), by {format_percent(drift.worst, 2)} in the worst of {drift.prompts} "
        f"prompts (limit {format_percent(compared.max_worst, 0)}; {_tell_noise(compared.noise)}); {_tell_tokens(drift)}{faint}"
    )
