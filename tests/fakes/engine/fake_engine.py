"""A serving engine that behaves badly in the ways that the real one does: a process of its own, or a thread (`in_process`).

The environment variable FAKE_ENGINE chooses the behaviour: ok, die, never_ready, deaf (ignores SIGTERM), child (leaves one
behind that is deaf too), busy (never flushes), no_freeze (knows no /freeze_gc), no_info (tells half of its
settings), die_later (ends itself at the first flush), stall:N (hangs in its Nth window), hang:N (never answers in its Nth
window), gpu_full:N and ram_full:N (it dies in its Nth window for want of memory, with the words that PyTorch and Python have
for it).

A stall lasts FAKE_STALL_S seconds, which the fake load generator finds in one token. Left out, it is scaled down: a moment, and
a window that is told to be ten times slower. Where FAKE_STALL_ONCE names a file, only the server that makes it stalls.
FAKE_SLOW is how many times slower than usual the fake load generator finds the server. FAKE_SAYS is what it writes to its log
at its start. FAKE_LEFT_OUT is an option that its settings do not have. FAKE_START_S is how long it takes to start,
FAKE_HEALTH_S how long it takes to say that it is ready, FAKE_HEALTH_MEETS names a folder in which each server leaves a file
once it was asked, and answers when FAKE_HEALTH_GUESTS (2) are there; FAKE_START_AFTER names one that must be there before a
server starts to listen. FAKE_SERVERS=FOLDER:N lets only N servers come up, those that leave the first files in that folder.
FAKE_LEAK_MIB is what it keeps of every window. FAKE_COMPILES are the numbers of the windows in which it compiles a kernel into
TRITON_CACHE_DIR, such as 1,2, or `all`; FAKE_RETRACTS those in which it writes that it retracted two requests, FAKE_RESTARTS
those in which it writes that a process of it died. Where FAKE_NVML names a fake GPU, the server holds memory of it while it
lives. Where TORCHINDUCTOR_CACHE_DIR names a folder, it goes by the choice that it finds there, or leaves one that no other
makes.
"""

import itertools
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.fakes.engine import fake_answers
from tests.fakes.engine.fake_metrics import Metrics
from tests.fakes.engine.fake_profiler import Profiler
from tests.fakes.engine.fake_routing import Router

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


class Engine:
    """One engine: its command line, its variables, the number of its process, and how it writes a line and ends itself."""

    def __init__(self, argv, env, pid, say, end):
        self.argv, self.env, self.pid, self.say, self.end = argv, env, pid, say, end
        self.behaviour = env.get("FAKE_ENGINE", "ok")
        self.slow = float(env.get("FAKE_SLOW", "1.0"))
        self.fault = env.get("FAKE_ANSWER", "ok")
        self.windows = itertools.count(1)
        self.leaked = []
        self.ended = threading.Event()
        self.metrics, self.profiler, self.router = Metrics(), Profiler(env), Router(env)

    def start(self):
        """Load, and return the server that is to answer from now on; None where it ended itself first."""
        if self.behaviour == "die":
            self.say("loading\nRuntimeError: no memory for the weights\nbye")
            self.end(7)
            return None
        self.say(self.env.get("FAKE_LOG", "loading"))
        self.say(self.env.get("FAKE_SAYS", ""))
        if "TORCHINDUCTOR_CACHE_DIR" in self.env:
            place = pathlib.Path(self.env["TORCHINDUCTOR_CACHE_DIR"])
            self.say(f"chosen by {self.choose(place / 'ab' / 'kernel.best_config')}")
        self.ended.wait(float(self.env.get("FAKE_START_S", "0")))
        after = self.env.get("FAKE_START_AFTER")
        while after and not pathlib.Path(after).exists() and not self.ended.wait(0.02):
            pass
        self.queue()
        self.router.start()
        port = int(self.argv[self.argv.index("--port") + 1])
        return Listener(("127.0.0.1", port), self)

    def queue(self):
        """Wait to be ended where as many servers as FAKE_SERVERS says have come before."""
        folder, _, most = self.env.get("FAKE_SERVERS", "").rpartition(":")
        if folder:
            place = pathlib.Path(folder)
            place.mkdir(exist_ok=True)
            (place / str(time.monotonic_ns())).touch()
            self.ended.wait(600 if len(list(place.iterdir())) > int(most) else 0)

    def choose(self, path):
        """As torch.compile does: time what there is to choose from once, and keep the winner; each process takes another."""
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"num_warps": self.pid, "time_taken_ms": 1}))
        return json.loads(path.read_text())["num_warps"]

    def work(self, window):
        """Do in a window, as its number from 1, what SGLang does besides serving, and leave the same traces of it."""
        if self.is_among("FAKE_COMPILES", window):
            folder = pathlib.Path(self.env["TRITON_CACHE_DIR"]) / f"{self.pid}-{window}"
            folder.mkdir(parents=True)
            (folder / "__grp__fake_moe_kernel.json").write_text("{}")
            (folder / "fake_moe_kernel.cubin").write_bytes(b"code")
        if self.is_among("FAKE_RETRACTS", window):
            self.say("KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_tokens_gained: 64")
        if self.is_among("FAKE_RESTARTS", window):
            self.say(f"[2026-11-29 04:38:02] INFO:     Child process [{self.pid}] died")
        self.leaked.append(b"x" * (int(self.env.get("FAKE_LEAK_MIB", "0")) * 2**20))
        if f"hang:{window}" == self.behaviour:
            self.ended.wait(600)
        if self.behaviour in {f"gpu_full:{window}", f"ram_full:{window}"}:
            self.run_out_of_memory()

    def is_among(self, variable, window):
        wanted = self.env.get(variable, "")
        return wanted == "all" or str(window) in wanted.split(",")

    def run_out_of_memory(self):
        """End as SGLang does when its scheduler hits an exception: a traceback in the log, then the whole server is gone."""
        try:
            if self.behaviour.startswith("gpu_full"):
                raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")  # noqa: TRY301 - the log shows a traceback
            resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
            self.leaked.append(b"x" * 2**32)
        except (RuntimeError, MemoryError):
            self.say(traceback.format_exc())
            self.end(1)

    def meet(self):
        """Answer no sooner than the others were asked, too, and after as long as it takes."""
        if "FAKE_HEALTH_MEETS" in self.env:
            place = pathlib.Path(self.env["FAKE_HEALTH_MEETS"])
            place.mkdir(exist_ok=True)
            (place / str(self.pid)).touch()
            while len(list(place.iterdir())) < int(self.env.get("FAKE_HEALTH_GUESTS", "2")) and not self.ended.wait(0.02):
                pass
        self.ended.wait(float(self.env.get("FAKE_HEALTH_S", "0")))

    def is_stalled(self, window):
        if f"stall:{window}" != self.behaviour:
            return False
        try:
            if path := self.env.get("FAKE_STALL_ONCE"):
                open(path, "x").close()
        except FileExistsError:
            return False
        return True


