"""Have a server answer GSM8K's questions through SGLang's own evaluation, so that the judge can compare how many are right."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from perfgate.errors import ClientError
from perfgate.scenario.safeguards import Gsm8k
from perfgate.serving.engine.reaper import Reaper
from perfgate.serving.engine.server import Server
from perfgate.storage.rounding import format_percent

WORKER = Path(__file__).with_name("gsm8k_worker.py")
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluator:
    """Runs SGLang's evaluation in `python`, which has it; what it says goes to `log`."""

    python: str
    log: Path
    reaper: Reaper

    def evaluate(self, server: Server, rules: Gsm8k) -> str:
        """Return a digit for each question, 1 where the server's answer is right.

        Raise ClientError when the evaluation fails, takes too long, or counts otherwise than its answers say.
        """
        request = {
            "url": server.url,
            "model": str(server.launch.model),
            "path": rules.path,
            "questions": rules.questions,
            "shots": rules.shots,
            "max_tokens": rules.max_tokens,
            "parallel": rules.parallel,
        }
        told = json.loads(self._run(json.dumps(request), server, rules.timeout_s))
        marks = str(told["marks"])
        if not marks:
            raise ClientError(f"equivalence.gsm8k.path: {rules.path} holds no question besides the {rules.shots} examples")
        if told["empty"] == len(marks):
            raise ClientError(f"GSM8K: the server answered none of {len(marks)} questions (log {self.log})")
        if abs(marks.count("1") / len(marks) - told["score"]) > ROUNDING:
            raise ClientError(
                f"GSM8K: the evaluation counts {format_percent(told['score'])} right, its answers say other (log {self.log})"
            )
        return marks

    def _run(self, request: str, server: Server, timeout_s: float) -> str:
        process = self._start(server)
        try:
            told, _ = process.communicate(request, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise ClientError(f"GSM8K: not answered within {timeout_s:.0f} s; raise equivalence.gsm8k.timeout_s") from None
        finally:
            self.reaper.end(process, grace_s=2.0)
        server.raise_if_dead()
        if process.returncode != 0 or not told.strip():
            raise ClientError(f"GSM8K: SGLang's evaluation failed; its last words are in {self.log}")
        return told

    def _start(self, server: Server) -> subprocess.Popen[str]:
        # The worker is a script beside our modules: they must not shadow the arm's own packages.
        quiet = {"PYTHONSAFEPATH": "1", "PYTHONWARNINGS": "ignore"}
        environment = {**os.environ, **server.launch.engine.env, **quiet}
        return self.reaper.start([self.python, str(WORKER)], environment, self.log, is_asked=True)
