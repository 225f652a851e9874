"""Real processes that die, hang, ignore signals and leave children; none of them may outlive its server."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from perfgate.engines.sglang import SGLANG
from perfgate.errors import InterruptedRunError, ServerError
from perfgate.machine.processes import end_session, list_session
from perfgate.serving.engine.launch import HOST, RANKS_PORT, SECOND_PORT, Launch
from perfgate.serving.engine.reaper import Reaper
from perfgate.serving.engine.server import (
    Server,
    find_free_port,
    is_free,
    read_telling_lines,
    wait_all_ready,
)
from perfgate.serving.engine.startup import read_info
from perfgate.serving.watch.engine_metrics import scrape
from tests.fakes.requests import ENGINE_MODULE, FAKE_PATH

GATE = """
import subprocess, sys, time
from perfgate.serving.engine.reaper import Reaper
reaper = Reaper()
server = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)
reaper.add(server.pid)
print(server.pid, flush=True)
time.sleep(600)
"""
# Killed after it started a process and before it could say so.
UNTOLD = GATE.replace("reaper.add(server.pid)\n", "").replace(", start_new", ", env={**os.environ, **reaper.mark}, start_new")
UNTOLD = "import os" + UNTOLD


@pytest.fixture
def reaper():
    reaper = Reaper()
    yield reaper
    reaper.close()


APART = ("--disaggregation-transfer-backend", "nixl")


def build_server(
    tmp_path, reaper, behaviour, *, python=sys.executable, args=(), ready_timeout_s=120.0, stop_timeout_s=0.5, **env
):
    env = {**FAKE_PATH, "FAKE_ENGINE": behaviour, **env}
    engine = replace(SGLANG, name="fake", package="fake", module=ENGINE_MODULE, args=(), env=env)
    launch = Launch(
        engine=engine,
        python=python,
        model=tmp_path,
        args=args,
        env={},
        ready_timeout_s=ready_timeout_s,
        stop_timeout_s=stop_timeout_s,
    )
    return Server(launch, tmp_path / "server.log", reaper)


def get_pid(server):
    return server.leaders[0]


def test_stop__removes_the_shared_memory_that_its_server_left(tmp_path, reaper, monkeypatch):
    monkeypatch.setattr("perfgate.serving.engine.server.SHARED_MEMORY", tmp_path)
    (tmp_path / "sglang_loads_other.shm").touch()

    with build_server(tmp_path, reaper, "ok"):
        (tmp_path / "sglang_loads_own.shm").touch()
        (tmp_path / "psm_foreign").touch()

    assert {path.name for path in tmp_path.glob("*_*")} == {"sglang_loads_other.shm", "psm_foreign"}


def test_server__starts_flushes_and_stops(tmp_path, reaper):
    with build_server(tmp_path, reaper, "ok") as server:
        pid = get_pid(server)
        server.wait_ready()
        server.flush_cache()

        assert pid in list_session(pid)

    assert list_session(pid) == []


def test_wait_ready__process_dies_first(tmp_path, reaper):
    with (
        build_server(tmp_path, reaper, "die") as server,
        pytest.raises(ServerError, match=r"exit code 7.*server\.log.*RuntimeError: no memory for the weights"),
    ):
        server.wait_ready()


def test_wait_ready__never_ready_leaves_no_process(tmp_path, reaper):
    with build_server(tmp_path, reaper, "never_ready", ready_timeout_s=1.0) as server:
        pid = get_pid(server)
        with pytest.raises(ServerError, match="not ready after 1 s"):
            server.wait_ready()

    assert list_session(pid) == []


def test_wait_all_ready__a_slow_answer_of_one_is_no_start_time_of_the_other(tmp_path, reaper):
    # Each answers once both were asked: asked one after the other, the first never would.
    slow = {"FAKE_HEALTH_S": "1", "FAKE_HEALTH_MEETS": str(tmp_path / "asked")}
    with build_server(tmp_path, reaper, "ok", **slow) as first, build_server(tmp_path, reaper, "ok", **slow) as second:
        told = []
        wait_all_ready([first, second], lambda server, waited: told.append((server.port, waited)))

        assert 0 < first.ready_s < first.age_s - 1
        assert 0 < second.ready_s < second.age_s - 1

    assert {port for port, _ in told} == {first.port, second.port}


def test_wait_all_ready__each_has_a_time_of_its_own(tmp_path, reaper):
    asked = tmp_path / "asked"
    late, early = {"FAKE_START_AFTER": str(asked)}, {"FAKE_HEALTH_MEETS": str(asked), "FAKE_HEALTH_GUESTS": "1"}
    with build_server(tmp_path, reaper, "ok", **late) as first, build_server(tmp_path, reaper, "ok", **early) as second:
        wait_all_ready([first, second], lambda *_: None)

        assert 0 < second.ready_s < first.ready_s


def test_wait_all_ready__a_signal_while_a_thread_starts_ends_those_that_run(tmp_path, reaper, monkeypatch):
    # Nothing but `is_given_up` ends the first thread: it would ask until the server's limit, and keep the interpreter alive.
    submit = ThreadPoolExecutor.submit
    begun = []

    def submit_once(pool, function, **arguments):
        if begun:
            raise InterruptedRunError("stopped by SIGTERM")
        begun.append(function)
        return submit(pool, function, **arguments)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit_once)
    with build_server(tmp_path, reaper, "never_ready", ready_timeout_s=60.0) as server:
        with pytest.raises(InterruptedRunError):
            wait_all_ready([server, server], lambda *_: None)
        deadline = time.monotonic() + 20
        while (left := find_waits()) and time.monotonic() < deadline:
            time.sleep(0.05)

        assert left == []


def test_wait_all_ready__one_that_dies_ends_the_wait_for_the_other(tmp_path, reaper):
    with build_server(tmp_path, reaper, "never_ready") as first, build_server(tmp_path, reaper, "die") as second:
        with pytest.raises(ServerError, match=r"exit code 7.*RuntimeError: no memory for the weights"):
            wait_all_ready([first, second], lambda *_: None)
        deadline = time.monotonic() + 10
        while (left := find_waits()) and time.monotonic() < deadline:
            time.sleep(0.05)

        assert left == []


def find_waits():
    return [thread for thread in threading.enumerate() if thread.name.startswith("ready")]


@pytest.mark.parametrize("behaviour", ["deaf", "child"])
def test_stop__ends_what_ignores_sigterm(tmp_path, reaper, behaviour):
    with build_server(tmp_path, reaper, behaviour) as server:
        pid = get_pid(server)
        server.wait_ready()
        members = len(list_session(pid))

    assert members == (2 if behaviour == "child" else 1)
    assert list_session(pid) == []


def test_flush_cache__requests_still_running(tmp_path, reaper):
    with build_server(tmp_path, reaper, "busy") as server:
        server.wait_ready()

        with pytest.raises(ServerError, match="cache not flushed"):
            server.flush_cache(timeout_s=0.6)


def test_flush_cache__no_server_answers(tmp_path, reaper):
    server = build_server(tmp_path, reaper, "ok")
    server.port = find_free_port()

    with pytest.raises(ServerError, match="server gave no answer for 0 s when its cache was to be emptied"):
        server.flush_cache(timeout_s=0.3)


def test_flush_cache__server_dies(tmp_path, reaper):
    with build_server(tmp_path, reaper, "die_later") as server:
        server.wait_ready()

        with pytest.raises(ServerError, match="scheduler hit an exception"):
            server.flush_cache(timeout_s=300)


def test_freeze_gc__where_it_is_offered_and_where_not(tmp_path, reaper):
    for behaviour, offered in (("ok", True), ("no_freeze", False)):
        with build_server(tmp_path, reaper, behaviour) as server:
            server.wait_ready()

            assert server.freeze_gc() is offered


def test_freeze_gc__server_dies(tmp_path, reaper):
    with build_server(tmp_path, reaper, "die_later") as server:
        server.wait_ready()

        with pytest.raises(ServerError, match=r"scheduler hit an exception|no answer when its garbage collector"):
            server.freeze_gc()


def test_start__python_is_missing(tmp_path, reaper):
    with pytest.raises(ServerError, match="/no/such/python: cannot be started"):
        build_server(tmp_path, reaper, "ok", python="/no/such/python").start()


@pytest.mark.parametrize("code", [GATE, UNTOLD], ids=["told", "not yet told"])
def test_reaper__ends_sessions_when_the_gate_is_killed(code):
    """A gate killed by SIGKILL runs no clean-up of its own: the closed pipe is the only sign it leaves."""
    gate = subprocess.Popen(
        [
            sys.executable,
            "-c",
            code,
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    with gate:
        pid = int(gate.stdout.readline())
        running = list_session(pid)
        os.kill(gate.pid, signal.SIGKILL)
        deadline = time.monotonic() + 20
        while list_session(pid) and time.monotonic() < deadline:
            time.sleep(0.05)

    assert running == [pid]
    assert list_session(pid) == []


def test_reaper__spares_sessions_that_ended_well(reaper):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    reaper.add(process.pid)
    reaper.drop(process.pid)
    reaper.close()

    assert list_session(process.pid) == [process.pid]

    end_session(process.pid, 1.0)
    process.wait()


@pytest.fixture
def balancer(monkeypatch):
    """The fake engine stands for SGLang's balancer, too: both listen at their port and say that they are healthy."""
    monkeypatch.setattr("perfgate.serving.engine.launch.BALANCER", ENGINE_MODULE)


