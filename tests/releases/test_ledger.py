"""The ledger: which sessions are its rows, what the page says of them, and what a new row measures."""

import re
import shutil

import pytest

from perfgate.cli import main
from perfgate.cli.keeping import ledger as command
from perfgate.core import Arm
from perfgate.errors import InputError
from perfgate.releases import ledger
from perfgate.releases.ledger import add_release, list_steps, write_ledger
from tests.fakes.recorded import SLOWER
from tests.fakes.requests import Silent


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A ledger with one session, recorded on an H200."""
    ledger = tmp_path_factory.mktemp("ledger")
    shutil.copytree(SLOWER, ledger / "one")
    return ledger


@pytest.fixture(scope="module")
def steps(folder):
    """Its rows: judging reads some megabytes, so it is done once."""
    return list_steps(folder)


@pytest.fixture
def measured(monkeypatch):
    """What would be measured: the gate is handed its job and starts nothing."""
    jobs = []
    monkeypatch.setattr(ledger, "list_versions", lambda _: ["0.5.22", "0.5.23"])
    monkeypatch.setattr(ledger, "install_release", lambda _, folder, __: folder / "python")
    monkeypatch.setattr(ledger, "run_gate", lambda job, _: jobs.append(job))
    return jobs


def test_list_steps__judges_each_session_again(steps):
    [step] = steps

    assert (step.verdict.outcome.value, step.folder.name) == ("REGRESSION", "one")
    assert step.find("output_tok_per_s").change < 0
    assert step.find("nothing") is None
    assert step.costs["ready_s"].keys() == set(Arm)


def test_write_ledger__a_row_and_a_section_a_session(folder, steps):
    page = write_ledger(steps)

    rows = [line for line in page.splitlines() if line.startswith("| 0.5")]
    assert len(rows) == 1
    assert "| REGRESSION |" in rows[0]
    assert page.count("| REGRESSION |") == 1
    assert re.search(r"\| [\d.]+ s to [\d.]+ s \|", rows[0])
    assert f"`perfgate check {folder / 'one'}` judges it again." in page


def test_write_ledger__without_a_session():
    assert "No release was measured yet." in write_ledger([])


def test_show__writes_the_page(steps, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "list_steps", lambda _: steps)

    assert main(["ledger", "show", str(folder), "--output", str(tmp_path / "ledger.md")]) == 0
    assert "| REGRESSION |" in (tmp_path / "ledger.md").read_text()


def test_add_release__measures_it_against_the_one_before(measured, tmp_path):
    target = add_release("0.5.23", tmp_path / "environments", tmp_path / "ledger", Silent())

    [job] = measured
    pythons = [job.arms[arm].python for arm in Arm]
    assert pythons == [str(tmp_path / "environments" / version / "python") for version in ("0.5.22", "0.5.23")]
    assert (job.folder, job.scenario.name) == (target, "cpu-moe")
    assert target.name == "sglang-0.5.22-0.5.23"


@pytest.mark.parametrize(("version", "words"), [("0.5.24", "no such release"), ("0.5.22", "the first release")])
def test_add_release__that_has_none_before_it(measured, tmp_path, version, words):
    with pytest.raises(InputError, match=words):
        add_release(version, tmp_path, tmp_path / "ledger", Silent())
    assert measured == []
    assert not (tmp_path / "ledger").exists()


@pytest.mark.parametrize(
    ("left", "is_gone_on_with"), [("sglang-0.5.22-0.5.23", True), ("sglang-0.5.22-0.5.23-calibration", True), ("other", False)]
)
def test_add_release__that_was_cut_off_goes_on(measured, tmp_path, left, is_gone_on_with):
    (tmp_path / "ledger" / left).mkdir(parents=True)

    add_release("0.5.23", tmp_path, tmp_path / "ledger", Silent())

    assert [job.resume for job in measured] == [is_gone_on_with]


def test_add__of_another_package(tmp_path, capsys):
    code = main(["ledger", "add", "vllm==0.33", "--environments", str(tmp_path), "--to", str(tmp_path)])

    assert (code, capsys.readouterr().err) == (
        2,
        "perfgate: vllm==0.33: give a release as sglang==VERSION, for example sglang==0.5.23\n",
    )
