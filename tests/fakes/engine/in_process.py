"""Sessions without processes: the fake engine and the fake load generator as threads, behind the seam that starts processes.

What a session says to its servers goes over real sockets, what it keeps lies in real files; only the reaper's `start` and `end`
are replaced. A program that is neither of the two fakes is started as a process all the same.
"""

import importlib.util
import itertools
import json
import queue
import subprocess
import threading
import traceback
from pathlib import Path

from perfgate.serving.client import WORKER
from perfgate.serving.engine.reaper import Reaper
from tests.fakes.engine.fake_engine import Engine

FAKES = Path(__file__).parents[1]
ENGINE_MODULE = "tests.fakes.engine.fake_engine"
# Beyond the largest number that Linux gives a process: no signal can go astray.
NUMBERS = itertools.count(2**22 + 1)
TERMINATED = -15


class InProcess:
    """A reaper of threads."""

    def __init__(self, *locks):
        self.mark = {}
        self._locks = locks
        self._real = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def start(self, argv, env, log, *, is_asked=False):
        kind = Bench if argv[1:] == [str(WORKER)] else Served if argv[1:3] == ["-m", ENGINE_MODULE] else None
        if kind is not None:
            return kind(argv, {**env}, log)
        self._real = self._real or Reaper(*self._locks)
        return self._real.start(argv, env, log, is_asked=is_asked)

    def end(self, process, grace_s):
        if isinstance(process, Threaded):
            process.end(TERMINATED)
            return []
        return self._real.end(process, grace_s)

    def close(self):
        if self._real is not None:
            self._real.close()


class EndedError(Exception):
    """Unwinds the thread of a program that ended."""


class Threaded:
    """What stands for a process."""

    stdin = stdout = None

    def __init__(self, log):
        self.pid = next(NUMBERS)
        self._log = log
        self.returncode = None
        self.ended = threading.Event()

    def begin(self):
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self):
        try:
            self.run()
        except (EndedError, OSError):
            # What breaks because the program was ended meanwhile is no fault.
            if not self.ended.is_set():
                self.say(traceback.format_exc())
                self.end(1)

    def say(self, text):
        with self._log.open("a") as file:
            file.write(f"{text}\n")

    def poll(self):
        return self.returncode

    def wait(self, timeout=None):
        if not self.ended.wait(timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self.returncode

    def end(self, code):
        """End with `code`, unless it has ended."""
        if not self.ended.is_set():
            self.returncode = code
            self.ended.set()


class Served(Threaded):
    """The fake engine."""

    def __init__(self, argv, env, log):
        super().__init__(log)
        self._listener = None
        self._lock = threading.Lock()
        self._engine = Engine(argv, env, self.pid, self.say, self._give_up)
        self.begin()

    def run(self):
        listener = self._engine.start()
        with self._lock:
            if self.ended.is_set():
                listener.server_close()
                return
            self._listener = listener
        listener.serve_forever(poll_interval=0.01)

    def _give_up(self, code):
        """End as `os._exit` ends a process: the port is closed, the caller's connection breaks."""
        self.end(code)
        raise EndedError

    def end(self, code):
        super().end(code)
        self._engine.ended.set()
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown()
            listener.server_close()


class Bench(Threaded):
    """The fake load generator, with the worker's protocol on both of its pipes."""

    def __init__(self, _argv, env, log):
        super().__init__(log)
        self.stdin, self.stdout = Pipe(), Pipe()
        self._bench = load_serving().Bench(env, wait=self.ended.wait)
        self.begin()

    def run(self):
        self.stdout.write('{"ready": true}\n')
        for line in self.stdin:
            self.stdout.write(json.dumps(self._answer(json.loads(line)["argv"])) + "\n")

    def _answer(self, argv):
        try:
            self._bench.run(argv)
        except SystemExit as error:
            return {"ok": False, "error": f"bench_serving exited with {error.code}"}
        except OSError as error:
            return {"ok": False, "error": f"{type(error).__name__}: {error}"}
        return {"ok": True}

    def end(self, code):
        super().end(code)
        self.stdin.close()
        self.stdout.close()


class Pipe:
    """Lines from one thread to another, until it is closed."""

    def __init__(self):
        self._lines = queue.SimpleQueue()

    def write(self, text):
        self._lines.put(text)

    def flush(self):
        """Nothing is kept back."""

    def close(self):
        self._lines.put("")

    def __iter__(self):
        return iter(self._lines.get, "")


def load_serving():
    """The fake load generator's module, under a name that no engine has."""
    spec = importlib.util.spec_from_file_location("fake_serving", FAKES / "bench/sglang/benchmark/serving.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


THREADED = {
    "perfgate.serving.measure.Reaper": InProcess,
    "perfgate.gate.fresh_profiles.Reaper": InProcess,
    # A thread that ended is known to have ended at once, and the kernel keeps no record of it.
    "perfgate.serving.window.END_S": 0.1,
    "perfgate.serving.watch.telemetry.read_times": lambda _: None,
    "perfgate.serving.watch.telemetry.measure_memory": lambda _: 2**30,
}
"""What stands in the place of what, by its name, where a session is to run in threads."""
