"""What two fingerprints differ in: which facts count, and how a difference is worded."""

from __future__ import annotations

from perfgate.core import ABSENT, FactDifference, Fingerprint
from perfgate.engines.table import PACKAGES

LINK_FACTS = ("gpus", "link")
"""Facts of a server over several GPUs: how many, and how they are linked. One on a single GPU has none of them."""

HARDWARE_FACTS = ("hardware", "gpu", "gpu_memory_gib", "clock_policy", *LINK_FACTS)
"""Facts of the machine. A stored baseline needs all of them to be equal; the two arms of a comparison too."""

HOST_FACTS = ("cpu", "cores")
"""Facts of the GPU's host. Both arms have the same host; stored noise of another one weighs less. Without a GPU, the host is
what serves, and its facts are hardware.
"""

SOFTWARE_FACTS = ("driver", "cuda", "torch", "triton", "nccl", *PACKAGES, "transformers", "numpy", "os", "kernel", "python")
"""Facts of what runs on it. The two arms may differ in them only where the pull request changes them."""


def hardware_differences(mine: Fingerprint, theirs: Fingerprint) -> tuple[FactDifference, ...]:
    """Return each fact of what serves that differs, with both values: of the GPU, or of a machine that has none."""
    facts = HARDWARE_FACTS if _have_gpu(mine, theirs) else (*HARDWARE_FACTS, *HOST_FACTS)
    return _only(mine, facts).differences(_only(theirs, facts))


def link_differences(mine: Fingerprint, theirs: Fingerprint) -> tuple[FactDifference, ...]:
    """Return each fact that differs of how many GPUs a server is spread over and how they are linked, with both values."""
    return _only(mine, LINK_FACTS).differences(_only(theirs, LINK_FACTS))


def host_differences(mine: Fingerprint, theirs: Fingerprint) -> tuple[FactDifference, ...]:
    """Return each fact of the host of a GPU that differs, with both values; nothing where the host is what serves."""
    facts = HOST_FACTS if _have_gpu(mine, theirs) else ()
    return _only(mine, facts).differences(_only(theirs, facts))


def _have_gpu(mine: Fingerprint, theirs: Fingerprint) -> bool:
    return all(one.facts.get("gpu", ABSENT) != ABSENT for one in (mine, theirs))


def software_differences(mine: Fingerprint, theirs: Fingerprint) -> tuple[FactDifference, ...]:
    """Return each fact of the software that differs, with both values."""
    return _only(mine, SOFTWARE_FACTS).differences(_only(theirs, SOFTWARE_FACTS))


def _only(fingerprint: Fingerprint, keys: tuple[str, ...]) -> Fingerprint:
    return Fingerprint(facts={key: value for key, value in fingerprint.facts.items() if key in keys})


def describe_difference(difference: FactDifference) -> str:
    """Name the fact with both values, for example "gpu: H200 here, H100 there"."""
    key, here, there = difference
    return f"{key}: {here} here, {there} there"


def describe_arms(difference: FactDifference) -> str:
    """Name the fact with the values of both arms, where base was compared with candidate."""
    key, base, candidate = difference
    return f"{key}: {base} in base, {candidate} in candidate"
