"""The installed engine's own scheduler, driven without a forward pass."""

import sys

from benchmarks.museum.exhibits import load_exhibit
from benchmarks.museum.host import write_arm
from benchmarks.scheduler.run import SEEDS, find_engine, plant
from perfgate.resolution.arms import find_source
from perfgate.scheduler.ask import drive, gather, prepare

LOAD = {"batch": 4, "steps": 8, "windows": 1, "requests": 6, "output": 4, "words": 12}


def measure(folder, *arms):
    sources = [find_source(str(arm), sys.executable, option="--base") for arm in arms]
    told = drive(sources, prepare(folder), ("cpu", "events"), load=LOAD)
    return [gather(source, one.sglang, [one.readings]) for source, one in zip(sources, told, strict=True)]


def test_drive__the_engine_serves_all_requests_and_one_more_wait_a_step_is_counted(tmp_path):
    (tmp_path / "seeded").mkdir()
    exhibit = load_exhibit("token-counts")
    patched = write_arm(tmp_path / "patched", find_engine(), exhibit, exhibit.exhibit.reenactment.broken)

    base, seeded, plugged_in = measure(tmp_path, sys.executable, plant(SEEDS["sync"], tmp_path / "seeded"), patched)

    key = "scheduler.decode_step.host_reads"
    assert seeded.find_value(key) == base.find_value(key) + 1
    same = {name for name in base.runs if "cpu_us" not in name and "host_reads" not in name}
    assert {name: base.runs[name] for name in same} == {name: seeded.runs[name] for name in same}
    assert base.find_value("scheduler.decode_step.cpu_us") > 0
    assert base.find_value("scheduler.round.steps") >= 2 * 4  # six requests of four tokens over four clients: two rounds
    # A plug-in of an arm is served with, as the engine's launcher does it: this one counts each token of each answer anew.
    key = "scheduler.decode_step.operators"
    assert plugged_in.find_value(key) > base.find_value(key) + 1
