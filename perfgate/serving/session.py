"""A session: fresh servers, warmed until steady, measured in alternation, every window on disk before the next begins."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from perfgate.core import Arm, Role
from perfgate.errors import ClientError, InterruptedRunError, ServerError, TelemetryError
from perfgate.results.answers import GSM8K_EVENT
from perfgate.serving.client import Client
from perfgate.serving.engine.server import wait_all_ready
from perfgate.serving.equivalence import Evaluator
from perfgate.serving.injection.injection import VARIABLE
from perfgate.serving.injection.injection_log import INJECTED, PROOF, read_spent
from perfgate.serving.proof import prove, prove_warm
from perfgate.serving.starts import Start, StartDriver
from perfgate.serving.tuned_choices import adopt, has_to_choose
from perfgate.serving.window import Plan, order_arms
from perfgate.storage.journal import explain_stop

ADOPTED = "choices_adopted"


@dataclass(slots=True)
class Driver:
    """The session in flight. Its methods read from the top: blocks, starts, windows."""

    plan: Plan
    client: Client
    drive: StartDriver
    blocks: int = 0
    has_chosen: bool = False

    def run(self) -> None:
        """Measure block after block until a look decides or the plan ends; a server or client that fails voids the session."""
        try:
            self._run_blocks()
        except (ServerError, ClientError, TelemetryError) as error:
            self.drive.note("problem", message=str(error))
            self.drive.progress.step(f"session void: {error}")
        except InterruptedRunError as error:
            self.drive.note("interrupted", message=str(error))
            raise
        except OSError as error:
            raise explain_stop(self.drive.writer.folder, error) from error
        self.drive.note("session_ended")

    def _run_blocks(self) -> None:
        total = max(self.plan.looks)
        while not self._is_over(total):
            block = self.blocks + 1
            self.drive.progress.step(f"block {block} of at most {total}{self._estimate(total)}")
            self._run_block(block)
            self.drive.note("block_ended", block=block)
            self.blocks = block

    def _estimate(self, total: int) -> str:
        """Say how long the rest takes at most, by the blocks so far; before the first nothing is known."""
        if not self.blocks:
            return ""
        left_s = self.drive.elapsed_s / self.blocks * (total - self.blocks)
        return f", about {left_s / 60:.0f} min left" if left_s >= 90 else f", about {left_s:.0f} s left"

    def _is_over(self, total: int) -> bool:
        """Whether no further block begins: a look decided, the plan is done, or the budget is spent."""
        if self.blocks in self.plan.looks and self.plan.is_decided():
            self.drive.progress.step(f"decided after {self.blocks} blocks")
            return True
        if self.blocks < total and self.plan.is_spent(self.drive.elapsed_s):
            self.drive.note("budget_spent", blocks=self.blocks)
            budget, unit = self.plan.scenario.budget_minutes, "GPU-minutes" if self.plan.gpus else "minutes"
            self.drive.progress.step(f"budget of {budget:g} {unit} spent after {self.blocks} blocks")
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
                for start in starts:
                    self.drive.measure_again(start, self.client)
                self._prove(starts)
                return
        for arm in order:
            if arm is Arm.CANDIDATE:
                self._adopt()
            with self._start(arm, block) as start:
                self._make_ready([start])
                self._measure_in_turns([start])
                self.drive.measure_again(start, self.client)
                self._prove([start])

    def _start_both(self, stack: contextlib.ExitStack, order: tuple[Arm, ...], block: int) -> dict[Arm, Start]:
        """Start both servers, side by side where none of them has to have the machine to itself.

        The first base has it while its compiler has still to choose, and so has one that would count the other's memory.
        """
        # Once: an engine that keeps no choices would be waited for in every block.
        chooses = not self.has_chosen and has_to_choose(self.plan.launches[Arm.BASE])
        self.has_chosen = self.has_chosen or chooses
        first, second = (Arm.BASE, Arm.CANDIDATE) if chooses else order
        if not chooses:
            self._adopt()
        living = {first: stack.enter_context(self._start(first, block))}
        if chooses or any(launch.counts_neighbours for launch in self.plan.launches.values()):
            self._wait_ready([living[first]])
        if chooses:
            self._adopt()
        return living | {second: stack.enter_context(self._start(second, block))}

    def _adopt(self) -> None:
        """Let equal kernels of both arms run with equal settings, and write down what the candidate had chosen before."""
        found = adopt(self.plan.launches[Arm.BASE], self.plan.launches[Arm.CANDIDATE])
        if found is not None:
            self.drive.note(ADOPTED, **asdict(found))

    @contextlib.contextmanager
    def _start(self, arm: Arm, block: int) -> Iterator[Start]:
        launch, facts = self.plan.launches[arm], {"arm": arm.value}
        with self.drive.open_server(launch, arm.value, facts) as server:
            number = self.drive.starts
            yield Start(
                name=arm.value,
                arm=arm,
                block=block,
                number=number,
                server=server,
                scenario=self.plan.scenario,
                facts=facts,
                place={"arm": arm, "block": block, "start": number},
            )
        # In the folder's own words: logs are large, and are left out where folders are kept.
        if VARIABLE in launch.env and (spent := read_spent(server.log)) is not None:
            self.drive.note(INJECTED, **facts, steps=spent.steps, injected_us=spent.injected_us)

    def _wait_ready(self, starts: list[Start]) -> None:
        arms = {start.server: start.name for start in starts}
        tell = self.drive.progress.wait
        wait_all_ready(list(arms), lambda server, waited: tell(f"{arms[server]} server loading, {waited:.0f} s"))

    def _make_ready(self, starts: list[Start]) -> None:
        self._wait_ready([start for start in starts if not start.server.ready_s])
        for start in starts:
            self._require_injection(start)
            self.drive.note_ready(start)
        self.client.wait_ready_once()
        for start in starts:
            self.drive.warm(start, self.client, self.drive.latest.get(start.arm.other))
            if not self.blocks:
                self.drive.probe(start, start.scenario.load.max_concurrency)
                prove_warm(self.plan, start)
            self.drive.freeze(start)
            self.drive.ask(start)
            self.drive.refill(start, self.client)

    def _require_injection(self, start: Start) -> None:
        """Raise ServerError where a server was to be slowed and was not: the gate would seem to miss a loss."""
        wanted = self.plan.launches[start.arm].env.get(VARIABLE)
        if wanted and PROOF not in start.server.log.read_text(encoding="utf-8", errors="replace"):
            raise ServerError(
                f"the injection {wanted} never ran in the server: is perfgate installed in {start.server.launch.python}? "
                "Where it is only on PYTHONPATH, `perfgate kernels plug-in FOLDER` writes what lets SGLang find it"
            )

    def _measure_in_turns(self, starts: list[Start]) -> None:
        for turn in range(self.plan.scenario.blocks.windows):
            for start in starts if turn % 2 == 0 else reversed(starts):
                self.drive.measure(start, self.client, Role.MEASURED)

    def _prove(self, starts: list[Start]) -> None:
        for start in starts if not self.blocks else ():
            self._evaluate_gsm8k(start)
            prove(self.plan, self.drive.writer, start, self.drive.elapsed_s)

    def _evaluate_gsm8k(self, start: Start) -> None:
        """Keep which questions a server solves, once it was measured: no window is left that this would disturb."""
        if (rules := self.plan.gsm8k) is not None:
            self.drive.progress.wait(f"{start.name} server: {rules.questions} questions of GSM8K")
            evaluator = Evaluator(python=self.client.python, log=self.drive.writer.logs / "gsm8k.log", reaper=self.drive.reaper)
            marks = evaluator.evaluate(start.server, rules)
            self.drive.note(GSM8K_EVENT, arm=start.arm.value, start=start.number, marks=marks)
