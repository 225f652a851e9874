"""Environments laid over each other with packages of their own, as the arms of a change that pins another: real wheels."""

import subprocess

import pytest

from benchmarks.deps.run import make_engine, make_wheel, offer
from perfgate.bisection.locks import Pin
from perfgate.bisection.packages import install_pins
from perfgate.errors import RunnerError
from perfgate.serving.engine.environments import lay_over


@pytest.fixture
def engine(tmp_path):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    make_wheel(wheels, "alpha", "2", "number = 2\n")
    with offer(wheels):
        yield make_engine(tmp_path / "engine", {"alpha": "number = 1\n", "bravo": "number = 1\n"})


def pin(name, version):
    return Pin(name=name, version=version, line=f"{name}=={version}")


def ask(python, name):
    """What is imported, and the version that is told of it."""
    program = f"import importlib.metadata as m, {name}; print({name}.number, m.version({name!r}))"
    return subprocess.run([python, "-c", program], check=True, capture_output=True, text=True).stdout.split()


def test_install_pins__only_what_is_not_there_and_seen_through_two_layers(engine, tmp_path):
    arm = lay_over(tmp_path / "arm", engine)
    installed = install_pins(arm, [pin("alpha", "2"), pin("bravo", "1")])
    above = lay_over(tmp_path / "above", arm)

    assert [one.name for one in installed] == ["alpha"]
    assert [ask(python, "alpha") for python in (engine, arm, above)] == [["1", "1"], ["2", "2"], ["2", "2"]]
    assert ask(above, "bravo") == ["1", "1"]
    assert install_pins(above, [pin("alpha", "2")]) == ()


def test_install_pins__a_version_that_pip_does_not_find(engine, tmp_path):
    arm = lay_over(tmp_path / "arm", engine)

    with pytest.raises(RunnerError, match="alpha==3"):
        install_pins(arm, [pin("alpha", "3")])