def test_list_services__prefill_and_decode_apart(tmp_path, reaper):
    launch = build_server(tmp_path, reaper, "ok", args=(*APART, "--tp", "2", "--base-gpu-id", "1")).launch
    front, prefill, decode = launch.list_services((20_001, 20_002, 20_003))

    assert [(one.role, one.port, one.is_engine) for one in (front, prefill, decode)] == [
        ("balancer", 20_001, False),
        ("prefill", 20_002, True),
        ("decode", 20_003, True),
    ]
    assert front.argv[-8:] == (
        *("20001", "--mini-lb", "--pd-disaggregation", "--prefill", "http://127.0.0.1:20002", "30001"),
        *("--decode", "http://127.0.0.1:20003"),
    )
    meeting = ("--disaggregation-bootstrap-port", "30001")
    assert prefill.argv == (*launch.argv(20_002), "--disaggregation-mode", "prefill", *meeting)
    assert decode.argv == (*launch.argv(20_003), "--disaggregation-mode", "decode", *meeting, "--base-gpu-id", "3")


@pytest.mark.parametrize(("gpus", "inherited", "level"), [(1, None, None), (2, None, "INFO"), (2, "WARN", "WARN")])
def test_server__over_several_gpus_has_nccl_tell_its_transports(tmp_path, reaper, gpus, inherited, level):
    said = {} if inherited is None else {"NCCL_DEBUG": inherited}
    with build_server(tmp_path, reaper, "ok", args=("--tp-size", str(gpus)), **said) as server:
        # Before its program is there, a process has no variables.
        server.wait_ready()
        [pid] = server.leaders

        assert psutil.Process(pid).environ().get("NCCL_DEBUG") == level


