"""The load generator, as the session sees it: a long-lived worker that turns a load into raw output, window by window."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Self

from perfgate.engines.engine import Engine
from perfgate.errors import ClientError, InputError
from perfgate.readers.arrivals import read_arrivals
from perfgate.scenario.load import Load
from perfgate.scenario.schema import Scenario
from perfgate.serving.engine.reaper import INTERRUPTION, Reaper

WORKER = Path(__file__).with_name("client_worker.py")
IMPORT_TIMEOUT_S = 180.0


def build_argv(load: Load, model: Path, url: str, output: Path) -> list[str]:
    """Write a load as bench_serving's arguments. The seed is always passed: its default changed between releases."""
    return [
        "--backend", load.backend,
        "--base-url", url,
        "--model", str(model),
        # Bench_serving has none of that name; the worker draws the requests in its place.
        *(("--dataset-name", "custom", "--use-trace-timestamps") if load.is_trace else ("--dataset-name", load.dataset)),
        "--num-prompts", str(load.num_prompts),
        *_list_lengths(load),
        "--request-rate", str(load.request_rate),
        "--max-concurrency", str(load.max_concurrency),
        "--seed", str(load.seed),
        "--output-file", str(output),
        "--output-details",
        "--disable-tqdm",
        *(("--dataset-path", load.dataset_path) if load.dataset_path else ()),
        *(("--warmup-requests", str(load.warmup_requests)) if load.warmup_requests != 1 else ()),
        *load.args,
    ]  # fmt: skip


def _list_lengths(load: Load) -> list[str]:
    if load.is_random:
        lengths = {"input-len": load.input_len, "output-len": load.output_len, "range-ratio": load.range_ratio}
        return [word for name, value in lengths.items() for word in (f"--random-{name}", str(value))]
    return [] if load.output_len is None else ["--sharegpt-output-len", str(load.output_len)]


def verify_dataset(load: Load) -> None:
    """Raise InputError unless the file of the data set is there, is the one that the scenario names, and can be replayed."""
    if load.dataset_path:
        verify_file("load.dataset_path", load.dataset_path, load.dataset_sha256)
    if load.is_trace:
        read_arrivals(load)


def verify_files(scenario: Scenario) -> None:
    """Raise InputError unless the files that the scenario names are there and are those."""
    verify_dataset(scenario.load)
    if (rules := scenario.equivalence.gsm8k).path:
        verify_file("equivalence.gsm8k.path", rules.path, rules.sha256)


def verify_file(field: str, path: str, sha256: str | None) -> None:
    """Raise InputError naming the scenario's `field` unless the file at `path` is there and has that digest."""
    try:
        with Path(path).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{field} {path}: cannot be read ({error.strerror}); give another file") from None
    if found != sha256:
        raise InputError(
            f"{field} {path}: its SHA-256 is {found}, the scenario names {sha256}; measure with that file, or with a scenario "
            "of this one"
        )


class Client:
    """A worker process. Use `with`; one worker serves every window of a session, so both arms are driven by the same code."""

    def __init__(self, python: str, engine: Engine, log: Path, reaper: Reaper) -> None:
        """Describe the worker; it starts with `with`, in `python`, or in ours where the engine brings no bench_serving."""
        self.python = python if engine.has_client else sys.executable
        self._engine = engine
        self._log = log
        self._reaper = reaper
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str] = queue.Queue()
        self._is_ready = False
        self._traces: dict[Load, Path] = {}
        self._folders = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Start the worker; its import goes on while the first server loads."""
        # The worker is a script beside our modules: they must not shadow the arm's own packages.
        quiet = {"PYTHONSAFEPATH": "1", "PYTHONWARNINGS": "ignore"}
        environment = {**os.environ, **self._engine.env, **quiet}
        self._process = self._reaper.start([self.python, str(WORKER)], environment, self._log, is_asked=True)
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the worker, on every path."""
        self.stop()
        self._folders.close()

    def stop(self) -> None:
        """End the worker now; a server whose requests have lost their client need not drain them."""
        if self._process is not None:
            process, self._process = self._process, None
            self._reaper.end(process, grace_s=2.0)
            for pipe in (process.stdin, process.stdout):
                # Closing writes what a worker that died never read.
                with contextlib.suppress(BrokenPipeError):
                    if pipe is not None:
                        pipe.close()

    def wait_ready_once(self) -> None:
        """Wait until bench_serving is imported, the first time it is asked. Raise ClientError if it cannot be."""
        if not self._is_ready:
            self._receive(IMPORT_TIMEOUT_S)
            self._is_ready = True

    def measure(self, load: Load, model: Path, url: str) -> bytes:
        """Run one window against `url` and return bench_serving's JSONL, as it wrote it. Raise ClientError if it did not."""
        with tempfile.TemporaryDirectory(prefix="perfgate-") as folder:
            output = Path(folder) / "window.jsonl"
            self._send(json.dumps({"argv": build_argv(self._place(load), model, url, output)}))
            answer = json.loads(self._receive(load.timeout_s))
            if not answer["ok"]:
                raise ClientError(f"the load generator failed: {answer['error']} (log {self._log})")
            if not output.exists():
                raise ClientError(f"the load generator wrote no result; its last words are in {self._log}")
            return output.read_bytes()

    def _place(self, load: Load) -> Load:
        """A load whose trace is the slice alone, as Mooncake writes it and the worker reads it: one file for all windows."""
        if not load.is_trace:
            return load
        if load not in self._traces:
            path = Path(self._folders.enter_context(tempfile.TemporaryDirectory(prefix="perfgate-"))) / "trace.jsonl"
            lines = (
                {
                    "timestamp": round(one.at_s * 1e3, 6),
                    "input_length": one.input_len,
                    "output_length": one.output_len,
                    "hash_ids": one.hash_ids,
                }
                for one in read_arrivals(load)
            )
            path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
            self._traces[load] = path
        return replace(load, dataset_path=str(self._traces[load]))

    def _send(self, line: str) -> None:
        process = self._require()
        try:
            if process.stdin is not None:
                process.stdin.write(line + "\n")
                process.stdin.flush()
        except BrokenPipeError:
            raise ClientError(f"the load generator has died (log {self._log})") from None

    def _receive(self, timeout_s: float) -> str:
        self._require()
        INTERRUPTION.check()
        try:
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise ClientError(f"the load generator gave no answer within {timeout_s:.0f} s (log {self._log})") from None
        if not line:
            raise ClientError(f"the load generator has died (log {self._log})")
        return line

    def _require(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise ClientError("the load generator is not running; use it inside `with`")
        return self._process

    def _listen(self, process: subprocess.Popen[str]) -> None:
        if process.stdout is not None:
            for line in process.stdout:
                self._answers.put(line)
        self._answers.put("")
