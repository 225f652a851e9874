"""What a baseline's noise lets the gate find, and which design finds a wanted effect most cheaply."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import product
from math import expm1, inf, log1p, sqrt

from perfgate.errors import InputError
from perfgate.metrics import METRICS
from perfgate.scenario.schema import Scenario
from perfgate.stats.components import Component
from perfgate.stats.power import POWER, MetricTest, find_power, find_smallest_effect
from perfgate.verdict.baselines import Baseline
from perfgate.verdict.noise import NoiseModel
from perfgate.verdict.policy import MAX_PRIOR_DF, explain_not_gating, find_prior

BLOCK_CHOICES = tuple(range(2, 13))
WINDOW_CHOICES = (1, 2, 3, 4, 5, 7, 9)
REQUEST_CHOICES = (0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a measurement takes: seconds for a start until it is warm, seconds for a window of the scenario's own length.

    `warmups` windows of each start are measured and thrown away. A server takes `gpus`.
    """

    start_s: float = 45.0
    window_s: float = 9.0
    warmups: int = 2
    gpus: int = 1

    def minutes(self, design: SampleSize) -> float:
        """GPU-minutes of all blocks of `design`, one arm after the other."""
        windows_s = (self.warmups + design.windows) * self.window_s * design.request_ratio
        return design.blocks * 2 * (self.start_s + windows_s) * self.gpus / 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSize:
    """How much is measured. `request_ratio` multiplies the scenario's requests per window."""

    blocks: int
    windows: int
    request_ratio: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What one look finds of one metric: the smallest loss, as a ratio, that is found with 90 % power."""

    blocks: int
    minutes: float
    smallest_effect: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The reach of every look for one metric. `block_sd` is the spread of one block's difference as a ratio."""

    metric: str
    gating: bool
    margin_ratio: float
    block_sd: float
    stored_blocks: int
    reaches: tuple[Reach, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheapestSize:
    """The cheapest design that finds the wanted effect in `metrics`; absent when none of the designs tried does."""

    metrics: tuple[str, ...]
    design: SampleSize | None
    minutes: float | None
    power: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One baseline under one scenario's rule."""

    baseline: Baseline
    scenario: Scenario
    cost: Cost

    @property
    def metrics(self) -> tuple[str, ...]:
        """The gates for which noise is stored, headline metrics first."""
        known = self.scenario.gates.keys() & self.baseline.metrics.keys()
        return tuple(name for name in METRICS if name in known and self.baseline.metrics[name].blocks)

    @property
    def gating(self) -> tuple[str, ...]:
        """Those of `metrics` that may fail a pull request."""
        reasons = {name: explain_not_gating(name, self.scenario, self.baseline.metrics[name]) for name in self.metrics}
        return tuple(name for name, reason in reasons.items() if reason is None)

    @property
    def sizable(self) -> tuple[str, ...]:
        """Those of `metrics` whose noise is known for other numbers of windows and requests, too: a slope's is not."""
        return tuple(name for name in self.metrics if not METRICS[name].growth_of)

    @property
    def own_size(self) -> SampleSize:
        """What the scenario measures up to its last look."""
        return SampleSize(blocks=max(self.scenario.blocks.looks), windows=self.scenario.blocks.windows)

    def trial(self, metric: str, design: SampleSize) -> MetricTest:
        """The strictest test that the rule may put `metric` to: Holm's first step at one of the scenario's looks."""
        noise = self.baseline.metrics[metric]
        family = max(len(self.gating), 1)
        prior = find_prior(noise, MAX_PRIOR_DF)
        return MetricTest(
            blocks=design.blocks,
            block_sd=sqrt(predict_block_variance(noise, design)),
            prior_df=prior.df,
            offset_sd=sqrt(prior.offset_variance),
            offset_df=prior.offset_df,
            alpha=self.scenario.alpha / len(self.scenario.blocks.looks) / family,
            floor=log1p(self.scenario.margin_ratio(metric)) / 2.0,
        )


def predict_block_variance(noise: NoiseModel, design: SampleSize) -> float:
    """Variance of one block's difference if it had `design`, carried over from the blocks that were stored.

    The stored variance is scaled by what the components predict: windows average out, starts do not. The variance between
    windows is taken to fall with the number of requests in one, which holds for means and medians and flatters rare stalls.
    """
    parts = replace(noise.components, session=Component(variance=0.0, df=0))
    before = parts.predict_variance(noise.windows)
    if before <= 0:
        return noise.block_variance
    window = replace(parts.window, variance=parts.window.variance / design.request_ratio)
    return noise.block_variance * replace(parts, window=window).predict_variance(design.windows) / before


def draw_curves(study: Study) -> tuple[Curve, ...]:
    """The smallest effect found at each of the scenario's looks. Raise InputError when no A/A block is stored."""
    if not study.metrics:
        raise InputError(
            f"baseline of {study.baseline.scenario}: no A/A blocks stored for its gates; `perfgate calibrate` measures some"
        )
    return tuple(_draw_curve(study, metric) for metric in study.metrics)


def _draw_curve(study: Study, metric: str) -> Curve:
    designs = [SampleSize(blocks=look, windows=study.baseline.windows) for look in study.scenario.blocks.looks]
    trials = [study.trial(metric, design) for design in designs]
    return Curve(
        metric=metric,
        gating=metric in study.gating,
        margin_ratio=study.scenario.margin_ratio(metric),
        block_sd=expm1(trials[0].block_sd),
        stored_blocks=study.baseline.metrics[metric].blocks,
        reaches=tuple(
            Reach(
                blocks=design.blocks,
                minutes=study.cost.minutes(design),
                smallest_effect=expm1(find_smallest_effect(trial)),
            )
            for design, trial in zip(designs, trials, strict=True)
        ),
    )


def find_cheapest(study: Study, effect: float, metrics: Iterable[str], *, wanted_power: float = POWER) -> CheapestSize:
    """Find the cheapest design that finds a loss of `effect` (a ratio) in each of `metrics` with `wanted_power`."""
    wanted = tuple(metrics)
    best = CheapestSize(metrics=wanted, design=None, minutes=None, power=None)
    for blocks, windows, requests in product(BLOCK_CHOICES, WINDOW_CHOICES, REQUEST_CHOICES):
        design = SampleSize(blocks=blocks, windows=windows, request_ratio=requests)
        minutes = study.cost.minutes(design)
        if minutes >= (inf if best.minutes is None else best.minutes):
            continue
        power = min(find_power(study.trial(metric, design), log1p(effect)) for metric in wanted)
        if power >= wanted_power:
            best = replace(best, design=design, minutes=minutes, power=power)
    return best


def find_all_cheapest(study: Study, effect: float) -> tuple[CheapestSize, ...]:
    """`find_cheapest` for each metric by itself, then for all gating metrics at once, where all can be sized."""
    single = tuple(find_cheapest(study, effect, [metric]) for metric in study.sizable)
    is_whole = len(study.gating) > 1 and set(study.gating) <= set(study.sizable)
    return (*single, find_cheapest(study, effect, study.gating)) if is_whole else single


def describe(study: Study, curves: Iterable[Curve], cheapest: Iterable[CheapestSize], effect: float) -> Mapping[str, object]:
    """Everything as plain values, for JSON."""
    return {
        "scenario": study.scenario.name,
        "hardware": study.baseline.fingerprint.facts.get("hardware", ""),
        "alpha": study.scenario.alpha,
        "looks": list(study.scenario.blocks.looks),
        "power": POWER,
        "cost": asdict(study.cost),
        "metrics": [_describe_curve(curve) for curve in curves],
        "effect": effect,
        "designs": [asdict(found) for found in cheapest],
    }


def _describe_curve(curve: Curve) -> dict[str, object]:
    """The fields of a curve; in JSON the margin is called by its short name."""
    content = asdict(curve)
    content["margin"] = content.pop("margin_ratio")
    return content
