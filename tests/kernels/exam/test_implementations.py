"""Finding implementations by name, by entry point and by module:function; judging them from the command line."""

from importlib.metadata import EntryPoint
from importlib.util import find_spec

import pytest
from click.testing import CliRunner

from perfgate.cli import main
from perfgate.cli.moe.kernels import command
from perfgate.errors import InputError
from perfgate_moe.errors import MoeInputError
from perfgate_moe.exam import implementations
from perfgate_moe.exam.implementations import BUILT_IN, find, registry
from perfgate_moe.timing import roofline


@pytest.fixture
def small_ceilings(monkeypatch):
    """What this machine can do at best is on the page; how exactly is no matter."""
    monkeypatch.setattr(roofline, "CPU_COPY_ELEMENTS", 1 << 16)
    monkeypatch.setattr(roofline, "CPU_PRODUCT_SIZE", 64)


def run(*arguments):
    return CliRunner().invoke(command, arguments, standalone_mode=False)


def test_registry__adds_entry_points(monkeypatch):
    theirs = EntryPoint(name="theirs", value="their.module:function", group=implementations.ENTRY_POINT_GROUP)
    monkeypatch.setattr(implementations, "entry_points", lambda group: [theirs] if group == theirs.group else [])

    known = registry()

    assert known["theirs"].target == "their.module:function"
    assert {each.name for each in BUILT_IN} < set(known)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "choose one of sglang"),
        ("no.such.module:f", "no module 'no'"),
        ("math:nothing", "math has no 'nothing'"),
        ("math:pi", "not callable"),
        ("math:", "not module:function"),
        (":f", "raised ValueError"),
        ("raising_kernel:f", r"importing raising_kernel raised RuntimeError \(no such GPU\); nothing was judged"),
        ("ending_kernel:f", r"importing ending_kernel raised SystemExit \(0\); nothing was judged"),
    ],
)
@pytest.mark.usefixtures("hostile_kernels")
def test_find__says_what_is_missing(name, message):
    with pytest.raises(MoeInputError, match=message):
        find(name).load()


@pytest.fixture
def hostile_kernels(tmp_path, monkeypatch):
    """Modules of kernels that end what runs them: when they are imported, or when they are asked."""
    (tmp_path / "raising_kernel.py").write_text('raise RuntimeError("no such GPU")')
    (tmp_path / "ending_kernel.py").write_text("raise SystemExit(0)")
    (tmp_path / "dying_kernel.py").write_text("import os\ndef f(problem): os._exit(0)\ndef g(problem): raise SystemExit(0)")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("name", "said"), [("dying_kernel:f", "WRONG: its process ended too early"), ("dying_kernel:g", "WRONG: raised SystemExit")]
)
@pytest.mark.usefixtures("hostile_kernels")
def test_check_command__implementation_that_ends_its_process_has_failed_the_case(name, said):
    done = run("check", "--impl", name, "--case", "E=4,k=2,H=32,I=32,M=3")

    assert done.return_value == 1
    assert said in done.output
    assert f"0 of 1 cases sound, 0 not covered by {name}" in done.output


def test_check_command__sound_implementation_exits_zero():
    done = run("check", "--impl", "torch-staged", "--case", "E=4,k=2,H=32,I=32,M=3")

    assert done.return_value == 0
    assert "1 of 1 cases sound, 0 not covered by torch-staged" in done.output


def test_check_command__wrong_implementation_exits_one():
    done = run("check", "--impl", "perfgate_moe.exam.mutants.memory:zeros", "--case", "E=4,k=2,H=32,I=32,M=3")

    assert done.return_value == 1
    assert "WRONG: relative error 1 > 4e-06" in done.output
    assert (
        "what is wrong: Nothing is computed. A layer with that mistake gives 1 of the 1 wrong answers compared." in done.output
    )


