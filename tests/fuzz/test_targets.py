"""Whatever a file holds: it is read, or refused in one line that names it. Never a traceback."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.mutation import damage
from tests.fuzz.targets import TARGETS, probe

NAMES = [target.name for target in TARGETS]
BY_NAME = {target.name: target for target in TARGETS}


@cache
def read_seeds(name):
    return BY_NAME[name].make_seeds()


@pytest.mark.parametrize("name", NAMES)
def test_probe__sound_content_is_read(name, tmp_path):
    assert [probe(BY_NAME[name], seed, tmp_path / "f") for seed in read_seeds(name)] == [None] * len(read_seeds(name))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_probe__damaged_content_is_read_or_refused_in_one_line(name, seed, tmp_path_factory):
    draw = Random(seed)  # noqa: S311 - a seed is the point
    content = damage(draw.choice(read_seeds(name)), draw)

    refusal = probe(BY_NAME[name], content, tmp_path_factory.getbasetemp() / "fuzz" / name)

    assert refusal is None or refusal.isprintable()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60)
@given(content=st.binary(max_size=200))
def test_probe__noise_is_refused_in_one_line(name, content, tmp_path_factory):
    refusal = probe(BY_NAME[name], content, tmp_path_factory.getbasetemp() / "fuzz" / name)

    assert refusal is None or refusal.isprintable()
