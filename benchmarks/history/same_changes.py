"""Print the change points that Apache Otava finds in 80 drawn series, and in 6,000 odd ones whether it fails.

Run it in two environments to see that both give the same: one as pip resolves apache-otava, one with the CPU engine's numpy.

    python benchmarks/history/same_changes.py | head -80 | sha256sum    # the drawn ones; without head the odd ones too
"""

from __future__ import annotations

import random

from otava.analysis import compute_change_points

LENGTHS = (40, 120, 400, 1000)
ODD_LENGTHS = (1, 2, 3, 4, 5, 7, 20, 60, 150, 400)


def draw_step(draw: random.Random, length: int) -> list[float]:
    return [draw.gauss(100 if index < length // 2 else 97, 1) for index in range(length)]


def draw_odd(draw: random.Random) -> list[float]:
    """Constant, short, zero, tiny or jumping."""
    length = draw.choice(ODD_LENGTHS)
    levels = [draw.choice((100, 97, 50, 0, 1e-3)) for _ in range(1 + length // draw.choice((3, 20, 70)))]
    noise = draw.choice((0, 0.1, 1, 10))
    return [levels[index * len(levels) // length] + draw.gauss(0, noise) for index in range(length)]


def main() -> None:
    draw = random.Random(1)  # noqa: S311 - no secret
    series = [draw_step(draw, length) for length in LENGTHS for _ in range(20)]
    series += [draw_odd(draw) for _ in range(6000)]
    for values in series:
        found, _ = compute_change_points(values)
        print(*(int(one.index) for one in found))


if __name__ == "__main__":
    main()
