"""Arms are driven in processes of their own; what they and callgrind leave is read, or refused in one line."""

import json
import sys
import time
from dataclasses import replace

import pytest

from perfgate.errors import EngineError, InputError
from perfgate.resolution.arms import Source
from perfgate.scheduler import ask
from perfgate.serving.engine.server import PORTS


def make_source(folder, network=""):
    """An arm whose package is there and is not the engine."""
    package = folder / "sglang" / "srt" / "utils"
    package.mkdir(parents=True)
    for place in (package, package.parent, package.parent.parent):
        (place / "__init__.py").touch()
    (package / "network.py").write_text(network)
    return Source(name="tree", python=sys.executable, folder=folder)


def prepare(folder):
    for name in ("home", "stand_ins"):
        (folder / name).mkdir()
    return folder


def test_drive__a_tree_that_lacks_the_place_of_the_channels(tmp_path):
    source = make_source(tmp_path / "tree")

    with pytest.raises(EngineError, match=r"tree, driven .*: LookupError: sglang\.srt\.utils\.network has no get_zmq_socket"):
        ask.drive([source], prepare(tmp_path), ("cpu",))


def test_drive__a_python_that_dies_without_an_answer(tmp_path):
    source = make_source(tmp_path / "tree", network="import os\nos._exit(0)\n")

    with pytest.raises(EngineError, match=r"tree, driven .*: its process died"):
        ask.drive([source], prepare(tmp_path), ("cpu",))


def test_drive__an_engine_that_ends_itself_says_why(tmp_path):
    source = make_source(tmp_path / "tree", network="raise SystemExit('no such argument')\n")

    with pytest.raises(EngineError, match=r"tree, driven .*: SystemExit: no such argument"):
        ask.drive([source], prepare(tmp_path), ("cpu",))


class Listener:
    """Stands in Python's place: keeps what an arm is asked, and answers nothing."""

    def __init__(self):
        self.asked = []

    def call(self, _argv, *, name, content):
        self.asked.append(json.loads(content))
        raise EngineError(name)


def test_drive__one_arm_of_two_that_dies(tmp_path):
    """The other one's answer does not stand for both."""
    sound = make_source(tmp_path / "tree")
    dead = replace(make_source(tmp_path / "dead", network="import os\nos._exit(0)\n"), name="dead")

    with pytest.raises(EngineError, match=r"^dead, driven .*: its process died"):
        ask.drive([dead, sound], prepare(tmp_path), ("cpu",))


def test_drive__a_python_that_is_none(tmp_path):
    source = replace(make_source(tmp_path / "tree"), python="true")

    with pytest.raises(EngineError, match="its answer cannot be read"):
        ask.drive([source], prepare(tmp_path), ("cpu",))


@pytest.mark.parametrize(("pythons", "sizes"), [("aa", [2]), ("ab", [1, 1])])
def test_group_arms__those_of_one_python_share_a_process(pythons, sizes):
    sources = [Source(name=str(number), python=python) for number, python in enumerate(pythons)]

    groups = ask.group_arms(sources)

    assert [len(group) for group in groups] == sizes
    assert [source for group in groups for source in group] == sources


def test_drive__each_arm_and_run_has_a_port_for_its_rank_from_which_no_connection_is_served(tmp_path, monkeypatch):
    listener = Listener()
    monkeypatch.setattr(ask, "_PYTHON", listener)
    source, folder = make_source(tmp_path / "tree"), prepare(tmp_path)
    for _ in range(2):
        with pytest.raises(EngineError):
            ask.drive([source, source], folder, ("cpu",))

    arms = [arm["args"] for request in listener.asked for arm in request["arms"]]
    ports = [int(args[args.index("--nccl-port") + 1]) for args in arms]
    assert len(set(ports)) == 4
    assert all(port in PORTS for port in ports)


def test_find_valgrind__without_one(monkeypatch):
    monkeypatch.setattr(ask.shutil, "which", lambda _: None)
    monkeypatch.setattr(ask.platform, "machine", lambda: "x86_64")

    with pytest.raises(InputError, match="apt-get install valgrind"):
        ask.find_valgrind()


def test_find_valgrind__on_another_machine(monkeypatch):
    monkeypatch.setattr(ask.platform, "machine", lambda: "aarch64")

    with pytest.raises(InputError, match=r"aarch64: .* on x86-64 alone"):
        ask.find_valgrind()


def test_gather__runs_by_key_each_with_its_windows_in_order():
    source = Source(name="tree", python=sys.executable)
    windows = [
        ask.WindowLine(part="scheduler", unit="request", values={"copies": value, "cpu_us": 1.0}) for value in (2.0, 3.0)
    ]

    work = ask.gather(source, "0.5.23", [windows[:1]], [windows, windows[::-1]])

    assert work.runs["scheduler.request.copies"] == ((2.0,), (2.0, 3.0), (3.0, 2.0))
    assert (work.name, work.version) == ("tree", "0.5.23")


@pytest.mark.parametrize(("head", "told"), [([2.0], ((2.0,),)), ([3.0, 3.0], ((3.0,), (3.0,))), ([3.0, 2.0], ((3.0,), (2.0,)))])
def test_measure_arms__counts_that_differ_are_taken_twice(head, told, monkeypatch):
    copies = {"base": [2.0] * len(told), "head": head}

    def drive(sources, _folder, _meters):
        values = [{"copies": copies[source.name].pop(0), "cpu_us": time.monotonic()} for source in sources]
        lines = [ask.WindowLine(part="scheduler", unit="request", values=one) for one in values]
        return [ask.DriveAnswer(sglang="0.5.23", readings=(line,)) for line in lines]

    monkeypatch.setattr(ask, "drive", drive)
    monkeypatch.setattr(ask, "find_valgrind", lambda: "valgrind")
    monkeypatch.setattr(ask, "count_instructions", lambda sources, *_: [[] for _ in sources])

    works = ask.measure_arms(*(Source(name=name, python=sys.executable) for name in copies))

    assert [work.runs["scheduler.request.copies"] for work in works] == [((2.0,),) * len(told), told]
