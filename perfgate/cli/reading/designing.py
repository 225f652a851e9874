"""What `perfgate power --design` prints: the cheapest design for a loss, by metric, with all that it rests on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import expm1, log1p

from perfgate.evidence import Session
from perfgate.metrics import METRICS
from perfgate.report.table import Table
from perfgate.storage.rounding import format_count, format_percent
from perfgate.verdict.design import DesignChoice, PricedDesign, choose_designs, describe_scatter, find_lag, measure_warmup
from perfgate.verdict.power import Study


def choose_all(study: Study, effect: float) -> tuple[DesignChoice, ...]:
    """The designs of each gating metric that may fail a loss of `effect` at all."""
    wanted = (metric for metric in study.gating if metric in study.sizable and not _is_below(study, metric, effect))
    return tuple(choose_designs(study, effect, metric) for metric in wanted)


def _is_below(study: Study, metric: str, effect: float) -> bool:
    return log1p(effect) <= log1p(study.scenario.margin_ratio(metric)) / 2


def format_design(
    study: Study, choices: Sequence[DesignChoice], effect: float, sessions: Sequence[Session], lay: Callable[[Table], str]
) -> str:
    """Everything for a person: prices, noise, order, warm-up, designs, and what is taken for granted."""
    scatter = Table(header=_SCATTER, rows=[list(_show_scatter(study, metric)) for metric in study.gating])
    parts = [
        "\n".join(_tell_price(study, effect, len(sessions))),
        lay(scatter),
        "\n".join([*_tell_order(study), *_tell_warmup(study, sessions)]),
        *("\n".join(_tell_choice(choice, lay)) for choice in choices),
        *(
            f"{METRICS[metric].title}: such a loss is below half its margin, so it never fails whatever is measured"
            for metric in study.gating
            if _is_below(study, metric, effect)
        ),
        *(
            f"{METRICS[metric].title}: what a slope scatters by with other windows is not known from these"
            for metric in study.gating
            if metric not in study.sizable
        ),
        _ASSUMED,
    ]
    return "\n\n".join(parts)


_SCATTER = ("standard deviations", "window", "start", "offset seen", "offset assumed", "sessions", "drift a place")
_ASSUMED = """\
Taken for granted: noise as stored, normal on the log scale; windows average out, starts and offsets do not; the variance of a
window falls with its requests; each look spends an equal share of alpha, Holm's first step has to reject, and all blocks are
paid for. Noise that chance made small looks cheap, so a little less is found than promised (docs/evidence counts it).
Another number of windows or requests is another design: calibrate it anew."""


def _tell_price(study: Study, effect: float, sessions: int) -> Iterator[str]:
    cost, scenario = study.cost, study.scenario
    hardware = study.baseline.fingerprint.facts.get("hardware", "unnamed hardware")
    told = f"as {format_count(sessions, 'session')} took" if sessions else "as --start-s, --window-s and --warmups say"
    block_s = 60 * cost.minutes(study.own_size) / cost.gpus / study.own_size.blocks
    yield f"{scenario.name} on {hardware}: designs that find a loss of {format_percent(effect)} nine times in ten"
    yield (
        f"a block takes {block_s:.0f} s, {told}: {2 * cost.start_s:.0f} s beside windows, "
        f"2 x ({cost.warmups} + {scenario.blocks.windows}) windows of {cost.window_s:.1f} s"
    )


def _show_scatter(study: Study, metric: str) -> Iterator[str]:
    found = describe_scatter(study, metric)
    yield METRICS[metric].title
    yield from (format_percent(expm1(sd), 2) for sd in (found.window, found.start, found.offset, found.assumed))
    yield str(found.sessions)
    if found.drift is None:
        yield "-"
    else:
        yield f"{format_percent(expm1(found.drift), 2, is_signed=True)} +- {format_percent(expm1(found.drift_error), 2)}"


def _tell_order(study: Study) -> Iterator[str]:
    if study.scenario.blocks.resident != "both":
        yield "order: one server after the other; arms lead in turn, so that drift over a block cancels over two"
        return
    windows = study.scenario.blocks.windows
    if lag := find_lag(windows):
        yield (
            f"order: arms take turns as b c c b; {windows} windows per start leave {lag:.2f} places of drift, which the next "
            "block cancels, led by the other arm; an even number leaves none"
        )
    else:
        yield f"order: arms take turns as b c c b; {windows} windows per start leave no drift in any block"


def _tell_warmup(study: Study, sessions: Sequence[Session]) -> Iterator[str]:
    metric = study.gating[0]
    if worse := measure_warmup(sessions, metric):
        shown = ", ".join(format_percent(one, is_signed=True) for one in worse)
        yield f"warm-up: {METRICS[metric].title} of its windows against those that count, one after the other: worse by {shown}"


def _tell_choice(choice: DesignChoice, lay: Callable[[Table], str]) -> Iterator[str]:
    title, best = METRICS[choice.metric].title, choice.best
    stored, taken = choice.present.sessions, choice.plans[0].sessions
    if best is None:
        yield f"{title}: none of the designs tried, with up to {taken} stored sessions of equal arms"
    elif taken > stored:
        have = format_count(stored, "stored session")
        yield f"{title}: none with {have} of equal arms; with {taken}, if they show no more offset:"
    else:
        yield f"{title}:"
    header = ["windows per start", "blocks", "requests", "GPU-minutes", "power", ""]
    found = [_show_plan(plan, "cheapest" if plan is best else "") for plan in choice.plans if plan.size]
    yield lay(Table(header=header, rows=[*found, _show_plan(choice.present, "the scenario today")], words=(5,)))


def _show_plan(plan: PricedDesign, remark: str) -> list[str]:
    size = plan.size
    if size is None or plan.minutes is None or plan.power is None:
        return [str(plan.windows), "-", "-", "-", "-", remark]
    figures = [str(size.blocks), f"x {size.request_ratio:g}", f"{plan.minutes:.1f}", format_percent(plan.power, 0)]
    return [str(plan.windows), *figures, remark]
