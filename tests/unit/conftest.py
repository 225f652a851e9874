"""Settings of all unit tests."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes says how busy the machine is, not whether the property holds.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
