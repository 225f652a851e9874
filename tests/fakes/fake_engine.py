"""A serving engine that behaves badly in the ways that the real one does; started by the tests as a real process.

The environment variable FAKE_ENGINE chooses the behaviour: ok, die, never_ready, deaf (ignores SIGTERM), child (leaves one
behind that is deaf too), busy (never flushes), no_freeze (knows no /freeze_gc), no_info (tells half of its
settings), die_later (ends itself at the first flush), stall:N (hangs in its Nth window), hang:N (never answers in its Nth
window), gpu_full:N and ram_full:N (it dies in its Nth window for want of memory, with the words that PyTorch and Python have
for it).

A stall lasts FAKE_STALL_S seconds, which the fake load generator finds in one token. Left out, it is scaled down: a moment,
and a window that is told to be ten times slower. Where FAKE_STALL_ONCE names a file, only the server that makes it stalls.
FAKE_SLOW is how many times slower than usual the fake load generator finds the server. FAKE_SAYS is what it writes to its log
at its start. FAKE_START_S is how long it takes to start, FAKE_HEALTH_S how long it takes to say that it is ready,
FAKE_HEALTH_MEETS names a folder in which each server leaves a file once it was asked, and answers when FAKE_HEALTH_GUESTS (2)
are there; FAKE_START_AFTER names one that must be there before a server starts to listen. FAKE_LEAK_MIB is what it keeps of
every window. FAKE_COMPILES are the numbers of the windows in which it compiles a kernel into TRITON_CACHE_DIR, such as 1,2, or
`all`; FAKE_RETRACTS those in which it writes that it retracted two requests. Where FAKE_NVML names a fake GPU, the server holds
memory of it while it lives. Where TORCHINDUCTOR_CACHE_DIR names a folder, it goes by the choice that it finds there, or leaves
one that nobody else makes.
"""

import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import fake_answers
import fake_profiler
import fake_routing

BEHAVIOUR = os.environ.get("FAKE_ENGINE", "ok")
STALL_S = os.environ.get("FAKE_STALL_S")
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


class Handler(BaseHTTPRequestHandler):
    """Answer the paths that a server adapter asks for."""

    windows = 0
    leaked = []  # noqa: RUF012 - it is to grow
    slow = float(os.environ.get("FAKE_SLOW", "1.0"))

    def do_GET(self):
        if self.path == "/slow":
            Handler.windows += 1
            work(self.windows)
            Handler.leaked.append(b"x" * (int(os.environ.get("FAKE_LEAK_MIB", "0")) * 2**20))
        if self.path == "/slow" and f"hang:{self.windows}" == BEHAVIOUR:
            time.sleep(600)
        if self.path == "/slow" and BEHAVIOUR in {f"gpu_full:{self.windows}", f"ram_full:{self.windows}"}:
            run_out_of_memory()
        if self.path == "/metrics":
            self.answer_metrics()
            return
        if self.path == "/server_info":
            self.tell(
                {"attention_backend": os.environ.get("FAKE_BACKEND", "triton"), "pid": os.getpid(), "internal_states": [1]}
            )
            return
        self.answer(503 if BEHAVIOUR == "never_ready" else 200)

    def tell(self, content):
        body = b"{" if BEHAVIOUR == "no_info" else json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        if BEHAVIOUR == "die_later":
            print("RuntimeError: the scheduler hit an exception", flush=True)
            os._exit(9)
        if self.path in {"/generate", "/start_profile", "/stop_profile"}:
            self.converse()
            return
        if self.path == "/freeze_gc":
            self.answer(404 if BEHAVIOUR == "no_freeze" else 200)
            return
        self.answer(400 if BEHAVIOUR == "busy" else 200)

    def converse(self):
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if fake_answers.FAULT == "hang_up":
            self.close_connection = True
            return
        if self.path == "/generate" and fake_routing.is_recorded(question):
            fake_routing.record(question["input_ids"])
            self.answer(200)
            return
        if self.path == "/generate":
            fake_profiler.generate(question["sampling_params"]["max_new_tokens"])
            code, body = fake_answers.generate(question)
        else:
            code, body = (fake_profiler.start(question) if self.path == "/start_profile" else fake_profiler.stop()), b""
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer(self, code):
        is_stalled = self.path == "/slow" and f"stall:{self.windows}" == BEHAVIOUR and is_first_to_stall()
        time.sleep(float(STALL_S or "0.2") if is_stalled else 0.0)
        if self.path == "/health_generate":
            meet()
            time.sleep(float(os.environ.get("FAKE_HEALTH_S", "0")))
        self.send_response(code)
        self.send_header("X-Slow", str(self.slow * (10.0 if is_stalled and STALL_S is None else 1.0)))
        self.end_headers()

    def answer_metrics(self):
        import fake_metrics

        self.send_response(200)
        self.end_headers()
        self.wfile.write(fake_metrics.render())

    def log_message(self, *_):
        """Stay silent."""


