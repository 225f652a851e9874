"""Settings of all tests."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config, items):
    """`-m attack` carries out every attack that SECURITY.md lists; what takes long runs where `-m` names it."""
    for item in items:
        if item.name.startswith("test_attack__"):
            item.add_marker(pytest.mark.attack)
        if item.get_closest_marker("long") and "long" not in config.option.markexpr:
            item.add_marker(pytest.mark.skip(reason="takes long: run with -m 'long or not long'"))