@pytest.mark.usefixtures("balancer")
def test_server__of_several_services_starts_is_asked_and_stops_as_one(tmp_path, reaper):
    with build_server(tmp_path, reaper, "ok", args=APART) as server:
        server.wait_ready()
        server.flush_cache()
        found, pids = scrape(*server.metrics_urls), server.leaders

        assert server.freeze_gc()
        assert len(pids) == 3
        assert len({server.url, *server.engine_urls}) == 3
        assert found.gauges["running_requests"] == 2 * scrape(server.metrics_urls[0]).gauges["running_requests"] > 0
        assert [log.name for log in server.log_bytes] == ["server.prefill.log", "server.log"]
        assert {read_info(server)["pid"], read_info(server)["prefill.pid"]} == set(map(str, pids[1:]))

    assert [list_session(pid) for pid in pids] == [[], [], []]
    assert (tmp_path / "server.balancer.log").exists()


@pytest.mark.usefixtures("balancer")
@pytest.mark.parametrize(("number", "role"), [(0, "balancer"), (1, "prefill"), (2, "decode")])
def test_server__of_several_services_one_dies(tmp_path, reaper, number, role):
    with build_server(tmp_path, reaper, "ok", args=APART) as server:
        server.wait_ready()
        pids = server.leaders
        os.kill(pids[number], signal.SIGKILL)

        with pytest.raises(ServerError, match=f"^{role} ended by itself with exit code -9"):
            server.raise_if_dead(10.0)

    assert [list_session(pid) for pid in pids] == [[], [], []]


def test_find_free_port__leaves_room_for_the_second_port_and_that_of_the_ranks():
    ports = [find_free_port() for _ in range(20)]
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])

    assert all(is_free(port + SECOND_PORT) and port + SECOND_PORT < lowest for port in ports)
    assert all(is_free(port - RANKS_PORT) and port - RANKS_PORT > 1024 for port in ports)


def test_find_free_port__no_other_gate_is_given_it_and_an_engine_can_listen(monkeypatch):
    """An engine that was just started has not bound its port yet, which another gate must not take for free."""
    port, other = find_free_port(), find_free_port()
    asked = f"from perfgate.serving.engine.server import is_free; print(is_free({port}))"
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    monkeypatch.setattr("perfgate.serving.engine.server.random.sample", lambda *_args, **_options: [port, other])

    assert told.stdout == "False\n"
    with pytest.raises(ServerError, match="no free port"):
        find_free_port()
    with socket.create_server((HOST, port)), socket.create_connection((HOST, port), timeout=5):
        assert not is_free(port)


def test_is_free__another_process_listens():
    with socket.socket() as holder:
        holder.bind((HOST, 0))
        holder.listen()

        assert not is_free(holder.getsockname()[1])


def test_find_free_port__none_left(monkeypatch):
    monkeypatch.setattr("perfgate.serving.engine.server.hold_port", lambda _: None)

    with pytest.raises(ServerError, match="no free port"):
        find_free_port()


def test_read_telling_lines__names_the_fault(tmp_path):
    log = tmp_path / "log"
    log.write_text("start\nValueError: bad shape\nlater\n\nend\n")

    assert read_telling_lines(log, ("Error",)) == ["ValueError: bad shape"]


def test_read_telling_lines__nothing_tells(tmp_path):
    log = tmp_path / "log"
    log.write_text("start\nend\n")

    assert read_telling_lines(log, ("Error",)) == ["end"]
    assert read_telling_lines(tmp_path / "absent", ("Error",)) == []


def test_reaper__holds_the_lock_of_the_folder(tmp_path):
    with (tmp_path / "lock").open("w") as lock:
        reaper = Reaper(lock.fileno())
        held = {str(path.readlink()) for path in Path(f"/proc/{reaper._process.pid}/fd").iterdir()}
        reaper.close()

    assert str(tmp_path / "lock") in held
