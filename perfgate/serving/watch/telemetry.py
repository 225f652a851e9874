"""What happened to the machine while each window ran: watched at 5 Hz, reduced to numbers, kept raw.

A thread of the gate does it, which has nothing else to do while the load generator, a process of its own, drives the server.
Counters are read before and after a window. A GPU that could be watched and stops answering voids the session; a machine that
has none is watched without.
"""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import orjson

from perfgate.engines.arguments import TRANSFER
from perfgate.errors import InputError, ServerError, TelemetryError
from perfgate.machine.host_load import HostTimes, compare_times, read_run_queue, read_times
from perfgate.machine.nvml import DeviceSample, GpuMonitor, count_devices, find_uuids, lacks_gpu
from perfgate.machine.processes import measure_memory, read_session
from perfgate.results.footprint import IDLE_GPU_MEMORY, IDLE_SERVER_MEMORY, SERVER_MEMORY
from perfgate.results.machine_samples import TELEMETRY_FILE
from perfgate.results.readings import FOREIGN_PROCESSES, name_on_gpu
from perfgate.scenario.schema import Scenario
from perfgate.serving.engine.launch import Launch
from perfgate.serving.engine.server import Server
from perfgate.serving.watch.engine_metrics import Scrape, read_batches, scrape, summarize_engine
from perfgate.serving.watch.front_end import FrontEnd, ThreadTimes, summarize_front_end
from perfgate.serving.watch.gpu_processes import GpuProcesses, Ticker, summarize_gpu
from perfgate.serving.watch.other_work import count_work, list_cached, list_caches, name_added
from perfgate.storage.journal import cut_torn_member
from perfgate.storage.rounding import format_count

PERIOD_S = 0.2
# The engine answers in the loop that streams tokens, so it is asked seldom, and never in the first second.
SCRAPE_PERIOD_S, SCRAPE_DELAY_S = 5.0, 1.5
MAX_LOST_SHARE = 0.05
FREE_TIMEOUT_S = 30.0
FREE_SLACK_BYTES = 256 * 2**20
_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """One moment: the GPUs, none where nothing watches them, the session's own processes on them, and the run queue.

    `main_threads_s` are the seconds that the main thread of each process of the window's server has been on a core.
    """

    devices: tuple[DeviceSample, ...]
    own: tuple[int, ...]
    foreign: int
    run_queue: float | None
    main_threads_s: ThreadTimes

    def dump(self, serving: Collection[int]) -> dict[str, Any]:
        """What is stored of it: of the threads those of the processes that served, since a server may have dozens."""
        threads = {str(pid): used for pid, used in self.main_threads_s.items() if pid in serving}
        return {**asdict(self), "main_threads_s": threads}


@dataclass(slots=True, kw_only=True)
class Watch:
    """A window being watched; when it ends, `readings` is filled, and `failure` says why they cannot be relied on.

    `compiled` names what a compiler added to the server's caches meanwhile.
    """

    readings: dict[str, float] = field(default_factory=dict)
    compiled: tuple[str, ...] = ()
    failure: str | None = None

    def require_complete(self) -> None:
        """Raise TelemetryError when the GPU stopped answering: what disturbed such a window is unknown."""
        if self.failure is not None:
            raise TelemetryError(self.failure)


