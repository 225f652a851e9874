"""Requests to measure with the fake engine and the fake load generator: real processes, seconds instead of minutes."""

import sys
from dataclasses import replace
from functools import lru_cache

from perfgate.core import Arm
from perfgate.engines import table as engines
from perfgate.engines.sglang import NAMED_CACHES, SGLANG
from perfgate.machine.fingerprint import read_software
from perfgate.results.results import load_results
from perfgate.scenario.catalog import read_scenario_text
from perfgate.scenario.schema import parse_scenario
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.engine.launch import Launch
from perfgate.serving.measure import Request
from perfgate.verdict.validity.admission import find_problems
from tests.fakes.engine.in_process import ENGINE_MODULE, FAKES, THREADED

FAKE_PATH = {"PYTHONPATH": f"{FAKES.parents[1]}:{FAKES / 'bench'}"}
"""Where a Python finds the fake engines, and the fake load generator before the real one."""


class KeptProgress:
    """A progress display that remembers."""

    def __init__(self):
        self.lines = []

    def step(self, text):
        self.lines.append(text)

    def wait(self, text):
        self.lines.append(text)


def list_problems(session):
    """What voids a session that was loaded from a folder, whatever its windows."""
    scenario, _ = load_results(session.source)
    return find_problems(session, scenario)


def make_launch(engine="sglang", **env):
    """What would start a server with these variables of its own; nothing is started."""
    return Launch(
        engine=engines.ENGINES[engine],
        python="python",
        model="model",
        args=(),
        env=env,
        ready_timeout_s=1.0,
        stop_timeout_s=1.0,
    )


def use_fake_engine(monkeypatch, tmp_path):
    """Serve every scenario of the CPU engine by the fake one, with a machine state below `tmp_path`; both fakes are threads."""
    use_fake_processes(monkeypatch, tmp_path)
    monkeypatch.delenv("FAKE_PROCESSES")
    for name, part in THREADED.items():
        monkeypatch.setattr(name, part)


def use_fake_processes(monkeypatch, tmp_path):
    """The same with real processes: for what only they can do, and for one session of each kind."""
    monkeypatch.setitem(engines.ENGINES, "sglang-cpu", build_fake_engine())
    monkeypatch.setenv("FAKE_PROCESSES", "1")
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "state"))
    # Both names: a module that was imported before keeps its own.
    for module in ("measure", "matrix_run"):
        monkeypatch.setattr(f"perfgate.serving.{module}.require_engine", lambda *_: None)
    # A fake is ready at once, and the packages beside it stay what they are.
    monkeypatch.setattr("perfgate.serving.engine.server.POLL_S", 0.02)
    monkeypatch.setattr("perfgate.serving.experts.expert_probe.HOLD_S", 0.01)
    monkeypatch.setattr("perfgate.machine.fingerprint.read_software", remember_software)


def remember_software(python):
    """What this Python has installed, asked once by the tests of a worker; any other is asked each time."""
    return dict(_read_own_software()) if python == sys.executable else read_software(python)


@lru_cache(maxsize=1)
def _read_own_software():
    return read_software(sys.executable)


def build_fake_engine():
    return replace(
        SGLANG,
        name="sglang-cpu",
        package="pytest",
        module=ENGINE_MODULE,
        args=(),
        env=FAKE_PATH,
        caches=NAMED_CACHES,
        uses_gpu=False,
    )


def build_text(**changes):
    """The text of the CPU scenario with few requests, and with other `changes` of what it says."""
    text, _ = read_scenario_text("cpu-moe")
    for before, after in {"num_prompts = 304": "num_prompts = 8", **changes}.items():
        assert before in text
        text = text.replace(before, after)
    return text


def build_request(folder, *, candidate=None, looks=(2,), is_decided=lambda _: False, fields=None, **changes):
    """A request with equal arms, or with another `candidate`; `fields` are set on the request, `changes` in the text."""
    text = build_text(**changes)
    request = Request(
        scenario=parse_scenario(text, "test"),
        scenario_text=text,
        arms={Arm.BASE: ArmSpec(), Arm.CANDIDATE: candidate or ArmSpec()},
        folder=folder,
        purpose="ab",
        looks=looks,
        is_decided=is_decided,
    )
    return replace(request, **(fields or {}))
