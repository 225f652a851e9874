import pytest

from perfgate.errors import InterruptedRunError
from perfgate.serving.engine.reaper import Interruption


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
