"""Both arms of a pull request, built and examined in their own environments: real trees, real processes, real answers."""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("triton", reason="the kernels need triton: install the extra cpu-engine or gpu")

from perfgate.cli.moe import kernel_work
from perfgate.cli.moe.kernels import command
from perfgate.results.records import load_proof
from perfgate.verdict.validity.kernel_proof import check_kernels
from perfgate_moe.build.checkout import Checkout
from perfgate_moe.errors import TimingError
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.proof import proving, sharing, turns
from perfgate_moe.proof.proving import ProofRequest, Side, bring_wheels, build_sides, examine_sides
from perfgate_moe.proof.turns import ROUNDS, TurnsRequest, time_sides
from perfgate_moe.proof.values import TIMED_NAMES, Build
from perfgate_moe.timing.shapes import SHAPES

# Found and not imported: that takes five seconds of each worker.
SGLANG = find_spec("sglang")
pytestmark = pytest.mark.skipif(SGLANG is None, reason="there is no SGLang to build: run `perfgate engine install`")

RIGHT = "from perfgate_moe.layer.reference import staged as layer\n"
WRONG = """
from perfgate_moe.layer.reference import staged

def layer(problem):
    answer = staged(problem)
    return answer * 0 if problem.tokens == 7 else answer
"""
DIES = """
import os
from perfgate_moe.layer.reference import staged

def layer(problem):
    print("half a line", end="", flush=True)
    if problem.tokens == 7:
        os.kill(os.getpid(), 11)
    return staged(problem)
"""
HANGS = DIES.replace("os.kill(os.getpid(), 11)", "__import__('time').sleep(600)")
REFUSES = """
from perfgate_moe.errors import NotApplicableError
from perfgate_moe.layer.reference import staged

def layer(problem):
    if problem.tokens == 7:
        raise NotApplicableError("seven tokens\\nare too many")
    return staged(problem)
"""
CASES = [LayerCase(M=count) for count in (3, 7, 9)]
SMALL = "E=8,k=4,H=128,I=128,dtype=bfloat16"


def quiet(_):
    pass


def make_side(folder, layer, arm="candidate"):
    """A working tree with the installed SGLang and a layer of its own."""
    (folder / "python").mkdir(parents=True)
    (folder / "python" / "sglang").symlink_to(Path(SGLANG.origin).parent)
    (folder / "python" / "peer.py").write_text(layer)
    return Side(arm=arm, checkout=Checkout(folder=folder, python=sys.executable))


def examine(side, cases=CASES, processes=1):
    """What one side makes of the cases, on the CPU."""
    request = ProofRequest(layers=(), arch=90, implementations=(), cases=cases, device="cpu", processes=processes)
    (exam,) = examine_sides([side], "peer:layer", request, quiet)
    return exam


def test_examine_sides__a_right_layer(tmp_path):
    exam = examine(make_side(tmp_path, RIGHT))

    assert (exam.sound, exam.wrong, exam.left_out) == (3, (), ())
    assert 0 < exam.worst < 1


@pytest.mark.parametrize(
    ("layer", "words"), [(WRONG, "relative error"), (DIES, "its process ended with -11"), (HANGS, "it hangs")]
)
def test_examine_sides__one_wrong_case_spoils_no_other(tmp_path, monkeypatch, layer, words):
    if layer == HANGS:
        monkeypatch.setattr(sharing, "ANSWER_TIMEOUT_S", 10.0)
    exam = examine(make_side(tmp_path, layer))

    assert exam.sound == 2
    assert [one.name for one in exam.wrong] == [str(CASES[1])]
    assert words in exam.wrong[0].problem


def test_examine_sides__a_device_that_a_case_broke_costs_no_other_case(tmp_path):
    """As after an illegal access on a GPU: the case is wrong, and another process answers the rest."""
    broken = WRONG + "\nimport sys\nsys.modules['__main__'].is_broken = lambda _: True\n"
    exam = examine(make_side(tmp_path, broken))

    assert (exam.sound, [one.name for one in exam.wrong]) == (2, [str(CASES[1])])


def test_examine_sides__what_was_not_asked_is_not_called_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr(sharing, "MAX_BROKEN", 1)
    exam = examine(make_side(tmp_path, DIES))

    assert (exam.sound, [one.name for one in exam.wrong]) == (1, [str(CASES[1])])
    assert [(one.name, one.problem) for one in exam.left_out] == [(str(CASES[2]), "not asked: 1 processes had broken by then")]


def test_examine_sides__says_what_is_not_covered_in_one_line(tmp_path):
    exam = examine(make_side(tmp_path, REFUSES))

    assert exam.sound == 2
    assert [(one.name, one.problem) for one in exam.left_out] == [(str(CASES[1]), "seven tokens?are too many")]


