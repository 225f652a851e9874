"""One start of one arm, as a session and a matrix drive it alike: a fresh server, warmed, asked, measured, measured again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from perfgate.core import Arm, Role, Run, Window
from perfgate.errors import ServerError
from perfgate.evidence import Answers
from perfgate.results.answers import store_answers
from perfgate.results.expert_use import load_use, store_use
from perfgate.results.words import describe_damage, describe_remark
from perfgate.results.writer import ResultWriter
from perfgate.scenario.schema import Scenario
from perfgate.serving.client import Client
from perfgate.serving.engine.launch import Launch
from perfgate.serving.engine.reaper import Reaper
from perfgate.serving.engine.server import Server
from perfgate.serving.engine.startup import count_cached, describe_start, keep_info
from perfgate.serving.equivalence import ask
from perfgate.serving.experts.expert_probe import probe
from perfgate.serving.model.served_model import require_routed
from perfgate.serving.progress import Progress
from perfgate.serving.watch.telemetry import Telemetry
from perfgate.serving.window import Bench, describe_run, note_other_work
from perfgate.verdict.validity.pairing import (
    Flaw,
    WindowRules,
    explain_cold,
    fix_rules,
    group_windows,
    is_warm,
    list_watched,
    may_discard,
)
from perfgate.verdict.validity.routing import check_use


@dataclass(slots=True, kw_only=True)
class Start:
    """One living server of one arm under one load, and what is known of it.

    `name` is what people call the arm. `arm` is its place in a comparison: the servers of a matrix are each held against the
    first one, which is the base. `facts` name the arm in the folder's events, and `place` the start in its index.
    """

    name: str
    arm: Arm
    block: int
    number: int
    server: Server
    scenario: Scenario
    facts: Mapping[str, str]
    place: Mapping[str, Any]
    windows: list[Window] = field(default_factory=list)

    def find_flaw(self, rules: WindowRules) -> Flaw | None:
        """Which window the judge will want measured again, if any."""
        [found] = group_windows(self.windows)
        return found.settle(rules).wanted

    def meet(self, name: str, scenario: Scenario, place: Mapping[str, Any]) -> None:
        """Go on with another load, under which the server has to get warm anew."""
        self.name, self.scenario, self.place, self.windows = name, scenario, place, []


@dataclass(slots=True, kw_only=True)
class StartDriver:
    """What takes a start from its server's first second to its last window, each on disk before the next begins.

    `noise` holds the stored deviations of a window by metric. `begun` is the moment of the monotonic clock from which the
    folder's times count, `starts` the number of the last start, `latest` the last window of each arm since then.
    """

    writer: ResultWriter
    reaper: Reaper
    progress: Progress
    telemetry: Telemetry
    noise: Mapping[str, float] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)
    starts: int = 0
    latest: dict[Arm, Run] = field(default_factory=dict)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the folder was begun, on a clock that cannot go back."""
        return time.monotonic() - self.begun

    def go_on(self, elapsed_s: float, starts: int) -> None:
        """Continue the clock and the numbers of starts of an earlier run."""
        self.begun -= elapsed_s
        self.starts = starts

    def note(self, event: str, **facts: Any) -> None:
        """Append what happened to the folder's event log."""
        self.writer.add_event(event, self.elapsed_s, **facts)

    def find_rules(self, start: Start) -> WindowRules:
        """What decides which windows of a start count: the judge asks the same."""
        return fix_rules(start.scenario, self.noise)

    @contextlib.contextmanager
    def open_server(self, launch: Launch, name: str, facts: Mapping[str, str]) -> Iterator[Server]:
        """Start a fresh server, watch it, and stop it in the end; `facts` name its arm in the events."""
        self.starts += 1
        server = Server(launch, self.writer.logs / f"server-{self.starts:02d}-{name}.log", self.reaper)
        cached = count_cached(launch)
        with self.telemetry.guard(server), server:
            self.note("server_started", **facts, start=self.starts, port=server.port, **cached)
            yield server
        self.note("server_stopped", **facts)

    def note_ready(self, start: Start) -> None:
        """Write down what a ready server took and resolved to.

        Raise ServerError where its model is not the one asked for, or where it did not take a switch.
        """
        idle = self.telemetry.note_ready(start.server)
        require_routed(start.server)
        self.note("server_ready", start=start.number, **describe_start(start.server), **idle)
        keep_info(start.server, self.writer.folder, arm=start.arm, start=start.number)
        self.progress.step(f"{start.name} server ready after {start.server.ready_s:.0f} s")

    def warm(self, start: Start, client: Client, other: Run | None = None) -> None:
        """Discard windows until the next one can count: until two in a row agree, the second without other work.

        `other` is the last window of the other arm, where one was measured under the same load.
        """
        # One more is discarded where questions empty a cache that windows keep.
        rules, most = self.find_rules(start), start.scenario.warmup.max_discards - start.scenario.load.keep_cache
        while may_discard(list_watched(start.windows), rules, most):
            self.measure(start, client, Role.WARMUP)
            rules = self.find_rules(start).widen(start.windows[-1].run, other)
            if is_warm(list_watched(start.windows), rules):
                return
        raise ServerError(f"{start.name} server {explain_cold(list_watched(start.windows), rules)}")

    def probe(self, start: Start, max_concurrency: int, beside: Collection[int] | None = None) -> None:
        """Keep which experts a warm server chooses. Raise ServerError where they void what follows: no window would count.

        The candidate is held against the base among the starts `beside` it, or among all; both have to be asked with the same
        `max_concurrency`, which draws the prompts.
        """
        self.progress.wait(f"{start.name} server: prompts that show its routing")
        found = probe(start.server, start.server.expert_folder, max_concurrency)
        store_use(self.writer.folder, found, arm=start.arm, block=start.block, start=start.number)
        use, damage = load_use(self.writer.folder, (), None if beside is None else {start.number, *beside})
        for problem in (*(describe_damage(found) for found in damage), *check_use(use)):
            raise ServerError(problem)

    def freeze(self, start: Start) -> None:
        """Let the garbage collector skip what the warm-up left, so that it pauses no window; note whether the server can."""
        offered = "yes" if start.server.freeze_gc() else "no"
        self.note("gc_freeze", **start.facts, start=start.number, offered=offered)

    def ask(self, start: Start) -> None:
        """Keep what a warm server answers to the fixed prompts; whether it is what the base answers is for the judge to say."""
        rules = start.scenario.equivalence
        if rules.enabled:
            self.progress.wait(f"{start.name} server: {rules.prompts} prompts to compare answers")
            body, question = ask(start.server, rules)
            asked = Answers(arm=start.arm, block=start.block, start=start.number, question=question)
            store_answers(self.writer.folder, body, asked)

    def refill(self, start: Start, client: Client) -> None:
        """Fill the cache that the questions emptied, where windows keep it: one more window is discarded."""
        if start.scenario.load.keep_cache:
            self.measure(start, client, Role.WARMUP)

    def measure_again(self, start: Start, client: Client) -> None:
        """Measure once more what stalled or held other work; all of it is kept and reported.

        Raise ServerError where a start does other work in more windows than its warm-up may discard.
        """
        reruns, rules = 0, self.find_rules(start)
        while (flaw := start.find_flaw(rules)) is not None:
            if flaw.work and reruns >= start.scenario.warmup.max_discards:
                raise ServerError(
                    f"{start.name} server {flaw.work} in window {flaw.window.index}, after {reruns} windows were "
                    f"measured again already; {rules.advise(flaw.window.telemetry)}"
                )
            self._tell_flaw(start, flaw)
            self.measure(start, client, Role.RERUN)
            reruns += 1

    def _tell_flaw(self, start: Start, flaw: Flaw) -> None:
        index = flaw.window.index
        if not flaw.work:
            self.note("window_stalled", **start.place, index=index)
        self.progress.step(f"  {start.name} window {index} {flaw.description}: one more is measured, both are kept")

    def measure(self, start: Start, client: Client, role: Role) -> None:
        """One window: measure it, store it, report it."""
        load, index = start.scenario.load, len(start.windows)
        self.progress.wait(f"{start.name} window {index} ({role.value}): {load.num_prompts} requests")
        place = {**start.place, "index": index, "role": role}
        bench = Bench(client=client, telemetry=self.telemetry, read_clock=lambda: self.elapsed_s)
        taken = bench.take(start.server, load, place)
        note_other_work(self.writer, self.elapsed_s, place, taken)
        run = taken.read(self.writer.add_window(taken.raw, **place, **taken.facts))
        window = Window(run=run, arm=start.arm, block=start.block, start=start.number, index=index, role=role, **taken.facts)
        start.windows.append(window)
        self.latest[start.arm] = run
        self.progress.step(describe_run(start.name, role.value, run, taken))
        if run.is_unanswered:
            raise ServerError(f"{start.name} server answered no request of window {index}: {describe_remark(run.problems[0])}")
