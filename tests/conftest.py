"""Settings of all tests."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings

# How long an example takes says how busy the machine is, not whether the property holds.
settings.register_profile("any machine", deadline=None)
# `make mutants` asks only whether a test fails, and must get the same answer each time.
settings.register_profile(
    "mutants", deadline=None, derandomize=True, database=None, phases=(Phase.explicit, Phase.generate), print_blob=False
)
settings.load_profile("any machine")


@pytest.fixture(autouse=True)
def own_locks(monkeypatch, tmp_path_factory):
    """Tests beside each other, or beside a measurement, are not kept out by its locks."""
    monkeypatch.setenv("PERFGATE_LOCKS", str(tmp_path_factory.mktemp("locks")))


def pytest_collection_modifyitems(config, items):
    """`-m attack` carries out every attack that SECURITY.md lists; what takes long runs where `-m` names it."""
    for item in items:
        if item.name.startswith("test_attack__"):
            item.add_marker(pytest.mark.attack)
        if item.get_closest_marker("long") and "long" not in config.option.markexpr:
            item.add_marker(pytest.mark.skip(reason="takes long: run with -m 'long or not long'"))