def test_examine_sides__a_tree_whose_module_cannot_be_imported(tmp_path):
    exam = examine(make_side(tmp_path, "import no_such_module\n"), CASES[:1])

    assert exam.sound == 0
    assert "no_such_module" in exam.wrong[0].problem


def test_build_sides__a_kernel_that_does_not_compile(tmp_path):
    side = make_side(tmp_path, RIGHT)
    (tmp_path / "python" / "sglang").unlink()
    (tmp_path / "python" / "sglang").mkdir()
    (tmp_path / "python" / "sglang" / "__init__.py").write_text("raise SyntaxError('in the pull request')")
    layers = [("small", LayerCase.parse(SMALL))]
    (build,) = build_sides([side], ProofRequest(layers=layers, arch=90, implementations=(), cases=(), device="cpu"), quiet)

    assert build.kernels == 0
    assert "in the pull request" in build.refused[0].problem


def test_build_sides__are_at_work_at_once(tmp_path):
    python, arms = tmp_path / "python", ("base", "candidate")
    both = " && ".join(f"[ -e {tmp_path}/{arm} ]" for arm in arms)
    python.write_text(f"#!/bin/sh\ntouch {tmp_path}/$ARM\nfor _ in $(seq 300); do {both} && exit 0; sleep 0.1; done\nexit 1\n")
    python.chmod(0o755)
    sides = [Side(arm=arm, checkout=Checkout(folder=tmp_path, python=str(python)), env={"ARM": arm}) for arm in arms]
    told = []
    builds = build_sides(sides, ProofRequest(layers=(), arch=90, implementations=(), cases=(), device="cpu"), told.append)

    assert [(build.arm, build.refused) for build in builds] == [("base", ()), ("candidate", ())]
    assert re.fullmatch(r"kernels compiled in \d+ s: 0 of the base, 0 of the candidate", told[0])


def make_venv(folder):
    """An environment of its own over this one, as `perfgate runner arm` builds them."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "engine.pth").write_text(sysconfig.get_path("purelib"))
    return str(folder / "bin" / "python")


def test_bring_wheels__both_where_the_sources_differ_and_none_where_they_do_not(tmp_path):
    sides = []
    for arm in ("base", "candidate"):
        side = make_side(tmp_path / arm, RIGHT, arm)
        kernels = side.checkout.folder / "sgl-kernel"
        kernels.mkdir()
        (kernels / "setup.py").write_text("import setuptools\nsetuptools.setup(name='own', version='1', py_modules=['own'])\n")
        (kernels / "own.py").write_text("FROM = 'both'")
        sides.append(replace(side, checkout=replace(side.checkout, python=make_venv(tmp_path / f"venv-{arm}"))))

    assert bring_wheels(sides, tmp_path / "wheels", quiet) == ""
    assert not (tmp_path / "wheels").exists()

    (tmp_path / "candidate" / "sgl-kernel" / "own.py").write_text("FROM = 'candidate'")
    told = []
    assert bring_wheels(sides, tmp_path / "wheels", told.append) == "own-1-py3-none-any.whl"
    assert [line.split(":")[0] for line in told] == ["base", "candidate"]
    for side, expected in zip(sides, ("both", "candidate"), strict=True):
        done = subprocess.run(
            [side.checkout.python, "-c", "import own; print(own.FROM)"], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == expected


def test_prove__a_wheel_that_cannot_be_built_is_an_answer(tmp_path):
    done = run_prove(tmp_path, RIGHT, "--case=M=3", prepare=spoil_wheel)

    assert done.return_value == 1
    (problem,) = check_kernels(load_proof(tmp_path / "proof.json"))
    assert "sgl-kernel: no wheel" in problem


def spoil_wheel(tmp_path):
    (tmp_path / "head" / "sgl-kernel").mkdir()
    (tmp_path / "base" / "sgl-kernel").mkdir()
    (tmp_path / "head" / "sgl-kernel" / "setup.py").write_text("raise SystemExit('no compiler')")


def run_prove(tmp_path, head, *more, prepare=lambda _: None):
    for name, layer in (("base", RIGHT), ("head", head)):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
        make_side(tmp_path / name, layer)
    prepare(tmp_path)
    options = [f"--checkout={tmp_path}/head", f"--base-checkout={tmp_path}/base", f"--output={tmp_path}/proof.json"]
    options += [f"--python={sys.executable}", f"--base-python={sys.executable}", "--impl=peer:layer", "--device=cpu"]
    options += [f"--wheels={tmp_path}/wheels", f"--shape={SMALL}", *(f"--case={case}" for case in CASES)]
    return CliRunner().invoke(command, ["prove", *options, *more], standalone_mode=False)


def build_candidate(sides, *rest):
    """Build the candidate for real, the base by name: the same is done with both, and loading SGLang takes twelve seconds."""
    base, candidate = sides
    caches = Path(base.env["TRITON_CACHE_DIR"])
    caches.mkdir(parents=True)
    (caches / "own.cubin").touch()
    return Build(arm=base.arm, arch="sm_90", kernels=6, refused=()), *build_sides([candidate], *rest)


def build_by_name(sides, *_):
    return tuple(Build(arm=side.arm, arch="sm_90", kernels=6, refused=()) for side in sides)


def test_prove__a_sound_candidate(tmp_path, monkeypatch):
    """Both sides are built into caches of their own, examined and timed."""
    monkeypatch.setattr(kernel_work, "TOKENS", (1, 2))
    monkeypatch.setattr(proving, "build_sides", build_candidate)
    done = run_prove(tmp_path, RIGHT, f"--caches={tmp_path}/caches", "--arch=sm_90", "--time-blocks=1")
    proof = load_proof(tmp_path / "proof.json")

    assert (done.return_value, done.exception) == (0, None)
    assert "peer:layer right in 3 of 3 cases" in done.stdout
    assert list(check_kernels(proof)) == []
    assert [(build.arm, build.kernels, build.arch) for build in proof.builds] == [
        ("base", 6, "sm_90"),
        ("candidate", 6, "sm_90"),
    ]
    assert {path.name for path in (tmp_path / "caches").iterdir()} == {"base", "candidate"}
    assert [len(list((tmp_path / "caches" / arm).rglob("*.cubin"))) for arm in ("base", "candidate")] == [1, 6]
    (block,) = proof.times
    assert [(one.shape, one.tokens) for one in block.layers] == [(SMALL, 1), (SMALL, 2)]
    # One block decides nothing; on a busy machine the base against itself refuses it.
    assert re.search(r"^times of the layer: (INCONCLUSIVE|INVALID): 2 timings", done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--impl=nope", "no implementation 'nope'"),
        ("--base-checkout=nowhere", "--base-checkout nowhere: no python/sglang in it"),
        ("--base-python=no-such-program", "--base-python no-such-program: no such program"),
        ("--arch=sm_1", "--arch sm_1"),
    ],
)
def test_prove__options_that_mean_nothing(tmp_path, option, words):
    done = run_prove(tmp_path, RIGHT, option)

    assert words in str(done.exception)
    assert not (tmp_path / "proof.json").exists()


def test_prove__a_candidate_that_became_wrong(tmp_path, monkeypatch):
    # A sound candidate's kernels are built above; what is built here changes nothing.
    monkeypatch.setattr(proving, "build_sides", build_by_name)
    done = run_prove(tmp_path, WRONG, "--format=json", "--time-blocks=1")

    assert done.return_value == 1
    assert load_proof(tmp_path / "proof.json").times == ()
    assert "is wrong in 1 of 3 cases" in json.loads(done.stdout)["problems"][0]
    assert list(check_kernels(load_proof(tmp_path / "proof.json"))) == json.loads(done.stdout)["problems"]


FAST = """
print('{"ready": true}\\n{"us": "fast"}')

