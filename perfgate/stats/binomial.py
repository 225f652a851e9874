"""Confidence bounds of the rate at which a rule errs."""

from __future__ import annotations

from perfgate.stats import special


def bound_rate(errors: int, tries: int, confidence: float = 0.95) -> float:
    """Return the one-sided upper bound of an error rate after `errors` in `tries` (0 in 300 gives 0.00994).

    Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial", Biometrika 26
    (1934): the rate at which as few errors as these have probability 1 - confidence. Raise ValueError for impossible counts.
    """
    if not 0 <= errors <= tries or tries < 1:
        raise ValueError(f"{errors} errors in {tries} tries cannot be")
    return 1.0 if errors == tries else float(special.betaincinv(errors + 1, tries - errors, confidence))


def bound_rate_below(errors: int, tries: int, confidence: float = 0.95) -> float:
    """Return the one-sided lower bound of an error rate; the mirror image of `bound_rate`."""
    return 1.0 - bound_rate(tries - errors, tries, confidence)
