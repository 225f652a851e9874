"""benchmarks/kernels/sanitize.sh with a stand-in for compute-sanitizer, and the plans that its cases are there for."""

import os
import re
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the kernels need triton: install the extra cpu-engine or gpu")

from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.data import build
from perfgate_moe.layer.fused import _uses_tma
from perfgate_moe.layer.tiles import LARGE, MEDIUM, default_plan

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "kernels" / "sanitize.sh"
CASES = [LayerCase.parse(text) for text in re.findall(r"'(E=\S+)'", SCRIPT.read_text(encoding="utf-8"))]
SANITIZER = """#!/bin/sh
[ "$1" = --version ] && echo "Version 2026.1" && exit
echo "saw GPU $CUDA_VISIBLE_DEVICES, caching off: $PYTORCH_NO_CUDA_MEMORY_CACHING"
case "$*" in
  *"$WRONG"*) echo "$SAYS"; exit "$CODE" ;;
esac
echo "========= ERROR SUMMARY: 0 errors"
"""


@pytest.fixture
def sanitize(tmp_path):
    """Run the script; jobs whose command holds `wrong` say `says` and end with `code`."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in {"compute-sanitizer": SANITIZER, "python": "#!/bin/sh\necho versions\n"}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)

    def run(wrong="nothing is wrong", says="========= ERROR SUMMARY: 3 errors", code=9):
        own = {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHON": str(tools / "python")}
        env = os.environ | own | {"WRONG": wrong, "SAYS": says, "CODE": str(code)}
        done = subprocess.run(
            [str(SCRIPT), "2,5", str(tmp_path / "out")], env=env, capture_output=True, text=True, check=False, timeout=60
        )
        return done, {path.name: path.read_text() for path in (tmp_path / "out").glob("*")}

    return run


def test_sanitize__every_tool_and_implementation_has_a_file_that_begins_with_its_command(sanitize):
    done, files = sanitize()

    assert done.returncode == 0, done.stderr
    assert len(files) == 10
    for name, text in files.items():
        tool, implementation = name.removesuffix(".txt").rsplit("-", 1)[0].split("-", 1)
        assert re.match(rf"PYTORCH_NO_CUDA_MEMORY_CACHING=1 \S+ --tool {tool} .*--impl {implementation} ", text)
        assert text.splitlines()[1:3] == ["versions", "Version 2026.1"]
        assert "caching off: 1" in text
    assert {re.search(r"saw GPU (\d)", text)[1] for text in files.values()} == {"2", "5"}
    assert sum(text.splitlines()[0].count("--case") for text in files.values()) == 8 * 4 + 2 * 2


@pytest.mark.parametrize(
    ("code", "says", "expected"),
    [(9, "3 errors", 9), (1, "E=8: WRONG: relative error", 9), (1, "no module named torch", 1), (137, "killed", 1)],
)
def test_sanitize__one_process_that_does_not_end_well_is_told(sanitize, code, says, expected):
    done, files = sanitize(wrong="--tool racecheck --error-exitcode 9 --target-processes all", says=says, code=code)

    assert done.returncode == expected
    assert sum(f"exit code {code}" in text for text in files.values()) == 5


def test_sanitize__without_the_tool_says_what_to_install(tmp_path):
    done = subprocess.run(
        ["/bin/bash", str(SCRIPT)], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False, cwd=tmp_path
    )

    assert done.returncode == 2
    assert "compute-sanitizer is not on PATH" in done.stderr


def test_cases__take_the_plans_that_they_are_there_for():
    plain, unaligned, large, chunked, fp8, mxfp4 = CASES
    problems = {case: build(case) for case in CASES}

    assert [default_plan(problems[case]) for case in (plain, unaligned, large, chunked)] == [MEDIUM, MEDIUM, LARGE, MEDIUM]
    assert _uses_tma(MEDIUM.gate_up, problems[plain].gate_up)
    assert _uses_tma(MEDIUM.down, problems[plain].down)
    assert not _uses_tma(MEDIUM.gate_up, problems[unaligned].gate_up)
    assert not _uses_tma(MEDIUM.down, problems[unaligned].down)
    assert _uses_tma(LARGE.gate_up, problems[large].gate_up)
    assert LARGE.gate_up.short
    assert LARGE.down.short
    assert not problems[chunked].activation.interleaved
    assert _uses_tma(MEDIUM.down, problems[chunked].down)
    assert [fp8.quant, mxfp4.quant] == ["fp8", "mxfp4"]
