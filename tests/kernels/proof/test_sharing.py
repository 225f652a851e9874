"""Cases of an exam shared among real processes: as many as there are, they tell what one would, and none is left behind."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from perfgate_moe.errors import MoeInputError
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.data import quantise_blocks, quantise_micro
from perfgate_moe.proof import sharing
from perfgate_moe.proof.sharing import (
    BYTES_PER_PROCESS,
    DeviceMemory,
    Examinee,
    SharedExam,
    count_case_bytes,
    count_free_bytes,
    count_processes,
)

ROOT = Path(__file__).parents[3]
LAYER = """
import os, signal, sys
from perfgate_moe.errors import NotApplicableError
from perfgate_moe.layer.reference import staged

def layer(problem):
    print("half a line", end="", flush=True)
    sys.stdin.read()  # no case is read by the layer
    if problem.tokens == 7:
        os.kill(os.getpid(), signal.SIGSEGV)
    if problem.tokens == 9:
        raise NotApplicableError("nine are too many")
    return staged(problem) * (problem.tokens != 11)
"""
DIES = "import sys\nraise SystemExit('the engine does not load')\n"
CASES = [LayerCase(M=count) for count in (3, 7, 9, 11, 13, 5)]
TIMES = {"asked_s", "answered_s"}


def ask(folder, processes, memory=1 << 40, layer=LAYER):
    """The answers of a layer in a module of `folder`, without their times."""
    (folder / "peer.py").write_text(layer)
    env = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}
    examinee = Examinee(implementation="peer:layer", python=sys.executable, env=env, device="cpu")
    with SharedExam(examinee, CASES, processes, DeviceMemory(memory)) as answers:
        return [{key: value for key, value in answer.items() if key not in TIMES} for answer in answers]


def test_shared_exam__two_processes_tell_what_one_tells(tmp_path):
    alone = ask(tmp_path, 1)

    assert ask(tmp_path, 2) == alone
    assert [answer["case"] for answer in alone] == [str(case) for case in CASES]
    assert alone[1]["problems"] == ["its process ended with -11: half a line"]
    assert alone[2]["not_covered"] == "nine are too many"
    assert [bool(answer.get("problems")) for answer in alone] == [False, True, False, True, False, False]


def test_shared_exam__is_not_asked_on_however_many_processes_broke(tmp_path, monkeypatch):
    monkeypatch.setattr(sharing, "MAX_BROKEN", 2)
    answers = ask(tmp_path, 3, layer=DIES)

    told = [problem for answer in answers[:2] for problem in answer.get("problems")]
    assert [(one[:26], "SystemExit (the engine does not load)" in one) for one in told] == [
        ("its process ended with 1: ", True)
    ] * 2
    assert {answer.get("not_covered") for answer in answers[2:]} == {"not asked: 2 processes had broken by then"}


FULL = """
import pathlib, sys, torch

examiner = sys.modules["__main__"]
prepare = examiner.prepare

def prepare_in_a_crowd(case, device):
    posed = pathlib.Path(__file__).with_name(f"posed-{case.M}")
    if case.M == 13 or (case.M == 3 and not posed.exists()):
        posed.touch()
        raise torch.OutOfMemoryError("CUDA out of memory.\\nTried to allocate")
    return prepare(case, device)

examiner.prepare = prepare_in_a_crowd
"""


def test_shared_exam__a_case_without_memory_is_posed_once_more(tmp_path):
    answers = ask(tmp_path, 2, layer=FULL + LAYER)

    assert answers[0]["problems"] == []
    assert [answer["case"] for answer in answers if "unposed" in answer] == [str(CASES[4])]
    assert answers[4]["problems"] == ["its tensors cannot be made: CUDA out of memory."]
    assert answers[5]["problems"] == []


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_check_command__leaves_no_process_behind(tmp_path, end):
    """Interrupted, it ends its processes, whatever they do; killed, it leaves them without a question, and they end."""
    (tmp_path / "peer.py").write_text(
        "import os, pathlib, time\n"
        "def layer(problem):\n"
        f"    pathlib.Path({str(tmp_path)!r}, f'pid-{{os.getpid()}}').touch()\n"
        f"    time.sleep({600 if end == signal.SIGINT else 1})\n"
    )
    cases = [f"--case={case}" for case in CASES]
    command = [sys.executable, "-m", "perfgate", "kernels", "check", "--impl=peer:layer", "--processes=2", *cases]
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wait_for(lambda: len(list(tmp_path.glob("pid-*"))) == 2)
    process.send_signal(end)
    process.communicate(timeout=120)

    assert process.returncode != 0
    wait_for(lambda: not any(is_alive(int(path.name.removeprefix("pid-"))) for path in tmp_path.glob("pid-*")))


def wait_for(condition):
    for _ in range(1200):
        if condition():
            return
        threading.Event().wait(0.1)
    raise AssertionError("it did not come true within two minutes")


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_device_memory__a_large_case_waits_for_the_one_before_it():
    memory, held = DeviceMemory(10), threading.Event()

    def hold_all():
        with memory.hold(99):
            held.set()

    waiter = threading.Thread(target=hold_all)
    with memory.hold(7):
        waiter.start()
        assert not held.wait(0.2)
    waiter.join(timeout=10)

    assert held.is_set()


def test_count_case_bytes__of_a_real_layer_is_what_it_holds():
    large = LayerCase(E=128, k=4, H=2880, I=2880, dtype="bfloat16")
    layer = large.E * large.H * large.I
    held, compared, drawn = 2 * 3 * 2 * layer, 2 * 2 * 2 * layer, (4 + 2) * 2 * layer

    assert count_case_bytes(large) >= max(held + compared, drawn)


class LargestTensor(TorchDispatchMode):
    """The bytes of the largest tensor that anything makes within the block."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        self.size = max([self.size, *(one.nbytes for one in tree_leaves(made) if isinstance(one, torch.Tensor))])
        return made


@pytest.mark.parametrize("quantise", [quantise_blocks, quantise_micro])
def test_quantise__takes_no_more_at_once_than_the_weight(quantise):
    weight = torch.randn(8, 256, 256).to(torch.bfloat16)

    with LargestTensor() as largest:
        quantise(weight, torch.Generator().manual_seed(1))

    assert 0 < largest.size <= weight.nbytes


def test_count_free_bytes__of_this_machine():
    assert 0 < count_free_bytes("cpu") < 1 << 50


@pytest.mark.parametrize("device", ["bad", "cuda:99"])
def test_count_free_bytes__of_a_device_that_is_not_here(device):
    with pytest.raises(MoeInputError, match=f"--device {device}: torch sees none here"):
        count_free_bytes(device)


@pytest.mark.parametrize(
    ("cores", "free", "asked", "expected"),
    [
        (16, 80 << 30, (174, 1), 4),
        (16, 80 << 30, (174, 2), 4),
        (6, 80 << 30, (174, 2), 3),
        (2, 80 << 30, (174, 2), 1),
        (16, 80 << 30, (40, 1), 2),
        (16, 80 << 30, (1, 1), 1),
        (16, 3 * BYTES_PER_PROCESS + count_case_bytes(CASES[0]), (174, 1), 3),
        (16, 0, (174, 1), 1),
    ],
)
def test_count_processes__by_cores_memory_and_cases_of_each_side(monkeypatch, cores, free, asked, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    cases, sides = asked

    assert count_processes([CASES[0]] * cases, free, sides) == expected
