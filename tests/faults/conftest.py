"""Long faults run where `-m` names them."""

import pytest


def pytest_collection_modifyitems(config, items):
    if "long" in config.option.markexpr:
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="takes long: run with -m 'long or not long'"))
