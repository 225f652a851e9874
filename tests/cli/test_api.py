"""The Python API: what its examples say, and that asking for it costs nothing until it is used."""

import doctest
import re
import subprocess
import sys

import pytest

import perfgate
from perfgate import api
from perfgate.cli import main
from perfgate.core import Outcome
from perfgate.errors import EvidenceError
from tests.fakes.recorded import ROOT, SLOWER


def test_load__examples_of_its_documentation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["demo"])
    found = doctest.testmod(api)

    assert found.attempted == 5
    assert found.failed == 0


def test_load__example_of_its_page(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "reference" / "verdict.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", page, flags=re.DOTALL)[1]
    monkeypatch.chdir(tmp_path)
    main(["demo"])
    capsys.readouterr()

    exec(example, {})  # noqa: S102 - it is the page's own

    assert capsys.readouterr().out.splitlines()[:2] == re.findall(r"(?m)^print.*# (REGRESSION|[+-][\d.]+%)$", example)


def test_load__verdict_and_windows():
    result = perfgate.load(SLOWER)

    assert result.verdict.outcome is Outcome.REGRESSION
    assert result["median_itl_ms"].change == pytest.approx(0.0624, abs=1e-4)
    assert set(result.windows["arm"]) == {"base", "candidate"}
    assert str(result).startswith("REGRESSION")
    assert perfgate.judge(result.case.session, result.case.scenario, result.case.baseline) == result.verdict


def test_load__no_result_folder(tmp_path):
    with pytest.raises(EvidenceError, match=r"holds no session\.json"):
        perfgate.load(tmp_path)


def test_perfgate__import_loads_nothing_of_its_own():
    code = "import sys, perfgate; print(sorted(name for name in sys.modules if name.startswith(('perfgate.', 'pandas'))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)

    assert done.stdout.strip() == "[]"


def test_perfgate__name_that_it_has_not():
    with pytest.raises(AttributeError, match="has no attribute 'lod'; it has Result"):
        perfgate.lod  # noqa: B018 - asking is the test
