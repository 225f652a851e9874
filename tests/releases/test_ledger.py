"""The ledger: what a session leaves in it, what the page says of its rows, and when a release is measured."""

import errno
import gzip
import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfgate.cli import main
from perfgate.cli.keeping import ledger as command
from perfgate.core import Arm, Outcome
from perfgate.errors import EvidenceError, InputError
from perfgate.releases import ledger
from perfgate.releases.ledger import (
    SESSIONS,
    LedgerRow,
    MetricChange,
    add_release,
    add_session,
    load_rows,
    read_row,
    store_row,
    write_ledger,
)
from perfgate.releases.suite import Tried
from perfgate.results.raw.pack import PACK_FILE, read_pack
from perfgate.results.raw.packer import pack_folder
from tests.fakes.recorded import EQUAL, ROUTED, SLOWER, VOID, bring_back, bring_cut_off
from tests.fakes.requests import KeptProgress

ROOT = Path(__file__).parents[2]
HARDWARE = "cpu-test-2c"
SESSION = f"{SESSIONS}/sglang-0.5.22-0.5.23"


@pytest.fixture(scope="module")
def row(tmp_path_factory):
    """What a session that was recorded on an H200 says: judging reads some megabytes, so it is done once."""
    folder = tmp_path_factory.mktemp("ledger") / "session"
    shutil.copytree(SLOWER, folder)
    return read_row(folder)


def make_row(version="0.5.23", **changes):
    facts = {
        "base": "0.5.22",
        "candidate": version,
        "scenario": "cpu-moe",
        "hardware": HARDWARE,
        "begun_utc": "2026-11-22T20:00:00Z",
        "elapsed_s": 810.0,
        "rule": "2026-11.9",
        "outcome": Outcome.INCONCLUSIVE,
        "blocks": 6,
        "metrics": {"output_tok_per_s": MetricChange(change=-0.021, low=-0.05, high=0.01)},
        "costs": {"ready_s": {Arm.BASE: 16.0, Arm.CANDIDATE: 17.5}, "server_memory_mib": {}},
        "settings": (("max_running_requests", "64", "128 | 256"),),
        "reasons": ("not enough evidence",),
        "warnings": (),
        "sha256": "a" * 64,
        "size_bytes": 612_345,
    }
    return LedgerRow(**facts | changes)


@pytest.fixture
def measured(monkeypatch, row):
    """What would be measured: the gate is handed its job, and leaves the session that was recorded."""
    jobs = []

    def run(job, _):
        jobs.append(job)
        shutil.copytree(SLOWER, job.folder, dirs_exist_ok=True)

    monkeypatch.setattr(ledger, "list_versions", lambda _: ["0.5.22", "0.5.23"])
    monkeypatch.setattr(ledger, "install_release", lambda _, folder, __: folder / "python")
    monkeypatch.setattr(ledger, "read_fingerprint", lambda _: SimpleNamespace(facts={"hardware": HARDWARE}))
    monkeypatch.setattr(ledger, "run_gate", run)
    monkeypatch.setattr(ledger, "read_row", lambda session: replace(row, candidate="0.5.23") if session.exists() else None)
    return jobs


def test_read_row__of_a_session(row):
    assert (row.outcome, row.base, row.rule) == (Outcome.REGRESSION, "0.5.16", "2026-11.12")
    assert row.metrics["output_tok_per_s"].change < 0
    assert row.costs["ready_s"].keys() == set(Arm)
    assert row.size_bytes == (SLOWER / "raw.tar.xz").stat().st_size
    assert row.elapsed_s > 60


def test_read_row__of_one_that_is_no_evidence():
    with pytest.raises(EvidenceError, match=r"dummy-closed-c16: INVALID: .*; nothing was added: delete it, then measure again"):
        read_row(VOID)