def work(window):
    """Do in a window, as its number from 1, what SGLang does besides serving, and leave the same traces of it."""
    if is_among("FAKE_COMPILES", window):
        folder = pathlib.Path(os.environ["TRITON_CACHE_DIR"]) / f"{os.getpid()}-{window}"
        folder.mkdir(parents=True)
        (folder / "__grp__fake_moe_kernel.json").write_text("{}")
        (folder / "fake_moe_kernel.cubin").write_bytes(b"code")
    if is_among("FAKE_RETRACTS", window):
        print("KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_tokens_gained: 64", flush=True)


def is_among(variable, window):
    wanted = os.environ.get(variable, "")
    return wanted == "all" or str(window) in wanted.split(",")


def meet():
    if "FAKE_HEALTH_MEETS" in os.environ:
        place = pathlib.Path(os.environ["FAKE_HEALTH_MEETS"])
        place.mkdir(exist_ok=True)
        (place / str(os.getpid())).touch()
        while len(list(place.iterdir())) < int(os.environ.get("FAKE_HEALTH_GUESTS", "2")):
            time.sleep(0.02)


def is_first_to_stall():
    path = os.environ.get("FAKE_STALL_ONCE")
    try:
        if path:
            open(path, "x").close()
    except FileExistsError:
        return False
    return True


def run_out_of_memory():
    """End as SGLang does when its scheduler hits an exception: a traceback in the log, then the whole server is gone."""
    try:
        if BEHAVIOUR.startswith("gpu_full"):
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")  # noqa: TRY301 - the log is to show a traceback
        resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
        Handler.leaked.append(b"x" * 2**32)
    except (RuntimeError, MemoryError):
        traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
        os._exit(1)


def choose(path):
    """As torch.compile does: time what there is to choose from once, and keep the winner; each process would take another."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"num_warps": os.getpid(), "time_taken_ms": 1}))
    return json.loads(path.read_text())["num_warps"]


def main():
    if BEHAVIOUR == "die":
        print("loading\nRuntimeError: no memory for the weights\nbye", flush=True)
        sys.exit(7)
    if BEHAVIOUR == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if BEHAVIOUR == "child":
        subprocess.Popen([sys.executable, "-c", DEAF])
        time.sleep(0.2)
    if "FAKE_NVML" in os.environ:
        with open(os.environ["FAKE_NVML"] + ".holders", "a") as file:
            file.write(f"{os.getpid()}\n")
    print(os.environ.get("FAKE_LOG", "loading"), flush=True)
    print(os.environ.get("FAKE_SAYS", ""), flush=True)
    if "TORCHINDUCTOR_CACHE_DIR" in os.environ:
        place = pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        print(f"chosen by {choose(place / 'ab' / 'kernel.best_config')}", flush=True)
    time.sleep(float(os.environ.get("FAKE_START_S", "0")))
    while "FAKE_START_AFTER" in os.environ and not pathlib.Path(os.environ["FAKE_START_AFTER"]).exists():
        time.sleep(0.02)
    fake_routing.start()
    port = int(sys.argv[sys.argv.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


main()
