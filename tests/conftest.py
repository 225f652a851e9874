"""Settings of all tests: their marks, and the tier that is run."""

from __future__ import annotations

import atexit
import gc
import os
import random
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from tests.e2e.commands import AGAIN
from tests.fakes.github.github_server import run_fake_github
from tests.tiers import ALL, FOLDERS, QUICK, REST, find_marks, has_rest, is_quick

MAX_NAME = 120
NICENESS, GIVE_WAY = os.getpriority(os.PRIO_PROCESS, 0), 5
"""What the tests began with, and how much nicer those without an engine are: a third of the share of a core that both want."""

# How long an example takes says how busy the machine is, not whether the property holds. One tree gets one answer, so examples
# are the same in each run; `--hypothesis-profile search` draws others, and more.
settings.register_profile("any machine", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=3000)
# `make mutants` asks only whether a test fails.
settings.register_profile("mutants", settings.get_profile("any machine"), phases=(Phase.explicit, Phase.generate))
settings.load_profile("any machine")


@pytest.fixture(scope="session", autouse=True)
def own_machine():
    """What all programs of a user or of a machine share belongs to this worker alone: their compile cache, and the locks.

    What another worker compiles is no work of a server here, and a measurement beside the tests does not keep out those that
    the fixtures of a whole module make.
    """
    with tempfile.TemporaryDirectory(prefix="perfgate-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setenv("PERFGATE_LOCKS", str(Path(folder, "locks")))
        # Layers in tests are small: a second thread gains nothing, and each waits for the other in a loop.
        patch.setenv("OMP_NUM_THREADS", "1")
        Path(folder, "locks").mkdir()
        # No test cuts the power; waiting for the disk takes a twentieth of them.
        patch.setattr("os.fsync", lambda _: None)
        yield folder


@pytest.fixture(autouse=True)
def own_locks(monkeypatch, own_machine):
    """A lock that a test leaves keeps no other test out. pytest's own `mktemp` reads the names of all folders before it."""
    monkeypatch.setenv("PERFGATE_LOCKS", tempfile.mkdtemp(prefix="locks-", dir=own_machine))


@pytest.fixture(scope="module")
def fake_github():
    """GitHub's API in a process of its own, empty until a test sets what it holds."""
    with run_fake_github() as server:
        yield server


def pytest_configure():
    """Undo what a shell or an image says to each process, and so to those of the tests.

    One that puts the tests into the background lets them ignore an interrupt. One that forbids compiled files has each of some
    hundred processes compile perfgate, and each worker the tests.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption("--tier", choices=[QUICK, REST, ALL], default=ALL, help="those of `make test`, the rest, or all")
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the files, and the tests of each, in another order")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Look for no garbage among what lives as long as the tests: their modules, and some ten thousand items.

    Python's own end looks there once more: a library says of what it finds then that it was never released.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)
        gc.enable()


def pytest_make_parametrize_id(val):
    """Name a case by no more of a text than a line: each worker sends the names of all its tests, and one text has 16 MiB."""
    return f"{ascii(val[:MAX_NAME])[1:-1]}..." if isinstance(val, str) and len(val) > MAX_NAME else None


def pytest_ignore_collect(collection_path, config):
    """Leave alone what the tier runs nothing of."""
    tier = config.getoption("tier")
    if tier == QUICK and collection_path.is_dir() and collection_path.name in FOLDERS:
        return True
    if tier == REST and collection_path.match("test_*.py") and not has_rest(collection_path):
        return True
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark each test by what it needs, and keep those of the tier.

    `-m attack` carries out every attack that SECURITY.md lists; what takes long runs where `-m` names it.
    """
    for item in items:
        for mark in find_marks(item.path.parts, item.path.name, item.originalname):
            item.add_marker(mark)
        if item.name.startswith("test_attack__"):
            item.add_marker(pytest.mark.attack)
        if shares_own_fixture(item) and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
        if item.get_closest_marker("long") and "long" not in config.option.markexpr:
            item.add_marker(pytest.mark.skip(reason="takes long: run with -m 'long or not long'"))
    tier = config.getoption("tier")
    if tier != ALL:
        sides = {True: [], False: []}
        for item in items:
            sides[is_quick_item(item) == (tier == QUICK)].append(item)
        config.hook.pytest_deselected(items=sides[False])
        items[:] = sides[True]
    if (seed := config.getoption("shuffle")) is not None:
        shuffle(items, random.Random(seed))  # noqa: S311 - an order, no secret


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Let tests of a real engine go before the others, where root may: a server without a core sends tokens in bunches.

    That voids the session, as it should, and is no finding of the test. Processes that a test starts inherit what it has.
    """
    if os.geteuid() == 0 and item.config.getoption("tier") != QUICK:
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS + (0 if item.get_closest_marker("engine") else GIVE_WAY))


def pytest_terminal_summary(terminalreporter):
    """Say what passed only when it was measured again: where that comes often, it is no chance."""
    for report in terminalreporter.getreports("passed"):
        for line in report.capstdout.splitlines():
            if line.startswith(AGAIN):
                terminalreporter.write_line(f"{report.nodeid}: {line}")


def shares_own_fixture(item):
    """Whether it asks for what a fixture of its module makes once: such tests run in one worker, or each would make it."""
    return any(
        definition.scope == "module" and definition.func.__module__ == item.module.__name__
        for definitions in item._fixtureinfo.name2fixturedefs.values()
        for definition in definitions
    )


def shuffle(items, draw):
    """Put files, and tests within a file, in the order that is drawn; what a file measures once is still measured once."""
    files = {path: draw.random() for path in sorted({item.path for item in items})}
    items.sort(key=lambda item: (files[item.path], draw.random()))


def is_quick_item(item):
    return is_quick({mark.name for mark in item.iter_markers()}, item.originalname)
