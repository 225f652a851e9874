"""Readers of what others wrote: bench_serving output, matrix logs, result folders and baselines."""
