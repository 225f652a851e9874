"""Who takes a server's requests: real supervisors that pass a listening socket on, children that take connections or none."""

import contextlib
import json
import socket
import subprocess
import sys
import time

import pytest

from perfgate.machine.host_load import find_busiest_share
from perfgate.machine.processes import end_session
from perfgate.serving.watch.front_end import FrontEnd, summarize_front_end

# `busy` and `calm` take one connection, then compute or sleep; `heir` holds the listening socket, takes none and computes.
SUPERVISOR = """
import json, os, signal, socket, sys, time
listener = socket.create_server(("127.0.0.1", 0))
def live(role):
    taken = None if role == "heir" else listener.accept()
    while True:
        time.sleep(0.01) if role == "calm" else None
pids = {}
for role in sys.argv[1:]:
    pids[role] = os.fork()
    if pids[role] == 0:
        live(role)
print(json.dumps([listener.getsockname()[1], pids]), flush=True)
signal.pause()
"""


class Watched:
    """A server of this kind, with as many clients as children that take one, watched for a little more than a second."""

    def __init__(self, leader, port, pids, clients):
        self.leader, self.pids, self.clients = leader, pids, clients
        self.front_end = FrontEnd({leader: port})
        self.look = self.front_end.find_holders()
        ends = time.monotonic() + 60
        while len(self.look[leader]) < len(clients) and time.monotonic() < ends:
            time.sleep(0.02)
            self.look = self.front_end.find_holders()
        begun = time.monotonic()
        self.times = []
        for pause_s in (0.0, 0.6, 0.6):
            time.sleep(pause_s)
            self.times.append((time.monotonic() - begun, self.front_end.read_times()))

    def find_share(self, pid):
        return round(min(1.0, find_busiest_share([(at_s, used[pid]) for at_s, used in self.times])), 6)

    def summarize(self, *looks):
        return summarize_front_end(self.front_end.list_serving(looks), self.times)["front_end_core_share"]


@pytest.fixture
def watch():
    with contextlib.ExitStack() as stack:

        def begin(*roles, count):
            started = subprocess.Popen(
                [sys.executable, "-c", SUPERVISOR, *roles], stdout=subprocess.PIPE, start_new_session=True
            )
            stack.enter_context(started)
            stack.callback(end_session, started.pid, 0.0)
            port, pids = json.loads(started.stdout.readline())
            clients = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(count)]
            return Watched(started.pid, port, pids, clients)

        yield begin


def test_summarize_front_end__a_supervisor_passes_its_socket_to_two_children(watch):
    server = watch("busy", "calm", count=2)

    assert set(server.look[server.leader]) == {server.pids["busy"], server.pids["calm"]}
    assert server.summarize(server.look) == server.find_share(server.pids["busy"])
    assert server.summarize(server.look) > server.find_share(server.leader)
    # Each was seen with a connection at one look alone.
    apart = ({server.leader: (server.pids[role],)} for role in ("busy", "calm"))
    assert server.summarize(*apart) == server.summarize(server.look)


def test_summarize_front_end__a_child_that_inherited_the_socket_and_takes_no_connection(watch):
    server = watch("calm", "heir", count=1)

    assert server.look[server.leader] == (server.pids["calm"],)
    assert server.summarize(server.look) == server.find_share(server.pids["calm"]) < server.find_share(server.pids["heir"])


def test_summarize_front_end__no_connection_was_seen(watch):
    server = watch("calm", "heir", count=0)

    assert server.look == {server.leader: ()}
    assert server.summarize() == server.summarize(server.look) == server.find_share(server.leader)


def test_summarize_front_end__a_window_of_less_than_a_second(watch):
    server = watch("calm", count=1)

    assert summarize_front_end([server.pids["calm"]], server.times[:2]) == {}


def test_read_times__a_server_that_ended(watch):
    server = watch("calm", count=1)
    end_session(server.leader, 0.0)

    assert server.front_end.find_holders() == {server.leader: ()}
    assert server.front_end.read_times() == {}


def test_find_holders__takes_in_a_process_that_has_begun_since():
    with subprocess.Popen(
        [sys.executable, "-c", "import os, signal; input(); os.fork(); print('forked', flush=True); signal.pause()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as started:
        front_end = FrontEnd({started.pid: 1})
        before = set(front_end.read_times())
        started.stdin.write(b"\n")
        started.stdin.flush()
        started.stdout.readline()
        front_end.find_holders()
        after = set(front_end.read_times())
        end_session(started.pid, 0.0)

    assert before == {started.pid}
    assert len(after) == 2