def test_store_row__is_small_and_read_back(row, tmp_path):
    store_row(row, tmp_path / "ledger")

    [file] = (tmp_path / "ledger").iterdir()
    assert file.stat().st_size < 20_000
    assert load_rows(tmp_path / "ledger") == [row]


@pytest.mark.parametrize(
    ("field", "value"), [("blocks", -1), ("size_bytes", "9" * 500), ("begun_utc", "x"), ("begun_utc", "2026-13-01T00:00:00Z")]
)
def test_load_rows__of_a_file_that_is_none(tmp_path, field, value):
    store_row(make_row(), tmp_path)
    [file] = tmp_path.iterdir()
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))

    with pytest.raises(EvidenceError, match=rf"sglang-0\.5\.23-cpu-moe-cpu-test-2c\.json: {field}: .*perfgate ledger add"):
        load_rows(tmp_path)


def test_load_rows__where_none_is(tmp_path):
    with pytest.raises(InputError, match="no such folder; `perfgate ledger add` writes into it"):
        load_rows(tmp_path / "none")


def test_write_ledger__without_a_row():
    page = write_ledger([])

    assert page.endswith("\nNo release was measured yet.\n")
    assert "## " not in page


def test_page__is_what_the_rows_give():
    page = ROOT / "docs" / "evidence" / "ledger.md"

    told = write_ledger(load_rows(ROOT / "benchmarks" / "engines" / "ledger"))
    assert page.read_text(encoding="utf-8") == told, f"run `perfgate ledger show benchmarks/engines/ledger > {page}`"


def list_numbers(row):
    """What was measured, by metric or cost and by end or arm."""
    ends = {(name, end): getattr(one, end) for name, one in row.metrics.items() for end in ("change", "low", "high")}
    return ends | {(name, arm.value): value for name, costs in row.costs.items() for arm, value in costs.items()}


def test_rows__each_session_comes_back_from_the_history_and_says_the_same():
    """The rule may be newer than the row's; the reasons and warnings may be worded otherwise."""
    folders = [*bring_back(ROOT / "benchmarks/engines/ledger/sessions").iterdir(), *bring_back(ROUTED).glob("*-release-*")]
    sessions = {hashlib.sha256((one / PACK_FILE).read_bytes()).hexdigest(): one for one in folders}

    for one in load_rows(ROOT / "benchmarks" / "engines" / "ledger"):
        again = read_row(sessions[one.sha256], is_own=False)
        assert (again.name, again.base, again.outcome, again.blocks) == (one.name, one.base, one.outcome, one.blocks)
        assert list_numbers(again) == pytest.approx(list_numbers(one), rel=1e-9), one.name
        assert again.settings == one.settings, one.name


def test_write_ledger__of_one():
    page = write_ledger([make_row()])

    assert (
        "| 0.5.23 | 0.5.22 | cpu-moe | cpu-test-2c | 2026-11-22 | INCONCLUSIVE | -2.1 % (-5.0 to +1.0 %) | n/a | n/a "
        "| 16.0 s to 17.5 s | n/a | 1 |" in page
    )
    assert "6 blocks in 14 minutes, rule 2026-11.9." in page
    assert f"take 0.61 MB; their SHA-256 is `{'a' * 64}`" in page
    assert "| max_running_requests | 64 | 128 \\| 256 |" in page


def test_write_ledger__of_names_that_would_format():
    page = write_ledger([replace(make_row(), scenario="<b>a\nb", rule="[1](x)")])

    assert "\n## 0.5.22 to 0.5.23, &lt;b&gt;a b on cpu-test-2c\n" in page
    assert "rule \\[1\\](x). Its" in page


def test_write_ledger__of_eight_in_their_order(tmp_path):
    versions = ["0.5.16", "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"]
    for version in reversed(versions):
        store_row(make_row(version, settings=()), tmp_path)

    page = write_ledger(load_rows(tmp_path))

    assert [line.split(" | ")[0][2:] for line in page.splitlines() if line.startswith("| 0.5")] == versions
    assert page.count("\n## ") == page.count("No setting was resolved differently.") == len(versions)


