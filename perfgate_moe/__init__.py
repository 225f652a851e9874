"""Fused mixture-of-experts layers: an oracle, a conformance suite that can fail, kernels, and their ahead-of-time build.

Nothing here imports `perfgate`, which may import this package: `errors`, `engines.switch` and `proof.values` load neither torch
nor Triton, the rest loads them when a kernel command runs.
"""

__version__ = "0.1.0"
