"""One server under test: each of its services started in a session of its own, ready when all of them are, stopped with nothing
left.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx

from perfgate.errors import ServerError
from perfgate.serving.engine.conversation import open_http
from perfgate.serving.engine.inheritance import inherit
from perfgate.serving.engine.launch import HOST, RANKS_PORT, SECOND_PORT, Launch, Service, write_url
from perfgate.serving.engine.reaper import Reaper
from perfgate.serving.experts.expert_recorder import VARIABLE as EXPERTS

PORTS = range(20_000, 22_500)
POLL_S = 0.25
_HOLDERS: list[socket.socket] = []
"""Of the ports that servers of this process were given: a real engine takes half a minute until it binds its own."""

END_S = 2.0
"""A server whose connections broke needs a moment to be seen to have ended."""
FREEZE_TIMEOUT_S = 30.0
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where the engine leaves its segments


def find_free_port() -> int:
    """Find a port that is free now, and keep it for this process: a taken port makes the engine hang, not fail.

    SGLang derives a second port 10,000 above the first and refuses one beyond 65,535; its ranks meet as far below. All must be
    free, and all ranges stay below the one from which the kernel serves outgoing connections. Raise ServerError when the range
    is used up.
    """
    for port in random.sample(PORTS, k=200):
        if all(map(is_free, (port + SECOND_PORT, port - RANKS_PORT))) and (holder := hold_port(port)):
            _HOLDERS.append(holder)
            return port
    raise ServerError(f"no free port between {PORTS.start} and {PORTS.stop}: something on this machine holds them")


def hold_port(port: int) -> socket.socket | None:
    """A socket that keeps every other gate from the port, beside which the engine can listen; None if the port is not free.

    It is bound alone, and shares its address only then: engines, too, set SO_REUSEADDR, and it does not listen.
    """
    holder = socket.socket()
    try:
        holder.bind((HOST, port))
    except OSError:
        holder.close()
        return None
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return holder


def is_free(port: int) -> bool:
    """Whether no process listens on `port` or holds it."""
    if holder := hold_port(port):
        holder.close()
    return holder is not None


@dataclass(slots=True, kw_only=True)
class _Running:
    """A service that was started, and whether it has reported ready."""

    service: Service
    process: subprocess.Popen[Any]
    log: Path
    is_ready: bool = field(default=False)


class Server:
    """The running services of one arm. Use `with`: whatever happens inside, their processes end.

    Clients send requests to `port`, that of the first service; `log` is the log of the last, an engine that decodes.
    """

    def __init__(self, launch: Launch, log: Path, reaper: Reaper) -> None:
        """Describe the server; nothing starts before `start`."""
        self.launch = launch
        self.log = log
        self.port = 0
        self.ready_s = 0.0
        self._reaper = reaper
        self._running: list[_Running] = []
        self._begun = 0.0
        self._segments: set[Path] = set()

    @property
    def url(self) -> str:
        """The address that clients use."""
        return write_url(self.port)

    @property
    def age_s(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._begun

    @property
    def engine_urls(self) -> tuple[str, ...]:
        """The addresses of its engines, the one that decodes last; that of its clients where there is one service."""
        return tuple(one.service.url for one in self._engines) or (self.url,)

    @property
    def metrics_urls(self) -> tuple[str, ...]:
        """The addresses of its engines' metrics; none where the engine has none."""
        path = self.launch.engine.metrics_path
        return () if path is None else tuple(url + path for url in self.engine_urls)

    @property
    def log_bytes(self) -> dict[Path, int]:
        """How many bytes each of its engines' logs has; what they write from now on comes behind them."""
        logs = [one.log for one in self._engines] or [self.log]
        return {log: log.stat().st_size if log.exists() else 0 for log in logs}

    @property
    def _engines(self) -> tuple[_Running, ...]:
        return tuple(one for one in self._running if one.service.is_engine)

    @property
    def expert_folder(self) -> Path:
        """Where the recorder of a server that perfgate's plug-in runs in writes which experts were chosen."""
        return self.log.absolute().with_suffix(".experts")

    @property
    def ports(self) -> dict[int, int]:
        """The ports of its services by the processes that lead their sessions, the first one's first; none unless it lives."""
        return {one.process.pid: one.service.port for one in self._running}

    @property
    def leaders(self) -> tuple[int, ...]:
        """The processes that lead the sessions of its services, the first service's first; none unless it lives."""
        return tuple(self.ports)

    def __enter__(self) -> Self:
        """Start the process; readiness is waited for separately, so that two servers can load side by side."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it, on every path."""
        self.stop()

    def start(self) -> None:
        """Launch every service with its output in a log file. Raise ServerError if a program is not there."""
        ports = [find_free_port() for _ in range(self.launch.ports)]
        self.port = ports[0]
        self._segments = self._list_segments()
        self._begun = time.monotonic()
        self.expert_folder.mkdir(parents=True, exist_ok=True)
        own = {EXPERTS: str(self.expert_folder)}
        # NCCL tells its transports then, once, while it connects; whoever asked it for more, or less, gets that.
        told = {"NCCL_DEBUG": "INFO"} if self.launch.layout.server_gpus > 1 else {}
        environment = {**told, **inherit(), **self.launch.engine.env, **own, **self.launch.env}
        for service in self.launch.list_services(ports):
            log = self.log if service.port == ports[-1] else self.log.with_suffix(f".{service.role}.log")
            try:
                process = self._reaper.start(service.argv, environment, log)
            except OSError as error:
                raise ServerError(f"{service.argv[0]}: cannot be started ({error.strerror}); check the arm's Python") from None
            self._running.append(_Running(service=service, process=process, log=log))

    def wait_ready(
        self, on_wait: Callable[[float], None] = lambda _: None, is_given_up: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until every service says that it serves, the first by a token that it generated, or return once `is_given_up`.

        `on_wait` is told the seconds since the start. Raise ServerError if one dies first or takes too long.
        """
        with open_http(10.0) as client:
            while not is_given_up():
                elapsed = self.age_s
                self.raise_if_dead()
                if all(self._is_ready(client, one) for one in self._running):
                    self.ready_s = elapsed
                    return
                if elapsed > self.launch.ready_timeout_s:
                    limit = f"{self.launch.ready_timeout_s:.0f} s"
                    raise ServerError(
                        f"server not ready after {limit}{self._tell()}; raise server.ready_timeout_s or read the log"
                    )
                on_wait(elapsed)
                time.sleep(POLL_S)

    def _is_ready(self, client: httpx.Client, one: _Running) -> bool:
        """Ask a service whether it is ready, unless it has reported so."""
        check, address = one.service.ready, one.service.url + one.service.ready.path
        if not one.is_ready:
            with contextlib.suppress(httpx.HTTPError):
                answer = client.get(address) if check.content is None else client.post(address, json=dict(check.content))
                one.is_ready = answer.status_code == httpx.codes.OK
        return one.is_ready

    def raise_if_dead(self, wait_s: float = 0.0) -> None:
        """Raise ServerError with the log's telling lines if a service has ended, or ends within `wait_s`."""
        for one in self._running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.process.wait(wait_s)
            if (code := one.process.poll()) is not None:
                raise ServerError(f"{one.service.role} ended by itself with exit code {code}{self._tell(one.log)}")

    def flush_cache(self, timeout_s: float = 30.0) -> None:
        """Empty the prefix cache; it refuses while requests run, so ask until it agrees. Raise ServerError if it never does."""
        if self.launch.engine.flush_path is None:
            return
        deadline = time.monotonic() + timeout_s
        left = [url + self.launch.engine.flush_path for url in self.engine_urls]
        has_answered = False
        with open_http(10.0) as client:
            while left and time.monotonic() < deadline:
                self.raise_if_dead()
                with contextlib.suppress(httpx.HTTPError):
                    if client.post(left[0]).status_code == httpx.codes.OK:
                        del left[0]
                        continue
                    has_answered = True
                time.sleep(POLL_S)
        if not left:
            return
        if not has_answered:
            raise ServerError(f"server gave no answer for {timeout_s:.0f} s when its cache was to be emptied{self._tell()}")
        raise ServerError(f"cache not flushed within {timeout_s:.0f} s: requests are still running{self._tell()}")

    def freeze_gc(self) -> bool:
        """Have a warm server's garbage collector leave alone what lives already; say whether the server offers that.

        Raise ServerError when it dies or gives no answer.
        """
        path = self.launch.engine.freeze_path
        if path is None:
            return False
        try:
            with open_http(FREEZE_TIMEOUT_S) as client:
                codes = [client.post(url + path).status_code for url in self.engine_urls]
        except httpx.HTTPError as error:
            self.raise_if_dead()
            raise ServerError(
                f"server gave no answer when its garbage collector was to be frozen ({type(error).__name__}){self._tell()}"
            ) from None
        return all(code == httpx.codes.OK for code in codes)

    def stop(self) -> None:
        """End all services, the last one first, and prove it. Raise ServerError naming processes that survive SIGKILL."""
        if not self._running:
            return
        survivors = []
        while self._running:
            survivors += self._reaper.end(self._running.pop().process, self.launch.stop_timeout_s)
        for segment in self._list_segments() - self._segments:
            segment.unlink(missing_ok=True)
        shutil.rmtree(self.expert_folder, ignore_errors=True)
        if survivors:
            raise ServerError(f"processes {survivors} survived SIGKILL; the machine needs a restart")

    def _list_segments(self) -> set[Path]:
        names = self.launch.engine.segments
        return set() if names is None else set(SHARED_MEMORY.glob(names))

    def _tell(self, log: Path | None = None) -> str:
        log = log or self.log
        lines = read_telling_lines(log, self.launch.engine.fault_words)
        return f" (log {log}" + (f", it says: {' | '.join(lines)})" if lines else ")")


def wait_all_ready(servers: Sequence[Server], on_wait: Callable[[Server, float], None]) -> None:
    """Wait until each of `servers` has generated a token, each asked on its own, so that none waits for another's answer.

    An engine may take a second over the answer that says it is ready: one after the other, the second server would seem to need
    that second longer. `on_wait` is told, by the caller's thread, a server that is not ready and the seconds since its start.
    Raise ServerError if one dies first or takes too long; the others are then no longer waited for.
    """
    given_up = threading.Event()
    pool = ThreadPoolExecutor(max_workers=len(servers), thread_name_prefix="ready")
    try:
        # Within the block: a signal may end the run while a thread starts, and those that run already are to hear of it.
        waits = {pool.submit(server.wait_ready, is_given_up=given_up.is_set): server for server in servers}
        while waits:
            ended, _ = wait(waits, timeout=POLL_S, return_when=FIRST_COMPLETED)
            for one in ended:
                del waits[one]
                one.result()
            for server in waits.values():
                on_wait(server, server.age_s)
    finally:
        given_up.set()
        # A question under way ends with its server, at the latest when its time is up.
        pool.shutdown(wait=False)


def read_lines(log: Path, known: int) -> list[str]:
    """The lines of a log behind its first `known` bytes; none without a log."""
    if not log.exists():
        return []
    with log.open("rb") as file:
        file.seek(known)
        return file.read().decode("utf-8", "replace").splitlines()


def read_telling_lines(log: Path, words: tuple[str, ...]) -> list[str]:
    """Pick the last lines of a log that name a fault, shortened; the last line at all where none does."""
    try:
        lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    except OSError:
        return []
    telling = [line for line in lines[-400:] if any(word in line for word in words)]
    return [line[:200] for line in (telling or lines[-1:])[-3:]]
