"""Fused mixture-of-experts layers: an oracle, a conformance suite that can fail, kernels, and their ahead-of-time build.

Nothing here is imported by the rest of perfgate; torch and Triton load only when a kernel command runs.
"""