def test_show__writes_the_page(tmp_path):
    store_row(make_row(), tmp_path / "rows")

    assert main(["ledger", "show", str(tmp_path / "rows"), "--output", str(tmp_path / "ledger.md")]) == 0
    assert (tmp_path / "ledger.md").read_text() == write_ledger([make_row()])


def test_add_release__measures_it_against_the_one_before(measured, tmp_path):
    found = add_release("0.5.23", tmp_path / "environments", tmp_path / "ledger", KeptProgress())

    [job] = measured
    pythons = [job.arms[arm].python for arm in Arm]
    assert pythons == [str(tmp_path / "environments" / version / "python") for version in ("0.5.22", "0.5.23")]
    assert (job.folder, job.scenario.name, job.resume) == (tmp_path / "environments" / SESSION, "cpu-moe", False)
    assert load_rows(tmp_path / "ledger") == [found]


@pytest.mark.parametrize(("version", "words"), [("0.5.24", "no such release"), ("0.5.22", "the first release")])
def test_add_release__that_has_none_before_it(measured, tmp_path, version, words):
    with pytest.raises(InputError, match=words):
        add_release(version, tmp_path, tmp_path / "ledger", KeptProgress())
    assert measured == []
    assert not (tmp_path / "ledger").exists()


@pytest.mark.parametrize(("left", "is_gone_on_with"), [(SESSION, True), (f"{SESSION}-calibration", True), ("other", False)])
def test_add_release__that_was_cut_off_goes_on(measured, tmp_path, left, is_gone_on_with):
    (tmp_path / left).mkdir(parents=True)

    add_release("0.5.23", tmp_path, tmp_path / "ledger", KeptProgress())

    assert [job.resume for job in measured] == [is_gone_on_with]


def test_add_release__whose_session_ended_is_not_measured_again(measured, tmp_path):
    shutil.copytree(SLOWER, tmp_path / SESSION)

    add_release("0.5.23", tmp_path, tmp_path / "ledger", KeptProgress())

    assert measured == []
    assert len(load_rows(tmp_path / "ledger")) == 1


def test_add_release__whose_row_is_there(measured, tmp_path):
    store_row(make_row(), tmp_path)

    with pytest.raises(InputError, match="is there already; delete it to add the release again"):
        add_release("0.5.23", tmp_path, tmp_path, KeptProgress())
    assert measured == []


