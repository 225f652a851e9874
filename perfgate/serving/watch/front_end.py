"""The processes that take a server's requests and send its tokens, and how much of a core the thread that does it uses.

Which of a service's processes these are is seen from who holds connections of clients. A holder of the listening socket may
take none: a supervisor that passes it on, or an engine that was forked with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from perfgate.machine.host_load import find_busiest_share
from perfgate.machine.processes import list_connected, list_session, read_thread_time
from perfgate.results.readings import FRONT_END_SHARE

ThreadTimes = Mapping[int, float]
"""Seconds that the main thread of each process has been on a core, by the process' number."""

ByService = Mapping[int, tuple[int, ...]]
"""Processes of each service, by the one that leads them."""


class FrontEnd:
    """The processes of one server in one window. `read_times` is for each tick; `find_holders` costs more, and is not."""

    def __init__(self, ports: Mapping[int, int]) -> None:
        """Take in the processes that are there; `ports` are the services' ports by the processes that lead them."""
        self._ports = ports
        self._processes = _list_processes(ports)

    def read_times(self) -> ThreadTimes:
        """The time of each process that was known at the last look; one that ended is left out."""
        pids = chain.from_iterable(self._processes.values())
        return {pid: used for pid in pids if (used := read_thread_time(pid)) is not None}

    def find_holders(self) -> ByService:
        """Look who holds connections of clients at this moment, and take in processes that have begun since the last look."""
        self._processes = _list_processes(self._ports)
        return {leader: list_connected(pids, self._ports[leader]) for leader, pids in self._processes.items()}

    def list_serving(self, looks: Sequence[ByService]) -> tuple[int, ...]:
        """Those that held connections at any look; of a service that was seen with none its leader."""
        seen = ({*chain.from_iterable(look[leader] for look in looks)} or {leader} for leader in self._ports)
        return tuple(sorted(chain.from_iterable(seen)))


def summarize_front_end(serving: Iterable[int], times: Sequence[tuple[float, ThreadTimes]]) -> dict[str, float]:
    """The share of a core that the busiest of those that serve used."""
    told = (find_busiest_share([(at_s, used.get(pid)) for at_s, used in times]) for pid in serving)
    shares = [share for share in told if share is not None]
    # Two clocks that were read one after the other may tell a little more than a whole core.
    return {FRONT_END_SHARE: round(min(1.0, max(shares)), 6)} if shares else {}


def _list_processes(leaders: Iterable[int]) -> ByService:
    return {leader: tuple(list_session(leader)) for leader in leaders}
