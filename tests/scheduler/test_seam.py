"""The made-up world around the engine's host parts: channels, clock, prompts, and the instruction that calls valgrind."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from perfgate.scheduler import ask
from perfgate.scheduler.probe import drive, meters, seam


class Empty(BaseException):
    pass


def raise_empty():
    raise Empty


@pytest.fixture
def clock(monkeypatch):
    for name in ("time", "monotonic", "perf_counter"):
        for suffix in ("", "_ns"):
            monkeypatch.setattr(time, name + suffix, getattr(time, name + suffix))
    made = seam.StepClock()
    made.install()
    return made


def test_skip_models__all_but_the_one_that_is_served(tmp_path, monkeypatch):
    models = tmp_path / "sglang" / "srt" / "models"
    models.mkdir(parents=True)
    for name in ("llama", "qwen3_moe", "registry"):
        (models / f"{name}.py").touch()
    monkeypatch.setattr(seam, "find_spec", lambda _: SimpleNamespace(submodule_search_locations=[str(tmp_path / "sglang")]))
    monkeypatch.setenv("SGLANG_DISABLED_MODEL_ARCHS", "")

    seam.skip_models("qwen3_moe")

    assert os.environ["SGLANG_DISABLED_MODEL_ARCHS"] == "llama,registry"


def test_channel__gives_messages_in_their_order_and_then_tells_that_it_is_empty():
    channel = seam.Channel()
    channel.on_empty = raise_empty
    channel.send(b"one")
    channel.send_pyobj({"two": 2}, flags=1)

    assert channel.recv() == b"one"
    assert channel.recv_pyobj() == {"two": 2}
    with pytest.raises(Empty):
        channel.recv()


def test_channel__a_polled_one_is_told_empty_once_a_poll():
    channel, turns = seam.Channel(), []
    channel.is_polled = True

    def fill():
        turns.append(len(channel.queue))
        if len(turns) > 1:
            raise Empty
        channel.send(b"one")

    channel.on_empty = fill

    assert channel.recv() == b"one"  # the first poll asks for more, and gets it
    assert turns == [0]


def test_channel__what_is_sent_is_counted():
    channels = seam.Channels()
    channels.by_address["a"] = seam.Channel()
    channels.by_address["a"].send(b"four")

    assert channels.count_bytes() == 4


def test_awaited_channel__a_waiting_reader_is_woken():
    channel = seam.Channel()
    awaited = seam.AwaitedChannel(channel)

    async def read():
        reader = asyncio.ensure_future(awaited.recv_pyobj())
        await asyncio.sleep(0)
        awaited.wake()  # there is nothing yet
        await awaited.send_pyobj("late")
        awaited.wake()
        return await reader

    assert asyncio.run(read()) == "late"


def test_clock__runs_until_it_is_frozen(clock):
    before = time.monotonic()
    clock.freeze()
    frozen = time.monotonic()

    assert frozen >= before
    assert time.monotonic() == frozen


def test_clock__a_frozen_one_advances_by_what_it_is_told(clock):
    clock.freeze()
    before, before_ns = time.time(), time.perf_counter_ns()

    clock.advance(0.25)

    assert time.time() == before + 0.25
    assert time.perf_counter_ns() - before_ns == pytest.approx(250_000_000, rel=1e-6)


def test_write_prompt__has_so_many_words_and_a_beginning_that_each_third_shares():
    prompts = [drive.write_prompt(number, 48).split() for number in range(7)]

    assert {len(words) for words in prompts} == {48}
    assert prompts[0][:24] == prompts[3][:24] == prompts[6][:24]
    assert prompts[1][:24] != prompts[0][:24]
    assert len({" ".join(words) for words in prompts}) == 7


def test_instruction_meter__without_valgrind_around_it(tmp_path):
    with pytest.raises(OSError, match="does not run under valgrind"):
        meters.InstructionMeter(str(tmp_path / "log"))


STATUS = """\
instrumentation: on
executed-bbs: 72964
events: Ir
threads: 2
current-tid: 1
events-2: 7
events-1: {collected}
frames-1: 1
events-1-1: 157777
"""


class Callgrind(meters.InstructionMeter):
    """Answers in callgrind's place, in its log."""

    def __init__(self, log, counts, status=STATUS):
        self.log, self.counts, self.status = log, iter(counts), status
        log.write_text(status.format(collected=1))
        super().__init__(str(log))

    def _ask(self, request, given=0):
        if request == meters._COMMAND:
            assert meters.ctypes.string_at(given) == b"status internal"
            with self.log.open("a") as file:
                file.write(self.status.format(collected=next(self.counts)))
        return 1


def test_instruction_meter__tells_instructions_a_unit_of_each_part(tmp_path):
    meter = Callgrind(tmp_path / "log", [100, 150, 170, 250, 990])

    meter.open(2)
    for part in ("scheduler", "detokenizer", "scheduler"):
        meter.enter(part)
        meter.leave(part)
    first = meter.close()
    meter.open(10)
    meter.enter("detokenizer")
    meter.leave("detokenizer")

    assert first == {"scheduler": {"instructions": (50 + 80) / 2}, "detokenizer": {"instructions": 10.0}}
    assert meter.close() == {"detokenizer": {"instructions": 74.0}}


def test_instruction_meter__a_callgrind_that_says_something_else(tmp_path):
    with pytest.raises(OSError, match="does not say what it counted"):
        Callgrind(tmp_path / "log", [100], status="1 thread(s) running.\n")


COUNTED = """
import os, sys
sys.path.insert(0, sys.argv[1])
import meters
for arm in range(2):
    if os.fork() == 0:
        meter = meters.InstructionMeter(sys.argv[2])
        meter.open(1)
        for part, turns in (("few", 1_000), ("many", 100_000), ("few", 1_000)):
            meter.enter(part)
            for _ in range(turns): pass
            meter.leave(part)
        told = {part: int(one["instructions"]) for part, one in meter.close().items()}
        os.write(1, f"{told['few']} {told['many']}\\n".encode())
        os._exit(0)
while True:
    try: os.wait()
    except ChildProcessError: break
"""


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_instruction_meter__of_two_forked_processes_under_the_real_callgrind(tmp_path):
    log = tmp_path / "log"
    command = ["valgrind", *ask._CALLGRIND, f"--log-file={log}", sys.executable, "-c", COUNTED, str(ask.PROBE), str(log)]

    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)

    told = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    assert len(told) == 2
    for few, many in told:
        assert 10 * few < many < 60 * few
    assert told[0][1] == pytest.approx(told[1][1], rel=0.01)


def test_time_meter__tells_microseconds_a_unit_of_each_part(monkeypatch):
    times_ns = iter((1_000, 5_000, 10_000, 16_000, 20_000, 21_000))
    monkeypatch.setattr(meters, "now_ns", lambda: next(times_ns))
    meter = meters.TimeMeter()

    meter.open(5)
    for part in ("scheduler", "scheduler", "detokenizer"):
        meter.enter(part)
        meter.leave(part)

    assert meter.close() == {"scheduler": {"cpu_us": 2.0}, "detokenizer": {"cpu_us": 0.2}}
    meter.open(5)
    assert meter.close() == {}
