"""Profiles of both arms, and what their kernels explain of a loss."""