def layer(problem):
    return problem.hidden
"""
SLOW = """
import time

def layer(problem):
    time.sleep(0.002)
    return problem.hidden
"""


def time_both(tmp_path, base, candidate):
    """One block of both layers at two numbers of tokens, on the CPU."""
    sides = [make_side(tmp_path / arm, layer, arm) for arm, layer in (("base", base), ("candidate", candidate))]
    request = TurnsRequest(implementation="peer:layer", shapes=[SMALL], device="cpu", tokens=(1, 8), blocks=1)
    (block,) = time_sides(sides, request, quiet)
    return block.layers


def test_time_sides__a_slower_candidate(tmp_path):
    """Nothing that a layer prints is an answer."""
    layers = time_both(tmp_path, FAST, SLOW)

    assert [(one.shape, one.tokens) for one in layers] == [(SMALL, 1), (SMALL, 8)]
    assert all(len(side) == ROUNDS for one in layers for side in (one.base, one.again, one.candidate))
    # A sample lasts at least as long as the candidate sleeps, whatever else the machine does.
    assert all(us >= 2_000 for one in layers for us in one.candidate)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ("import os\nos._exit(3)\n", "candidate: its process ended"),
        ("raise ImportError('no layer in here')\n", "no layer in here"),
    ],
)
def test_time_sides__an_arm_without_times_leaves_none(tmp_path, layer, words):
    with pytest.raises(TimingError, match=words):
        time_both(tmp_path, FAST, layer)


def test_time_sides__an_arm_that_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr(turns, "PAIR_TIMEOUT_S", 5.0)

    with pytest.raises(TimingError, match="or took more than 5 s"):
        time_both(tmp_path, FAST, "import time\ntime.sleep(600)\n")


def test_timed_names__are_layers_that_have_no_format_of_four_bits():
    assert set(TIMED_NAMES) == {name for name, shape in SHAPES.items() if shape.quant != "mxfp4"}