class Listener(ThreadingHTTPServer):
    """The engine's port."""

    def __init__(self, address, engine):
        self.engine = engine
        super().__init__(address, Handler)

    def handle_error(self, *_):
        """A connection that broke is the other side's affair, and an engine that ended has said why."""


class Handler(BaseHTTPRequestHandler):
    """Answer the paths that a server adapter asks for."""

    @property
    def engine(self):
        return self.server.engine

    def do_GET(self):
        if self.path == "/slow":
            self.serve_window()
        elif self.path == "/metrics":
            self.tell(200, self.engine.metrics.render())
        elif self.path == "/server_info":
            info = {"attention_backend": self.engine.env.get("FAKE_BACKEND", "triton"), "pid": self.engine.pid}
            info["internal_states"] = [1]
            left_out = self.engine.env.get("FAKE_LEFT_OUT")
            switches = [word for word in self.engine.argv if word.startswith("--") and word != left_out]
            info = {word[2:].replace("-", "_"): True for word in switches} | info
            self.tell(200, b"{" if self.engine.behaviour == "no_info" else json.dumps(info).encode())
        else:
            if self.path == "/health_generate":
                self.engine.meet()
            self.tell(503 if self.engine.behaviour == "never_ready" else 200)

    def do_POST(self):
        if self.engine.behaviour == "die_later":
            self.engine.say("RuntimeError: the scheduler hit an exception")
            self.engine.end(9)
        if self.path in {"/generate", "/start_profile", "/stop_profile"}:
            self.converse()
        elif self.path == "/freeze_gc":
            self.tell(404 if self.engine.behaviour == "no_freeze" else 200)
        else:
            self.tell(400 if self.engine.behaviour == "busy" else 200)

    def serve_window(self):
        """Say how slow this window is."""
        window = next(self.engine.windows)
        self.engine.work(window)
        slow, stall_s = self.engine.slow, self.engine.env.get("FAKE_STALL_S")
        if self.engine.is_stalled(window):
            self.engine.ended.wait(float(stall_s or "0.2"))
            slow *= 10.0 if stall_s is None else 1.0
        self.tell(503 if self.engine.behaviour == "never_ready" else 200, slow=slow)

    def converse(self):
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        engine = self.engine
        if engine.fault == "hang_up":
            self.close_connection = True
        elif self.path == "/start_profile":
            self.tell(engine.profiler.start(question))
        elif self.path == "/stop_profile":
            self.tell(engine.profiler.stop())
        elif engine.router.is_recorded(question):
            engine.router.record(question["input_ids"])
            self.tell(200)
        else:
            engine.profiler.generate(question["sampling_params"]["max_new_tokens"])
            self.tell(*fake_answers.generate(question, engine.fault))

    def tell(self, code, body=b"", slow=1.0):
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Slow", str(slow))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Stay silent."""


def main():
    """Serve as a process: what only a process can do wrong is here."""
    behaviour = os.environ.get("FAKE_ENGINE", "ok")
    if behaviour == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if behaviour == "child":
        subprocess.Popen([sys.executable, "-c", DEAF]).poll()
        threading.Event().wait(0.2)
    if "FAKE_NVML" in os.environ:
        with open(os.environ["FAKE_NVML"] + ".holders", "a") as file:
            file.write(f"{os.getpid()}\n")
    engine = Engine(sys.argv, os.environ, os.getpid(), lambda text: print(text, flush=True), os._exit)
    engine.start().serve_forever()


if __name__ == "__main__":
    main()
