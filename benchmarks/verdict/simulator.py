"""Draw serving windows from a stated noise model: session, start and window effects, rare host stalls, a heavy P99 tail.

All numbers live on the log scale on which larger is worse, so a slow-down of 3 % in every metric is an addition of log(1.03).
The window figures were measured (see docs/evidence/error-rates-simulated.md); the start and session figures are assumptions,
which is why `Noise.scaled` exists: the scripts sweep them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log1p, sqrt

import numpy as np
from numpy.typing import NDArray

from perfgate.core import Better
from perfgate.metrics import METRICS

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How one metric varies; standard deviations of log values.

    `window` is the spread between windows of one start, `start` between starts of one session, `session` between sessions, and
    `offset` between sessions of what favours one arm throughout.
    `stall` is the share of a host stall that reaches the metric: 1 means that a window which loses 8 % reads 8 % worse.
    `tail_df` makes the window noise a Student t of that many degrees of freedom, scaled to the same standard deviation.
    """

    window: float
    start: float
    session: float
    stall: float = 0.0
    tail_df: float | None = None
    offset: float = 0.0


# Window column: closed loop, concurrency 16, two resident servers on one H200. Mean ITL and P95 barely felt the stalls
# that cost throughput 5-12 %, so a stall is assumed to sit outside decoding and to reach throughput, TTFT and E2E.
SPREADS: Mapping[str, Spread] = {
    "output_tok_per_s": Spread(window=0.010, start=0.003, session=0.006, stall=1.0),
    "p99_itl_ms": Spread(window=0.040, start=0.010, session=0.020, stall=0.05, tail_df=4.0),
    "median_itl_ms": Spread(window=0.0056, start=0.003, session=0.005, stall=0.04),
    "mean_itl_ms": Spread(window=0.0067, start=0.003, session=0.005, stall=0.05),
    "p95_itl_ms": Spread(window=0.0085, start=0.004, session=0.006, stall=0.05),
    "mean_ttft_ms": Spread(window=0.030, start=0.010, session=0.020, stall=1.0),
    "mean_e2e_ms": Spread(window=0.008, start=0.003, session=0.006, stall=1.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The noise model of a whole scenario.

    `correlation` is the share of variance that all metrics have in common at each level. `stall_rate` is the probability
    that a window is hit by a host stall, which costs a share of its time drawn evenly from `stall_loss`. `unrest` is the
    spread of the log of a factor on all start and window effects of a session: some days are noisier than others;
    `block_unrest` is the same for a block. In the order of time within a block, `positions` are what each place adds, `walk` is
    the step of a random walk from window to window, and `memory` the correlation of a window's noise with the one before.
    `slow_starts` is the share of starts in a slow state, and the loss there.
    """

    spreads: Mapping[str, Spread]
    correlation: float = 0.5
    stall_rate: float = 5 / 40
    stall_loss: tuple[float, float] = (0.05, 0.12)
    unrest: float = 0.15
    block_unrest: float = 0.0
    positions: tuple[float, ...] = ()
    walk: float = 0.0
    memory: float = 0.0
    slow_starts: tuple[float, float] = (0.0, 0.0)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics in the order of the last axis of every array."""
        return tuple(self.spreads)

    @property
    def higher(self) -> NDArray[np.bool_]:
        """Which metrics improve upwards; shape (metrics,)."""
        return np.array([METRICS[name].better is Better.HIGHER for name in self.metrics])

    def column(self, name: str) -> Floats:
        """One field of every spread; shape (metrics,)."""
        return np.array([getattr(spread, name) for spread in self.spreads.values()], dtype=np.float64)

    def scaled(self, *, start: float = 1.0, session: float = 1.0, window: float = 1.0) -> Noise:
        """The same scenario with the named effects multiplied."""
        spreads = {
            name: replace(one, start=one.start * start, session=one.session * session, window=one.window * window)
            for name, one in self.spreads.items()
        }
        return replace(self, spreads=spreads)


DEFAULT = Noise(spreads=SPREADS)


def slow_down(metrics: tuple[str, ...], ratio: float, only: tuple[str, ...] | None = None) -> Floats:
    """A true slow-down of `ratio` in the metrics of `only` (default: all) and none elsewhere; shape (metrics,)."""
    return np.array([log1p(ratio) if only is None or name in only else 0.0 for name in metrics])


def draw_windows(rng: np.random.Generator, noise: Noise, shape: tuple[int, int, int], effect: Floats | None = None) -> Floats:
    """Draw A/B sessions: (sessions, blocks, windows) -> badness of shape (sessions, blocks, 2 arms, windows, metrics).

    Each arm of each block is a fresh start. `effect` is added to the second arm, the candidate.
    """
    sessions, blocks, windows = shape
    unrest = np.exp(noise.unrest * rng.standard_normal((sessions, 1, 1, 1, 1)))
    unrest = unrest * np.exp(noise.block_unrest * rng.standard_normal((sessions, blocks, 1, 1, 1)))
    session = _normal(rng, noise, (sessions, 1, 1, 1)) * noise.column("session")
    start = _normal(rng, noise, (sessions, blocks, 2, 1)) * noise.column("start")
    slow = (rng.random((sessions, blocks, 2, 1, 1)) < noise.slow_starts[0]) * np.log1p(noise.slow_starts[1])
    timed = _window_noise(rng, noise, (sessions, blocks, 2 * windows))
    badness: Floats = (
        session + slow + unrest * (start + _take_turns(timed, windows)) + _stalls(rng, noise, (sessions, blocks, 2, windows))
    )
    badness += _take_turns(_drift(rng, noise, (sessions, blocks, 2 * windows)), windows)
    badness[:, :, 1] += _normal(rng, noise, (sessions, 1, 1)) * noise.column("offset")
    if effect is not None:
        badness[:, :, 1] += effect
    return badness


def draw_history(rng: np.random.Generator, noise: Noise, shape: tuple[int, int], windows: int = 1) -> Floats:
    """Draw nightly runs of unchanged code: (trials, nights) -> badness (trials, nights, windows, metrics), a session each."""
    trials, nights = shape
    one_arm = draw_windows(rng, noise, (trials * nights, 1, windows))[:, 0, 0]
    return one_arm.reshape(trials, nights, windows, len(noise.metrics))


def to_values(noise: Noise, badness: Floats) -> Floats:
    """Turn badness into unit-free values around 1 that rise or fall as the metric itself does."""
    signed: Floats = np.where(noise.higher, -badness, badness)
    return np.exp(signed)


def _normal(rng: np.random.Generator, noise: Noise, shape: tuple[int, ...]) -> Floats:
    shared = rng.standard_normal((*shape, 1))
    own = rng.standard_normal((*shape, len(noise.metrics)))
    return sqrt(noise.correlation) * shared + sqrt(1 - noise.correlation) * own


def _window_noise(rng: np.random.Generator, noise: Noise, shape: tuple[int, ...]) -> Floats:
    """Noise of windows in the order of time; (sessions, blocks, places, metrics)."""
    drawn = _normal(rng, noise, shape)
    for index, spread in enumerate(noise.spreads.values()):
        if spread.tail_df is not None:
            # Normal over root chi-square is Student t; the second root restores unit variance.
            chi = np.sqrt(rng.chisquare(spread.tail_df, shape) / spread.tail_df)
            drawn[..., index] *= np.sqrt((spread.tail_df - 2) / spread.tail_df) / chi
    if noise.memory:
        for place in range(1, shape[-1]):
            drawn[:, :, place] = noise.memory * drawn[:, :, place - 1] + np.sqrt(1 - noise.memory**2) * drawn[:, :, place]
    return drawn * noise.column("window")


def _drift(rng: np.random.Generator, noise: Noise, shape: tuple[int, ...]) -> Floats:
    """What time and place add to all metrics alike; (sessions, blocks, places, 1)."""
    added = np.cumsum(noise.walk * rng.standard_normal((*shape, 1)), axis=2) if noise.walk else np.zeros((*shape, 1))
    if noise.positions:
        # A re-run comes behind the last place, and is like it.
        places = np.resize(noise.positions + noise.positions[-1:] * shape[-1], shape[-1])
        added = added + places[:, None]
    return added


def _take_turns(timed: Floats, windows: int) -> Floats:
    """Hand places in time to windows of the arms: b c c b b c where the base leads, in odd blocks, else the other way round.

    (sessions, blocks, places, metrics) -> (sessions, blocks, 2 arms, windows, metrics).
    """
    blocks = timed.shape[1]
    turn = np.arange(windows)
    leader, other = 2 * turn + turn % 2, 2 * turn + 1 - turn % 2
    places = np.array([[leader, other] if block % 2 == 0 else [other, leader] for block in range(blocks)])
    handed: Floats = timed[:, np.arange(blocks)[:, None, None], places]
    return handed


def _stalls(rng: np.random.Generator, noise: Noise, shape: tuple[int, ...]) -> Floats:
    loss = rng.uniform(*noise.stall_loss, shape) * (rng.random(shape) < noise.stall_rate)
    return -np.log1p(-loss[..., None] * noise.column("stall"))
