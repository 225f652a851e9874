"""When both arms are profiled: after a loss, by an engine that can, and once."""

from __future__ import annotations

import pytest

from perfgate.core import Outcome
from perfgate.gate.fresh_profiles import is_profile_due
from tests.fakes.folders import write_profiled


@pytest.mark.parametrize(
    ("engine", "outcome", "is_due"),
    [
        ("sglang", Outcome.REGRESSION, True),
        ("sglang", Outcome.PASS, False),
        ("sglang", Outcome.INCONCLUSIVE, False),
        ("vllm", Outcome.REGRESSION, False),
    ],
)
def test_is_profile_due__after_a_loss_by_an_engine_that_profiles(tmp_path, engine, outcome, is_due):
    assert is_profile_due(tmp_path, engine, outcome) is is_due


def test_is_profile_due__not_where_both_arms_were_profiled(tmp_path):
    assert not is_profile_due(write_profiled(tmp_path / "r"), "sglang", Outcome.REGRESSION)