class Telemetry:
    """Watches one session. `gpu` is None where no GPU can be watched; raw samples go below `folder`."""

    def __init__(self, folder: Path, gpu: GpuMonitor | None) -> None:
        """Watch from now on; nothing is read before the first server starts.

        Half of a window's samples, which a gate that was killed left, are taken away: those behind it could not be read.
        """
        self._path = folder / TELEMETRY_FILE
        cut_torn_member(self._path)
        self._gpu = gpu
        self._gpu_processes = GpuProcesses()
        self._servers: list[Server] = []
        self._idle_bytes: tuple[float, ...] = ()

    def __enter__(self) -> Self:
        """Nothing to begin: NVML is open already."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let NVML go."""
        if self._gpu is not None:
            self._gpu.close()

    @contextmanager
    def guard(self, server: Server) -> Iterator[None]:
        """Stand around the life of a server: know the GPU before the first one, prove its memory free after the last.

        Raise ServerError naming the memory that is still held.
        """
        if not self._servers:
            self._note_idle()
        self._servers.append(server)
        try:
            yield
        finally:
            self._servers.remove(server)
        if not self._servers:
            self._require_free()

    def note_ready(self, server: Server) -> dict[str, float]:
        """A server has come up: the processes that came with it are its own. Returns what memory is in use while it is idle."""
        idle = {IDLE_SERVER_MEMORY: sum(map(measure_memory, server.leaders)) / _MIB}
        if self._gpu is not None:
            devices = self._gpu.read()
            self._gpu_processes.note_ready(_list_pids(devices))
            idle[IDLE_GPU_MEMORY] = max(_list_used(devices), default=0.0) / _MIB
        return {name: round(used, 1) for name, used in idle.items()}

    @contextmanager
    def watch(self, server: Server, place: Mapping[str, object]) -> Iterator[Watch]:
        """Watch the machine while the body runs, then reduce and keep what was seen; `place` names the window."""
        urls = server.metrics_urls
        watch = Watch()
        # Where the engine has only the cores that its model needs too, it is left alone while it serves.
        live = urls if server.launch.engine.uses_gpu else ()
        gauges = Ticker(lambda: scrape(*live), SCRAPE_PERIOD_S, SCRAPE_DELAY_S)
        front_end = FrontEnd(server.ports)
        looks = Ticker(front_end.find_holders, SCRAPE_PERIOD_S, SCRAPE_DELAY_S)
        ticks = Ticker(lambda: self._tick(front_end), PERIOD_S)
        known = server.log_bytes
        cached = list_cached(list_caches(server.launch))
        before = (read_times(os.getpid()), scrape(*urls))
        ticks.start()
        gauges.start()
        looks.start()
        try:
            yield watch
        finally:
            looks.stop()
            gauges.stop()
            ticks.stop()
        after = (read_times(os.getpid()), scrape(*urls))
        batches = read_batches(server.log, known[server.log], server.launch.engine.batch)
        watch.readings |= self._summarize(ticks, gauges, before, after, batches)
        serving = front_end.list_serving([look for _, look in looks.answers])
        watch.readings |= summarize_front_end(serving, [(at_s, tick.main_threads_s) for at_s, tick in ticks.answers])
        watch.compiled = name_added(cached, list_cached(list_caches(server.launch)))
        for name, count in count_work(server, known, watch.compiled).items():
            watch.readings[name] = max(watch.readings.get(name, 0.0), count)
        if server.leaders:
            watch.readings[SERVER_MEMORY] = float(sum(map(measure_memory, server.leaders)))
        kept = [{"at_s": round(at_s, 4), **tick.dump(serving)} for at_s, tick in ticks.answers]
        self._keep({**place, "batches": batches, "ticks": kept, "lost": ticks.failures}, gauges, before[1], after[1])
        watch.failure = self._find_loss(ticks)

    def _tick(self, front_end: FrontEnd) -> Tick:
        devices = self._read_used()
        pids = _list_pids(devices)
        leaders = {leader for one in self._servers for leader in one.leaders}
        own = tuple(pid for pid in pids if read_session(pid) in leaders)
        foreign = self._gpu_processes.count_foreign(pids, own)
        return Tick(
            devices=devices,
            own=own,
            foreign=foreign,
            run_queue=read_run_queue(),
            main_threads_s=front_end.read_times(),
        )

    def _read_used(self) -> tuple[DeviceSample, ...]:
        """The GPUs of the servers that live: in a matrix others take turns, and an idle GPU is no slow one."""
        if self._gpu is None:
            return ()
        used = {device for server in self._servers for device in server.launch.devices}
        return tuple(sample for name, sample in zip(self._gpu.names, self._gpu.read(), strict=True) if name in used)

    def _summarize(
        self,
        ticks: Ticker[Tick],
        gauges: Ticker[Scrape | None],
        before: tuple[HostTimes | None, Scrape | None],
        after: tuple[HostTimes | None, Scrape | None],
        batches: Sequence[Mapping[str, float]],
    ) -> dict[str, float]:
        seen = [tick for _, tick in ticks.answers]
        readings = compare_times(before[0], after[0])
        queues = sorted(tick.run_queue for tick in seen if tick.run_queue is not None)
        if queues:
            readings["run_queue"] = queues[len(queues) // 2]
        if before[1] is not None or after[1] is not None:
            during = [one for _, one in gauges.answers if one is not None]
            readings |= summarize_engine(before[1], during, after[1], batches)
        if self._gpu is not None:
            readings |= summarize_gpu([tick.devices for tick in seen])
            readings |= self._summarize_tenants(seen)
            readings |= {"gpu_samples": float(len(seen)), "gpu_samples_lost": float(len(ticks.failures))}
        return {name: round(value, 6) for name, value in readings.items()}

    def _summarize_tenants(self, seen: Sequence[Tick]) -> dict[str, float]:
        told = [tick for tick in seen if any(device.pids is not None for device in tick.devices)]
        if not told:
            return {}
        visible = any(self._gpu_processes.is_visible(_list_pids(tick.devices), tick.own) for tick in told)
        return {
            FOREIGN_PROCESSES: float(max(tick.foreign for tick in told)),
            "gpu_processes_visible": float(visible),
            **self._count_on_each(told),
        }

    def _count_on_each(self, told: Sequence[Tick]) -> dict[str, float]:
        """The foreign processes that NVML shows on each of several GPUs."""
        count = len(told[0].devices)
        return {
            name_on_gpu(FOREIGN_PROCESSES, number): float(
                max(len(self._gpu_processes.list_foreign(tick.devices[number].pids or (), tick.own)) for tick in told)
            )
            for number in range(count if count > 1 else 0)
        }

    def _find_loss(self, ticks: Ticker[Tick]) -> str | None:
        lost, total = len(ticks.failures), len(ticks.failures) + len(ticks.answers)
        if self._gpu is None or lost <= MAX_LOST_SHARE * total:
            return None
        return (
            f"telemetry is incomplete: {lost} of {total} samples of the GPU were lost, so it is unknown what disturbed "
            f"the window ({ticks.failures[-1]})"
        )

    def _keep(
        self,
        place: Mapping[str, object],
        gauges: Ticker[Scrape | None],
        before: Scrape | None,
        after: Scrape | None,
    ) -> None:
        """Append the window's samples as one gzip member, so that a crash loses no other window's."""
        line: dict[str, Any] = {
            **place,
            "engine": [{"at_s": round(at_s, 4), **asdict(one)} for at_s, one in gauges.answers if one is not None],
            "engine_before": asdict(before) if before else None,
            "engine_after": asdict(after) if after else None,
        }
        with self._path.open("ab") as file:
            file.write(gzip.compress(orjson.dumps(line) + b"\n", compresslevel=6, mtime=0))
            file.flush()
            os.fsync(file.fileno())

    def _note_idle(self) -> None:
        if self._gpu is not None:
            devices = self._gpu.read()
            self._idle_bytes = _list_used(devices)
            self._gpu_processes.note_idle(_list_pids(devices), max(self._idle_bytes, default=0.0))

    def _require_free(self) -> None:
        if self._gpu is None:
            return
        deadline = time.monotonic() + FREE_TIMEOUT_S
        while (left := self._measure_left()) > FREE_SLACK_BYTES:
            if time.monotonic() > deadline:
                raise ServerError(
                    f"{left / _MIB:.0f} MiB of GPU memory that were free before the servers started are still held "
                    f"{FREE_TIMEOUT_S:.0f} s after they ended; see nvidia-smi for who holds them"
                )
            time.sleep(PERIOD_S)

    def _measure_left(self) -> float:
        now = _list_used(self._gpu.read()) if self._gpu is not None else ()
        return max((used - before for used, before in zip(now, self._idle_bytes, strict=True)), default=0.0)


def open_monitor(launches: Iterable[Launch]) -> GpuMonitor | None:
    """Open NVML for the devices of all arms; None where no engine uses a GPU or nothing can watch it.

    Raise TelemetryError where a driver is there and does not answer.
    """
    wanted = tuple(dict.fromkeys(device for launch in launches for device in launch.devices))
    return GpuMonitor.open(wanted) if wanted else None


def require_gpu(scenario: Scenario) -> None:
    """Refuse a scenario of a GPU on a machine that has none, before anything is made or started."""
    if scenario.server.gpus and lacks_gpu():
        raise InputError(
            f"gpu: scenario {scenario.name} needs {format_count(scenario.server.gpus, 'GPU')} (server.engine = "
            f'"{scenario.server.engine}"), and this machine has none that a driver shows (`perfgate doctor`): '
            "measure on a machine with a GPU, or take a scenario of the CPU, such as cpu-moe (`perfgate scenarios`)"
        )


def find_measured(launches: Iterable[Launch]) -> tuple[str, ...] | None:
    """The GPUs, by UUID, that a session of `launches` has to have for itself; None means the whole machine.

    A CPU engine's cores are all of one machine, and so is what cannot be told apart. Raise InputError where an arm takes more
    GPUs than there are, or several that are named by UUID.
    """
    arms = tuple(launches)
    if not all(launch.engine.uses_gpu for launch in arms):
        return None
    for launch in arms:
        _require_gpus(launch)
    return find_uuids(tuple(dict.fromkeys(device for arm in arms for device in arm.devices)))


def _require_gpus(launch: Launch) -> None:
    layout, there = launch.layout, count_devices(launch.env)
    wanted = layout.first_gpu + layout.gpus
    if there is not None and wanted > there:
        raise InputError(
            f"gpus: the server's arguments spread the model over {format_count(layout.gpus, 'GPU')} from number "
            f"{layout.first_gpu} on (server.args: --tp-size, --pp-size, --dp-size, {TRANSFER}, --base-gpu-id), "
            f"and there are {there}; "
            f"take a machine with {wanted}, a longer CUDA_VISIBLE_DEVICES, or another scenario (`perfgate scenarios`)"
        )
    named = [device for device in launch.devices if not device.isdecimal()]
    if layout.server_gpus > 1 and named:
        # SGLang's own all-reduce falls away with a line in the log, vLLM's ends the server: docs/upstream/uuid_all_reduce.py.
        raise InputError(
            f"CUDA_VISIBLE_DEVICES: names {named[0]}, and engines that spread a model over several GPUs read numbers there, "
            "or lose their all-reduce; name the GPUs by their numbers (`nvidia-smi -L`)"
        )


def describe_monitor(monitor: GpuMonitor | None) -> str:
    """Say what of the GPU is watched, for the event log."""
    if monitor is None:
        return "no GPU is watched"
    missing = f"; it cannot tell {', '.join(sorted(monitor.unsupported))}" if monitor.unsupported else ""
    names = f": {', '.join(monitor.read_uuids())}" if monitor.count > 1 else ""
    return f"NVML watches {format_count(monitor.count, 'GPU')}{names}{missing}"


def _list_pids(devices: Sequence[DeviceSample]) -> tuple[int, ...]:
    return tuple(sorted({pid for device in devices for pid in device.pids or ()}))


def _list_used(devices: Sequence[DeviceSample]) -> tuple[float, ...]:
    return tuple(device.values.get("memory_used_bytes", 0.0) for device in devices)
