"""A session: fresh servers, warmed until steady, measured in alternation, every window on disk before the next begins."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from perfgate.core import Arm, Role, Window
from perfgate.errors import ClientError, InterruptedRunError, ServerError, TelemetryError
from perfgate.evidence import Answers
from perfgate.results.answers import GSM8K_EVENT, store_answers
from perfgate.results.expert_use import load_use, store_use
from perfgate.results.resumption import Progressed
from perfgate.results.writer import ResultWriter
from perfgate.serving.client import Client
from perfgate.serving.engine.reaper import Reaper
from perfgate.serving.engine.server import Server, wait_all_ready
from perfgate.serving.engine.startup import count_cached, note_start
from perfgate.serving.equivalence import ask
from perfgate.serving.experts.expert_probe import probe
from perfgate.serving.gsm8k import Evaluator
from perfgate.serving.injection.injection import VARIABLE
from perfgate.serving.injection.injection_log import INJECTED, PROOF, read_spent
from perfgate.serving.model.routed_proof import require_routed
from perfgate.serving.progress import Progress
from perfgate.serving.proof import prove, prove_warm
from perfgate.serving.tuned_choices import adopt, has_to_choose
from perfgate.serving.watch.telemetry import Telemetry
from perfgate.serving.window import Bench, Plan, describe_run, note_other_work, order_arms
from perfgate.storage.journal import explain_stop
from perfgate.verdict.validity.pairing import Flaw, WindowRules, fix_rules, group_windows
from perfgate.verdict.validity.routing import check_use
from perfgate.verdict.validity.warmth import Watched, explain_cold, is_warm

ADOPTED = "choices_adopted"


@dataclass(slots=True)
class Start:
    """One living server of one arm, and what is known of it."""

    arm: Arm
    block: int
    number: int
    server: Server
    windows: list[Window] = field(default_factory=list)
    steady: bool = False

    @property
    def watched(self) -> list[Watched]:
        """What each window told, and what was seen while it ran."""
        return [(window.run, window.telemetry) for window in self.windows]

    def find_flaw(self, rules: WindowRules) -> Flaw | None:
        """Which window the judge will want measured again, if any."""
        [found] = group_windows(self.windows)
        return found.settle(rules).wanted


@dataclass(slots=True)
class Driver:
    """The session in flight. Its methods read from the top: blocks, starts, windows."""

    plan: Plan
    writer: ResultWriter
    client: Client
    reaper: Reaper
    progress: Progress
    telemetry: Telemetry
    begun: float = field(default_factory=time.monotonic)
    starts: int = 0
    blocks: int = 0
    has_chosen: bool = False

    def go_on(self, found: Progressed) -> None:
        """Begin behind what an earlier run left: its whole blocks, its numbers, its clock."""
        self.begun -= found.elapsed_s
        self.starts, self.blocks = found.starts, found.blocks

    def run(self) -> None:
        """Measure block after block until a look decides or the plan ends; a server or client that fails voids the session."""
        try:
            self._run_blocks()
        except (ServerError, ClientError, TelemetryError) as error:
            self.writer.add_problem(str(error), self.elapsed_s)
            self.progress.step(f"session void: {error}")
        except InterruptedRunError as error:
            self.writer.add_event("interrupted", self.elapsed_s, message=str(error))
            raise
        except OSError as error:
            raise explain_stop(self.writer.folder, error) from error
        self.writer.add_event("session_ended", self.elapsed_s)

    @property
    def rules(self) -> WindowRules:
        """What decides which windows count: the judge asks the same."""
        return fix_rules(self.plan.scenario, self.plan.noise)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the session began, on a clock that cannot go back."""
        return time.monotonic() - self.begun

    def _run_blocks(self) -> None:
        total = max(self.plan.looks)
        while not self._is_over(total):
            block = self.blocks + 1
            self.progress.step(f"block {block} of at most {total}{self._estimate(total)}")
            self._run_block(block)
            self.writer.add_event("block_ended", self.elapsed_s, block=block)
            self.blocks = block

    def _estimate(self, total: int) -> str:
        """Say how long the rest takes at most, by the blocks so far; before the first nothing is known."""
        if not self.blocks:
            return ""
        left_s = self.elapsed_s / self.blocks * (total - self.blocks)
        return f", about {left_s / 60:.0f} min left" if left_s >= 90 else f", about {left_s:.0f} s left"

    def _is_over(self, total: int) -> bool:
        """Whether no further block begins: a look decided, the plan is done, or the budget is spent."""
        if self.blocks in self.plan.looks and self.plan.is_decided():
            self.progress.step(f"decided after {self.blocks} blocks")
            return True
        if self.blocks < total and self.elapsed_s > self.plan.scenario.budget_minutes * 60:
            self.writer.add_event("budget_spent", self.elapsed_s, blocks=self.blocks)
            self.progress.step(f"budget of {self.plan.scenario.budget_minutes:g} minutes spent after {self.blocks} blocks")
            return True
        return self.blocks >= total

    def _run_block(self, block: int) -> None:
        order = order_arms(block)
        if self.plan.scenario.blocks.resident == "both":
            with contextlib.ExitStack() as stack:
                living = self._start_both(stack, order, block)
                starts = [living[arm] for arm in order]
                self._make_ready(starts)
                self._measure_in_turns(starts)
                self._measure_again(starts)
                self._prove(starts)
                return
        for arm in order:
            if arm is Arm.CANDIDATE:
                self._adopt()
            with self._start(arm, block) as start:
                self._make_ready([start])
                self._measure_in_turns([start])
                self._measure_again([start])
                self._prove([start])

    def _start_both(self, stack: contextlib.ExitStack, order: tuple[Arm, ...], block: int) -> dict[Arm, Start]:
        """Start both servers side by side; the first base has the machine to itself while its compiler has still to choose."""
        if self.has_chosen or not has_to_choose(self.plan.launches[Arm.BASE]):
            self._adopt()
            return {arm: stack.enter_context(self._start(arm, block)) for arm in order}
        base = stack.enter_context(self._start(Arm.BASE, block))
        self._wait_ready([base])
        # Once: an engine that keeps no choices would be waited for in every block.
        self.has_chosen = True
        self._adopt()
        return {Arm.BASE: base, Arm.CANDIDATE: stack.enter_context(self._start(Arm.CANDIDATE, block))}

    def _adopt(self) -> None:
        """Let equal kernels of both arms run with equal settings, and write down what the candidate had chosen before."""
        found = adopt(self.plan.launches[Arm.BASE], self.plan.launches[Arm.CANDIDATE])
        if found is not None:
            self.writer.add_event(ADOPTED, self.elapsed_s, **asdict(found))

    @contextlib.contextmanager
    def _start(self, arm: Arm, block: int) -> Iterator[Start]:
        self.starts += 1
        log = self.writer.logs / f"server-{self.starts:02d}-{arm.value}.log"
        server = Server(self.plan.launches[arm], log, self.reaper)
        cached = count_cached(self.plan.launches[arm])
        with self.telemetry.guard(server), server:
            self.writer.add_event(
                "server_started", self.elapsed_s, arm=arm.value, start=self.starts, port=server.port, **cached
            )
            yield Start(arm=arm, block=block, number=self.starts, server=server)
        self.writer.add_event("server_stopped", self.elapsed_s, arm=arm.value)
        # In the folder's own words: logs are large, and are left out where folders are kept.
        if VARIABLE in self.plan.launches[arm].env and (spent := read_spent(log)) is not None:
            self.writer.add_event(INJECTED, self.elapsed_s, arm=arm.value, steps=spent.steps, injected_us=spent.injected_us)

    def _wait_ready(self, starts: list[Start]) -> None:
        arms = {start.server: start.arm.value for start in starts}
        wait_all_ready(list(arms), lambda server, waited: self.progress.wait(f"{arms[server]} server loading, {waited:.0f} s"))

    def _make_ready(self, starts: list[Start]) -> None:
        self._wait_ready([start for start in starts if not start.server.ready_s])
        for start in starts:
            self.telemetry.note_ready()
            self._require_injection(start)
            require_routed(start.server)
            note_start(start.server, self.writer, arm=start.arm, start=start.number, at_s=self.elapsed_s)
            self.progress.step(f"{start.arm.value} server ready after {start.server.ready_s:.0f} s")
        self.client.wait_ready_once()
        for start in starts:
            self._warm(start)
            if not self.blocks:
                self._probe(start)
                prove_warm(self.plan, start)
            self._freeze(start)
            self._ask(start)

    def _require_injection(self, start: Start) -> None:
        """A server that was to be slowed and is not would make the gate look blind."""
        wanted = self.plan.launches[start.arm].env.get(VARIABLE)
        if wanted and PROOF not in start.server.log.read_text(encoding="utf-8", errors="replace"):
            raise ServerError(
                f"the injection {wanted} never ran in the server: is perfgate installed in {start.server.launch.python}? "
                "Where it is only on PYTHONPATH, `perfgate kernels plug-in FOLDER` writes what lets SGLang find it"
            )

    def _warm(self, start: Start) -> None:
        """Discard windows until the next one can count: until two in a row agree, the second without other work."""
        for _ in range(self.plan.scenario.warmup.max_discards):
            self._measure(start, Role.WARMUP)
            if is_warm(start.watched, self.rules):
                start.steady = True
                return
        raise ServerError(f"{start.arm.value} server {explain_cold(start.watched, self.rules)}")

    def _probe(self, start: Start) -> None:
        """Keep which experts a warm server chooses. Raise ServerError where they void the session: no window would count."""
        self.progress.wait(f"{start.arm.value} server: prompts that show its routing")
        found = probe(start.server, start.server.expert_folder, self.plan.scenario.load.max_concurrency)
        store_use(self.writer.folder, found, arm=start.arm, block=start.block, start=start.number)
        uses, damage = load_use(self.writer.folder, ())
        for problem in (*damage, *check_use(uses)):
            raise ServerError(problem)

    def _freeze(self, start: Start) -> None:
        """Spare the windows the pauses of a collector that walks through what the warm-up left; write down who offers it."""
        is_offered = start.server.freeze_gc()
        self.writer.add_event(
            "gc_freeze", self.elapsed_s, arm=start.arm.value, start=start.number, offered="yes" if is_offered else "no"
        )

    def _ask(self, start: Start) -> None:
        """Keep what a warm server answers to the fixed prompts; whether it is what the base answers is for the judge to say."""
        rules = self.plan.scenario.equivalence
        if rules.enabled:
            self.progress.wait(f"{start.arm.value} server: {rules.prompts} prompts to compare answers")
            body, question = ask(start.server, rules)
            asked = Answers(arm=start.arm, block=start.block, start=start.number, question=question)
            store_answers(self.writer.folder, body, asked)

    def _measure_in_turns(self, starts: list[Start]) -> None:
        for turn in range(self.plan.scenario.blocks.windows):
            for start in starts if turn % 2 == 0 else reversed(starts):
                self._measure(start, Role.MEASURED)

    def _measure_again(self, starts: list[Start]) -> None:
        """Measure once more, in each start by the same rule, what stalled or held other work; all of it is kept and told.

        Raise ServerError where a start does other work again and again.
        """
        for start in starts:
            reruns = 0
            while (flaw := start.find_flaw(self.rules)) is not None:
                if flaw.work and reruns > self.plan.scenario.blocks.windows:
                    raise ServerError(
                        f"{start.arm.value} server {flaw.work} in window {flaw.window.index}, after {reruns} windows were "
                        f"measured again already; {self.rules.advise(flaw.window.telemetry)}"
                    )
                self._tell_flaw(start, flaw)
                self._measure(start, Role.RERUN)
                reruns += 1

    def _tell_flaw(self, start: Start, flaw: Flaw) -> None:
        index = flaw.window.index
        if not flaw.work:
            place = {"arm": start.arm.value, "block": start.block, "start": start.number, "index": index}
            self.writer.add_event("window_stalled", self.elapsed_s, **place)
        self.progress.step(f"  {start.arm.value} window {index} {flaw.description}: one more is measured, both are kept")

    def _prove(self, starts: list[Start]) -> None:
        for start in starts if not self.blocks else ():
            self._quiz(start)
            prove(self.plan, self.writer, start, self.elapsed_s)

    def _quiz(self, start: Start) -> None:
        """Keep which questions a server solves that has been measured: there is no window left to disturb."""
        if (rules := self.plan.gsm8k) is not None:
            self.progress.wait(f"{start.arm.value} server: {rules.questions} questions of GSM8K")
            evaluator = Evaluator(python=self.client.python, log=self.writer.logs / "gsm8k.log", reaper=self.reaper)
            marks = evaluator.evaluate(start.server, rules)
            self.writer.add_event(GSM8K_EVENT, self.elapsed_s, arm=start.arm.value, start=start.number, marks=marks)

    def _measure(self, start: Start, role: Role) -> None:
        """One window: take it, store it, tell of it."""
        load = self.plan.scenario.load
        self.progress.wait(f"{start.arm.value} window {len(start.windows)} ({role.value}): {load.num_prompts} requests")
        place: dict[str, Any] = {
            "arm": start.arm,
            "block": start.block,
            "start": start.number,
            "index": len(start.windows),
            "role": role,
        }
        bench = Bench(client=self.client, telemetry=self.telemetry, read_clock=lambda: self.elapsed_s)
        taken = bench.take(start.server, load, place)
        note_other_work(self.writer, self.elapsed_s, place, taken)
        place |= taken.facts
        start.windows.append(Window(run=taken.read(self.writer.add_window(taken.raw, **place)), **place))
        self.progress.step(describe_run(start.arm.value, role.value, start.windows[-1].run, taken))
