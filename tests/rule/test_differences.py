"""The words for what two fingerprints differ in."""

from __future__ import annotations

from perfgate.core import Fingerprint
from perfgate.verdict.differences import describe_arms, describe_difference


def test_differences__of_fingerprints_are_values_in_the_order_of_their_names():
    here, there = (
        Fingerprint(facts={"os": "Linux", "gpu": "H200"}),
        Fingerprint(facts={"os": "Linux", "cpu": "Xeon", "gpu": "H100"}),
    )

    assert here.differences(there) == (("cpu", "absent", "Xeon"), ("gpu", "H200", "H100"))


def test_describe_difference__names_the_fact_and_both_values():
    assert describe_difference(("gpu", "H200", "H100")) == "gpu: H200 here, H100 there"


def test_describe_arms__also_where_a_value_reads_like_a_side():
    assert describe_arms(("os", "a here, b there", "c")) == "os: a here, b there in base, c in candidate"
