"""A background reading that answers, fails, breaks or never comes back; each must be heard of."""

import threading

import pytest

from perfgate.errors import TelemetryError
from perfgate.serving.watch import gpu_processes as module
from perfgate.serving.watch.gpu_processes import Ticker
from perfgate.serving.watch.telemetry import MAX_LOST_SHARE, Telemetry


def run_until(ticker, event):
    ticker.start()
    assert event.wait(60)
    ticker.stop()


def test_ticker__keeps_every_answer():
    count, enough = iter(range(1000)), threading.Event()

    def read():
        value = next(count)
        if value == 3:
            enough.set()
        return value

    ticker = Ticker(read, period_s=0.001)
    run_until(ticker, enough)
    values = [value for _, value in ticker.answers]
    times = [at_s for at_s, _ in ticker.answers]

    assert values == list(range(len(values)))
    assert len(values) >= 4
    assert times == sorted(times)
    assert ticker.failures == []


def test_ticker__stopped_at_once_still_owes_one():
    ticker = Ticker(lambda: 7, period_s=60.0)
    ticker.start()
    ticker.stop()

    assert [value for _, value in ticker.answers] == [7]


def test_ticker__stopped_before_its_delay_has_none():
    ticker = Ticker(lambda: 7, period_s=60.0, delay_s=60.0)
    ticker.start()
    ticker.stop()

    assert ticker.answers == []


def test_ticker__failures_are_kept_and_it_goes_on():
    calls, enough = iter(range(1000)), threading.Event()

    def read():
        number = next(calls)
        if number == 4:
            enough.set()
        if number % 2:
            raise TelemetryError(f"lost {number}")
        return number

    ticker = Ticker(read, period_s=0.001)
    run_until(ticker, enough)

    assert ticker.failures[:2] == ["lost 1", "lost 3"]
    assert [value for _, value in ticker.answers][:3] == [0, 2, 4]


def test_stop__raises_what_broke_the_reading():
    ticker = Ticker(lambda: 1 / 0, period_s=0.001)
    ticker.start()

    with pytest.raises(ZeroDivisionError):
        ticker.stop()


def test_stop__a_reading_that_never_comes_back_is_a_failure(monkeypatch):
    monkeypatch.setattr(module, "STOP_TIMEOUT_S", 0.05)
    asked, release = threading.Event(), threading.Event()

    def read():
        asked.set()
        release.wait(60)

    ticker = Ticker(read, period_s=1.0)
    run_until(ticker, asked)
    found = list(ticker.failures)
    release.set()
    ticker._thread.join(60)

    assert found == ["no answer within 0 s"]


@pytest.mark.parametrize(("lost", "seen", "is_lost"), [(0, 30, False), (1, 30, False), (2, 30, True), (1, 0, True)])
def test_find_loss__a_single_hiccup_voids_nothing(tmp_path, lost, seen, is_lost):
    ticker = Ticker(lambda: None, period_s=1.0)
    ticker.answers = [(0.0, None)] * seen
    ticker.failures = ["NVML failed: GPU is lost"] * lost
    found = Telemetry(tmp_path, gpu=object())._find_loss(ticker)

    assert (found is not None) == is_lost
    assert is_lost == (lost / (lost + seen) > MAX_LOST_SHARE)
    assert Telemetry(tmp_path, gpu=None)._find_loss(ticker) is None