def test_add_release__into_what_is_no_folder_measures_nothing(measured, tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(InputError, match=r"--to .*/file: cannot be written \(File exists\); choose another place"):
        add_release("0.5.23", tmp_path, tmp_path / "file", KeptProgress())
    assert measured == []


def test_add__of_another_package(tmp_path, capsys):
    code = main(["ledger", "add", "vllm==0.33", "--environments", str(tmp_path), "--to", str(tmp_path)])

    assert (code, capsys.readouterr().err) == (
        2,
        "perfgate: vllm==0.33: give a release as sglang==VERSION, for example sglang==0.5.23\n",
    )


@pytest.mark.usefixtures("measured")
def test_add__ends_as_the_verdict_does(tmp_path, capsys):
    words = ["--environments", str(tmp_path / "environments"), "--to", str(tmp_path / "ledger")]

    code = main(["ledger", "add", "sglang==0.5.23", *words])

    assert code == 1
    assert capsys.readouterr().out.startswith("0.5.16 -> 0.5.23: REGRESSION; ")


def copy_session(source, folder, **changes):
    """A recorded session of equal arms, as one of two releases; `changes` name arms and what is told of them otherwise."""
    shutil.copytree(source, folder)
    record = json.loads((folder / "session.json").read_text())
    facts = {"base": {"sglang": "0.5.16"}, "candidate": {"sglang": "0.5.17"}}
    for arm, told in record["arms"].items():
        told["facts"].update(facts[arm])
        told.update(changes.get(arm, {}))
    (folder / "session.json").write_text(json.dumps(record))
    return folder


def unpack_session(folder):
    """Lay the raw files of a packed session beside each other, as they lay before."""
    pack = read_pack(folder)
    for name in pack.files:
        (folder / name).parent.mkdir(exist_ok=True)
        content = pack.read(name)
        (folder / name).write_bytes(gzip.compress(content, mtime=0) if name.endswith(".gz") else content)
    (folder / "raw.tar.xz").unlink()
    for index in ("windows.jsonl", "answers.jsonl", "expert_use.jsonl"):
        lines = [json.loads(line) for line in (folder / index).read_text().splitlines()]
        for line in lines:
            line["sha256"] = hashlib.sha256((folder / line["file"]).read_bytes()).hexdigest()
        (folder / index).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def list_content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_add_session__of_another_machine_and_scenario(tmp_path):
    session = copy_session(EQUAL, tmp_path / "session")

    found = add_session("0.5.17", session, tmp_path / "ledger")

    assert (found.base, found.candidate, found.outcome) == ("0.5.16", "0.5.17", Outcome.PASS)
    assert found.name == "sglang-0.5.17-gpt-oss-20b-shape-mxfp4-mixed-c16-nvidia-h200-141gb.json"
    assert load_rows(tmp_path / "ledger") == [found]
    with pytest.raises(InputError, match="is there already; delete it to add the release again"):
        add_session("0.5.17", session, tmp_path / "ledger")


def test_add_session__that_was_cut_off_says_so_and_is_left_as_it_was(tmp_path):
    session = unpack_session(copy_session(bring_cut_off(), tmp_path / "session"))
    before = list_content(session)

    found = add_session("0.5.17", session, tmp_path / "ledger")

    assert "the session was cut off or is still running: whole blocks are judged" in found.warnings
    assert "- the session was cut off" in write_ledger([found])
    assert list_content(session) == before
    pack_folder(session, is_cut_off=True)
    assert hashlib.sha256((session / "raw.tar.xz").read_bytes()).hexdigest() == found.sha256


def test_add_session__no_room_for_a_copy(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    session = unpack_session(copy_session(bring_cut_off(), tmp_path / "session"))
    monkeypatch.setattr(shutil, "copystat", refuse)

    with pytest.raises(EvidenceError, match=r"session: cannot be copied \(.*No space left.*\); set TMPDIR to a folder"):
        add_session("0.5.17", session, tmp_path / "ledger")
    assert not (tmp_path / "ledger").exists()


def test_add_session__without_a_whole_block(tmp_path):
    session = copy_session(bring_cut_off(), tmp_path / "session")
    windows = (session / "windows.jsonl").read_text().splitlines(keepends=True)
    (session / "windows.jsonl").write_text("".join(windows[:4]))

    with pytest.raises(EvidenceError, match="no block is whole; nothing was added: continue the session with --resume"):
        add_session("0.5.17", session, tmp_path / "ledger")
    assert not (tmp_path / "ledger").exists()


def test_add_session__that_is_no_evidence(tmp_path):
    session = copy_session(VOID, tmp_path / "session")

    with pytest.raises(EvidenceError, match=r"INVALID: .*; nothing was added"):
        add_session("0.5.17", session, tmp_path / "ledger")


@pytest.mark.parametrize(
    ("version", "changes", "words"),
    [
        ("0.5.18", {}, "sglang of its candidate is 0.5.17, not 0.5.18; name the release that it measured"),
        ("0.5.17", {"candidate": {"facts": {}}}, "sglang of its candidate is not there, not 0.5.17"),
        ("0.5.17", {"base": {"facts": {"sglang": "0.5.17"}}}, "sglang of its base is 0.5.17, not earlier than 0.5.17"),
        ("0.5.17", {"base": {"facts": {"sglang": "0.5.18"}}}, "sglang of its base is 0.5.18, not earlier than 0.5.17"),
        ("0.5.17", {"base": {"facts": {}}}, "sglang of its base is not there, not earlier than 0.5.17; measure an"),
        (
            "0.5.17",
            {"candidate": {"label": "PERFGATE_INJECT=gpu:15"}},
            r"its arms differ in more than the release \(as installed, PERFGATE_INJECT=gpu:15\); measure both with equal",
        ),
    ],
)
def test_add_session__of_something_else(tmp_path, version, changes, words):
    session = copy_session(EQUAL, tmp_path / "session", **changes)

    with pytest.raises(InputError, match=words):
        add_session(version, session, tmp_path / "ledger")
    assert not (tmp_path / "ledger").exists()


def test_add_session__of_one_arm(tmp_path):
    session = copy_session(EQUAL, tmp_path / "session")
    record = json.loads((session / "session.json").read_text())
    del record["arms"]["base"]
    (session / "session.json").write_text(json.dumps(record))

    with pytest.raises(InputError, match="has one arm only; give a session that compares two releases"):
        add_session("0.5.17", session, tmp_path / "ledger")


def test_add__with_a_session_ends_as_its_verdict_does(tmp_path, capsys):
    session = copy_session(EQUAL, tmp_path / "session")

    code = main(["ledger", "add", "sglang==0.5.17", "--session", str(session), "--to", str(tmp_path / "ledger")])

    assert (code, capsys.readouterr().out.partition(";")[0]) == (0, "0.5.16 -> 0.5.17: PASS")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--session", "results", "--environments", "engines"],
        ["--session", "results", "--check"],
        ["--session", "results", "--torch-index", "https://example.org"],
    ],
)
def test_add__measures_or_takes_what_was_measured(tmp_path, capsys, words):
    code = main(["ledger", "add", "sglang==0.5.17", *words, "--to", str(tmp_path / "ledger")])

    assert (code, capsys.readouterr().err) == (
        2,
        "perfgate: give --environments, to measure the release here, or --session alone, to add what was measured\n",
    )


