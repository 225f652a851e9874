"""Settings of all unit tests."""

from __future__ import annotations

from hypothesis import Phase, settings

# How long an example takes says how busy the machine is, not whether the property holds.
settings.register_profile("any machine", deadline=None)
# `make mutants` asks only whether a test fails, and must get the same answer each time.
settings.register_profile(
    "mutants", deadline=None, derandomize=True, database=None, phases=(Phase.explicit, Phase.generate), print_blob=False
)
settings.load_profile("any machine")
