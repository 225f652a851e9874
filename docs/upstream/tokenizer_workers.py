"""How often a tokenizer worker of SGLang is killed while it starts. Needs SGLang and a small model, and no GPU.

`python tokenizer_workers.py SECONDS --model-path MODEL --device cpu`, with any other options of a server, serves with two
workers, and looks on for so long from the moment at which the supervisor starts them. Exit code 1 if one was killed.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from importlib.metadata import version

import psutil

WORKERS = "2"
SUPERVISED, KILLED = re.compile(r"Started parent process \[\d+\]"), re.compile(r"Child process \[(\d+)\] died")
UP = re.compile(r"Started server process \[(\d+)\]")


def list_killed(lines: Iterable[tuple[float, str]]) -> list[tuple[float, int]]:
    """When each worker was killed, in seconds since the supervisor started the first ones, and its number."""
    begun, found = 0.0, []
    for at_s, line in lines:
        if SUPERVISED.search(line):
            begun = at_s
        if match := KILLED.search(line):
            found.append((at_s - begun, int(match[1])))
    return found


def watch(server: subprocess.Popen[str], seconds: float) -> list[tuple[float, str]]:
    """The server's lines with the moments at which they came, until the time is over; print what becomes of workers."""
    lines = []
    end = threading.Timer(seconds, os.killpg, (server.pid, signal.SIGKILL))
    for line in server.stdout or ():
        lines.append((time.monotonic(), line))
        if SUPERVISED.search(line):
            end.start()
        if match := UP.search(line):
            took_s = time.time() - psutil.Process(int(match[1])).create_time()
            print(f"worker {match[1]} is up {took_s:.1f} s after it was begun", flush=True)
        if KILLED.search(line):
            print(line.strip(), flush=True)
    end.cancel()
    return lines


def main() -> None:
    """Serve, look on, and end all processes of the server."""
    seconds, *options = sys.argv[1:]
    command = [sys.executable, "-m", "sglang.launch_server", "--tokenizer-worker-num", WORKERS, *options]
    print(f"SGLang {version('sglang')}, uvicorn {version('uvicorn')}, Python {sys.version.split()[0]}, {os.cpu_count()} cores")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True
    ) as server:
        try:
            lines = watch(server, float(seconds))
        finally:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGKILL)
    killed = list_killed(lines)
    if not any(SUPERVISED.search(line) for _, line in lines):
        raise SystemExit("".join(line for _, line in lines[-20:]) + "the server ended before it started workers")
    print(f"{len(killed)} workers were killed in {seconds} s, at {[round(at_s, 1) for at_s, _ in killed]} s")
    raise SystemExit(1 if killed else 0)


if __name__ == "__main__":
    main()