@pytest.mark.usefixtures("small_ceilings")
def test_check_command__a_page_with_the_mistake_errors_and_times_beside_a_peer(tmp_path):
    page, layer = tmp_path / "page.html", "E=4,k=2,H=64,I=64,dtype=bfloat16"
    wrong = ("check", "--impl", "perfgate_moe.exam.mutants.routing:scaling_omitted", "--shape", layer + ",scaling=2.5")
    done = run(*wrong, "--case", layer, "--case", layer + ",scaling=2.5", "--page", str(page), "--tokens", "1,3")

    told = page.read_text()
    assert done.return_value == 1
    assert "1 of 2 cases are right against the float64 oracle" in told
    assert "The routed scaling factor is never applied." in told
    assert "torch-float32, M=3: " in told
    assert "of the roofline" in told
    assert "scaling_omitted, M = 3" in told  # it is wrong on the timed layer too, and has no time


@pytest.mark.usefixtures("small_ceilings")
def test_check_command__a_page_of_a_right_kernel_has_its_times(tmp_path):
    page, layer = tmp_path / "page.html", "E=4,k=2,H=64,I=64,dtype=bfloat16"
    done = run("check", "--impl", "torch-staged", "--case", layer, "--page", str(page), "--shape", layer, "--tokens", "1")

    assert done.return_value == 0
    assert "torch-staged, M=1: " in page.read_text()


@pytest.mark.parametrize("arguments", [(), ("--case", "M=1", "--matrix", "quick")])
def test_check_command__wants_cases_or_a_matrix(arguments):
    done = run("check", "--impl", "torch-staged", *arguments)

    assert isinstance(done.exception, InputError)


def test_list_command__names_every_implementation():
    done = run("list")

    assert all(each.name in done.output for each in BUILT_IN)


def test_check_command__implementation_that_raises_has_failed_the_case():
    done = run("check", "--impl", "operator:index", "--case", "E=4,k=2,H=32,I=32,M=3")

    assert done.return_value == 1
    assert "raised TypeError" in done.output


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("E=4,k=2,H=64,I=64,M=3,dtype=bfloat16,activation=swiglu-chunked", "has no activation swiglu-chunked"),
        ("E=4,k=2,H=64,I=64,M=3", "16 bits"),
        ("E=4,k=2,H=64,I=64,M=3,dtype=bfloat16,mask=ep", "all experts at hand"),
        ("E=4,k=2,H=65,I=64,M=3,dtype=bfloat16", "multiples of 32"),
        ("E=4,k=2,H=64,I=64,M=3,dtype=bfloat16,quant=mxfp4", "no 4-bit weights"),
    ],
)
def test_check_command__vllm_says_what_it_does_not_cover(case, reason):
    done = run("check", "--impl", "vllm", "--case", case)

    assert done.return_value == 1
    assert reason in done.output
    assert "0 of 0 cases sound, 1 not covered by vllm" in done.output


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("E=4,k=2,H=320,I=384,M=3,dtype=bfloat16,quant=fp8", "whole groups of 128 columns"),
        ("E=4,k=2,H=256,I=200,M=3,dtype=bfloat16,quant=fp8", "whole groups of 128 columns"),
        ("E=4,k=2,H=64,I=64,M=3", "16 bits only"),
    ],
)
def test_check_command__sglang_says_what_it_does_not_cover(case, reason):
    done = run("check", "--impl", "sglang", "--case", case)

    assert done.return_value == 1
    assert reason in done.output
    assert "0 of 0 cases sound, 1 not covered by sglang" in done.output


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is here: there is nothing to say")
def test_check_command__vllm_is_not_installed():
    done = run("check", "--impl", "vllm", "--case", "E=4,k=2,H=64,I=64,M=3,dtype=bfloat16")

    assert done.return_value == 1
    assert "vLLM 0.32 or a version like it is needed" in done.output


def test_main__an_error_of_the_kernels_is_one_line_and_an_exit_code(capfd):
    code = main(["kernels", "check", "--impl", "no\nsuch", "--matrix", "quick"])

    told = capfd.readouterr().err
    assert code == 2
    assert told.startswith("perfgate: no implementation 'no\\nsuch': choose one of ")
    assert told.count("\n") == 1


def test_moe_error__is_one_printable_line():
    assert str(MoeInputError("first\n\x1b[31msecond")) == "first??[31msecond"