def test_write_ledger__tells_rows_of_a_cpu_from_those_of_a_gpu():
    page = write_ledger([make_row(), make_row(hardware="nvidia-h200-141gb")])

    head = " ".join(page.partition("\n| release")[0].split())
    assert "A row whose hardware begins with `cpu-` tells of plumbing" in head
    assert "Any other row is of the GPU that it names" in head
    assert f"| {HARDWARE} |" in page
    assert "| nvidia-h200-141gb |" in page


@pytest.fixture
def tried(monkeypatch):
    """What would be tried; the Python of a release in `broken` serves nothing."""
    names, broken = [], set()

    def try_release(python, _folder, _progress, capabilities):
        names.append([one.name for one in capabilities])
        is_broken = any(version in python for version in broken)
        return SimpleNamespace(failed=(Tried(name="ready", state="fails", said="ended"),) if is_broken else ())

    monkeypatch.setattr(command, "try_release", try_release)
    return SimpleNamespace(names=names, broken=broken)


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize(
    ("broken", "ended"),
    [([], (0, "0.5.22 -> 0.5.23: both serve\n")), (["0.5.23"], (3, "0.5.23: ready: ended\n0.5.22 -> 0.5.23: fails\n"))],
)
def test_add__check_starts_both_and_measures_nothing(tried, tmp_path, capsys, broken, ended):
    tried.broken.update(broken)
    words = ["--environments", str(tmp_path / "environments"), "--to", str(tmp_path / "ledger"), "--check"]

    code = main(["ledger", "add", "sglang==0.5.23", *words])

    assert (code, capsys.readouterr().out) == ended
    assert tried.names == [["source", "start", "ready", "serve", "stop"]] * 2
    assert not (tmp_path / "environments" / SESSIONS).exists()
    assert not (tmp_path / "ledger").exists()
