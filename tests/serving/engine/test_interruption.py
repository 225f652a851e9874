import signal
from contextlib import suppress

import pytest

from perfgate.errors import EvidenceError, InterruptedRunError
from perfgate.serving.engine.reaper import INTERRUPTION, Interruption
from perfgate.serving.measure import raise_on_signals


def test_interrupt__at_once():
    with pytest.raises(InterruptedRunError):
        Interruption().interrupt(InterruptedRunError("now"))


def test_defer__waits_for_the_outermost_block_and_raises_once():
    interruption, done = Interruption(), []

    def work():
        with interruption.defer():
            with interruption.defer():
                interruption.interrupt(InterruptedRunError("later"))
                done.append("inner")
            done.append("outer")

    with pytest.raises(InterruptedRunError, match="later"):
        work()

    assert done == ["inner", "outer"]
    with interruption.defer():
        done.append("again")
    assert done[-1] == "again"


def test_raise_on_signals__an_interruption_that_compiled_code_lost_is_told_all_the_same():
    """A run that was stopped within pydantic once said that its own folder was damaged."""

    def lose():
        with suppress(InterruptedRunError):
            signal.raise_signal(signal.SIGTERM)
        raise EvidenceError("the folder was damaged")

    with pytest.raises(InterruptedRunError, match="stopped by SIGTERM") as caught, raise_on_signals():
        lose()

    assert str(caught.value.__cause__) == "the folder was damaged"


def test_raise_on_signals__without_a_signal_an_error_stays_what_it_is():
    with pytest.raises(EvidenceError, match="damaged"), raise_on_signals():
        raise EvidenceError("the folder was damaged")


def test_check__raises_what_was_lost_until_the_run_has_ended():
    """A run that was stopped once waited two minutes for its load generator, and called its session void."""

    def lose():
        with suppress(InterruptedRunError):
            signal.raise_signal(signal.SIGINT)
        INTERRUPTION.check()

    INTERRUPTION.check()
    with pytest.raises(InterruptedRunError, match="stopped by SIGINT"), raise_on_signals():
        lose()

    INTERRUPTION.check()
