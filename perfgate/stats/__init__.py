"""The mathematics of the verdict: small pure functions, each with its source."""

MEMORY = 4096
"""How many points of a distribution are remembered: more than one verdict can ask for."""
