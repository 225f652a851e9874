"""Builds of kernels ahead of time."""
