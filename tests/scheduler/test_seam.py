"""The made-up world around the engine's host parts: channels, clock, prompts, and the instruction that calls valgrind."""

import asyncio
import os
import time
from types import SimpleNamespace

import pytest

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


def test_instruction_meter__without_valgrind_around_it():
    with pytest.raises(OSError, match="does not run under valgrind"):
        meters.InstructionMeter(0)


def test_time_meter__tells_microseconds_a_unit(monkeypatch):
    times_ns = iter((1_000, 5_000, 10_000, 16_000))
    monkeypatch.setattr(meters, "now_ns", lambda: next(times_ns))
    meter = meters.TimeMeter()

    for _ in range(2):
        meter.enter()
        meter.leave()

    assert meter.close("scheduler decode_step", 5) == {"cpu_us": 2.0}
    assert meter.close("scheduler decode_step", 5) == {"cpu_us": 0.0}
