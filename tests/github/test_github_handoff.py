"""The border between a job that ran a pull request's code and one that holds a token: what passes, and what must not."""

from __future__ import annotations

import base64
import io
import json
import stat
import zipfile
from dataclasses import asdict

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.cli import main
from perfgate.core import Arm
from perfgate.errors import HandoffError
from perfgate.evidence import Answers, Question
from perfgate.github.handoff import artifact, handoff
from perfgate.github.handoff.artifact import read_documents
from perfgate.github.handoff.handoff import parse_handoff
from perfgate.github.handoff.packing import clean_text, pack_folder, reduce_record
from perfgate.github.handoff.profiles import unpack_profile
from perfgate.github.handoff.subject import HandoffSubject
from perfgate.machine.fingerprint import read_build
from perfgate.readers.replies import draw_prompts
from perfgate.results.answers import store_answers
from perfgate.results.profiling.attribution import list_ledger
from perfgate.results.profiling.profiles import read_attribution
from perfgate.results.results import load_results
from perfgate.storage.journal import append_line
from perfgate.verdict.layers import judge_times
from tests.fakes.engine import fake_answers
from tests.fakes.folders import write_profiled
from tests.fakes.recorded import EQUAL, SLOWER, UNDECIDED
from tests.fakes.sessions import SCENARIO_TEXT, make_scenario, make_session, write_folder

SCENARIO = make_scenario()
# Sessions made of numbers have no answers; one that was asked has them below.
UNASKED = SCENARIO_TEXT + "[equivalence]\nenabled = false\n"
HEAD = "a" * 40
NAME = f"handoff-{SCENARIO.name}.json"


@pytest.fixture
def scenario_file(tmp_path):
    path = tmp_path / "unit.toml"
    path.write_text(UNASKED)
    return path


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    place = tmp_path_factory.mktemp("packed")
    folder = write_folder(place / "measured", make_session(SCENARIO, worse=0.1))
    assert main(["handoff", "pack", str(folder), "-o", str(place), *subject(hardware="test-gpu")]) == 0
    return (place / NAME).read_bytes()


@pytest.fixture
def document(packed):
    return orjson.loads(packed)


def subject(*, repository="owner/name", pr=7, head=HEAD, run=11, attempt=1, hardware="test-gpu"):
    return [
        *("--repository", repository, "--pr", str(pr), "--head-sha", head),
        *("--run-id", str(run), "--run-attempt", str(attempt), "--hardware", hardware),
    ]


def pack_recorded(folder, place):
    """Pack a session that is kept here as if today's perfgate had measured it; return the file."""
    assert main(["handoff", "pack", str(folder), "-o", str(place), *subject(hardware="h200")]) == 0
    [path] = place.glob("handoff-*.json")
    path.write_bytes(orjson.dumps({**orjson.loads(path.read_bytes()), "perfgate": read_build()}))
    return path


def open_document(tmp_path, content, scenario_file, *, name=NAME, **changes):
    """Put `content` into an artifact and open it as the trusted side does; return the exit code."""
    path = tmp_path / "artifact.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content if isinstance(content, bytes) else orjson.dumps(content))
    options = ["--out", str(tmp_path / "out"), "--scenario", str(scenario_file), *subject(**changes)]
    return main(["handoff", "open", str(path), *options])


def refused(tmp_path, capsys):
    """The one line that says why; nothing was written."""
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    assert not (tmp_path / "out").exists()
    return error


@pytest.mark.parametrize(
    ("version", "told"), [("0.6.0", "is newer than 0.5.23"), ("0.0.0.dev0", "is no release"), ("0.5.20", "")]
)
def test_handoff__an_engine_that_perfgate_does_not_know_is_told(tmp_path, document, scenario_file, version, told):
    for arm in document["arms"].values():
        arm["facts"]["sglang"] = version
    assert open_document(tmp_path, document, scenario_file) == 0
    _, session = load_results(tmp_path / "out" / document["scenario"])

    told_of = [note.removeprefix(f"sglang {version} ") for note in session.notes]
    assert [note[: len(told)] for note in told_of] == ([told] if told else [])


def test_handoff__the_verdict_is_the_same_on_the_other_side(tmp_path, capsys):
    """Real windows of an H200, with every inter-token gap."""
    scenario = SLOWER / "scenario.toml"
    packed = pack_recorded(SLOWER, tmp_path)
    main(
        ["handoff", "open", str(packed), "--out", str(tmp_path / "out"), "--scenario", str(scenario), *subject(hardware="h200")]
    )
    capsys.readouterr()

    main(["check", str(SLOWER), "--format", "json"])
    here = capsys.readouterr().out
    main(["check", str(tmp_path / "out" / "gpt-oss-20b-shape-mxfp4-mixed-c16"), "--format", "json"])

    assert capsys.readouterr().out == here


@pytest.mark.parametrize("is_complete", [True, False])
def test_handoff__the_machine_time_is_the_same_on_the_other_side(tmp_path, scenario_file, is_complete):
    """Servers stop after the last window, and that time is spent too."""
    session = make_session(make_scenario(), is_complete=is_complete)
    folder = write_folder(tmp_path / "r", session)
    append_line(folder / "events.jsonl", {"event": "server_stopped", "at_s": 2e6})
    main(["handoff", "pack", str(folder), "-o", str(tmp_path), *subject()])
    document = orjson.loads((tmp_path / NAME).read_bytes())

    open_document(tmp_path, document, scenario_file)
    opened = load_results(tmp_path / "out" / "unit")[1]

    assert opened.timing.took_s == load_results(folder)[1].timing.took_s == 2e6
    assert opened.is_complete is is_complete


def test_handoff__carries_no_text_path_or_setting(tmp_path):
    text = pack_recorded(EQUAL, tmp_path).read_text()

    assert "/tmp/" not in text
    assert "/opt/" not in text
    assert "--load-format" not in text
    assert "Xeon" in text


def test_handoff__the_verdict_is_computed_from_the_windows(tmp_path, scenario_file, document):
    assert open_document(tmp_path, document, scenario_file) == 0
    assert main(["check", str(tmp_path / "out" / SCENARIO.name)]) == 1


@pytest.mark.parametrize(("wrong", "outcome"), [((), "REGRESSION"), ((("E=8", "relative error 1"),), "INVALID")])
def test_handoff__what_was_found_of_the_kernels_is_judged_by_the_reader(
    tmp_path, capsys, scenario_file, document, *, wrong, outcome
):
    found = [{"name": name, "problem": problem} for name, problem in wrong]
    exams = [{"arm": arm, "implementation": "sglang", "sound": 9, "worst": 0.5, "wrong": []} for arm in ("base", "candidate")]
    exams[1] |= {"wrong": found, "sound": 9 - len(found)}
    builds = [{"arm": arm, "arch": "sm_90", "kernels": 6} for arm in ("base", "candidate")]
    document["kernels"] = {"builds": builds, "exams": exams}

    assert open_document(tmp_path, document, scenario_file) == 0
    capsys.readouterr()
    main(["check", str(tmp_path / "out" / SCENARIO.name)])
    told = capsys.readouterr().out
    assert told.startswith(outcome)
    assert f"sglang right in {9 - len(wrong)} of 9 cases" in told


@pytest.fixture(scope="module")
def routed(tmp_path_factory):
    """A recorded session of the H200 with its expert use, and its scenario without the prompts for answers."""
    place = tmp_path_factory.mktemp("routed")
    text = (UNDECIDED / "scenario.toml").read_text()
    (place / "s.toml").write_text(text + "\n[equivalence]\nenabled = false\n")
    path = pack_recorded(UNDECIDED, place)
    return place / "s.toml", path.name, path.read_bytes()


def judge_routed(tmp_path, capsys, routed, change=lambda _: None):
    scenario, name, content = routed
    document = orjson.loads(content)
    change(document)
    assert open_document(tmp_path, document, scenario, name=name, hardware="h200") == 0
    capsys.readouterr()
    main(["check", str(tmp_path / "out" / document["scenario"]), "--format", "json"])
    return orjson.loads(capsys.readouterr().out), load_results(tmp_path / "out" / document["scenario"])[1]


def test_handoff__expert_use_is_the_same_on_the_other_side(tmp_path, capsys, routed):
    verdict, session = judge_routed(tmp_path, capsys, routed)

    assert verdict["outcome"] != "INVALID"
    assert session.expert_use == load_results(UNDECIDED)[1].expert_use
    assert all(use.is_known for use in session.expert_use.values())


def collapse(document):
    """Let every token of the candidate take the first four experts."""
    for text in (*document["expert_use"][1]["found"]["texts"], *document["expert_use"][1]["found"]["again"]):
        same = base64.b64encode(bytes((0, 0, 1, 0, 2, 0, 3, 0)) * len(text["tokens"])).decode()
        text["layers"] = [same for _ in text["layers"]]


def cut(document):
    document["expert_use"][0]["found"]["texts"][0]["layers"].pop()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda document: document.update(expert_use=[]), "base and candidate: expert use was measured, and"),
        (lambda document: document["expert_use"].pop(), "candidate: expert use was measured, and"),
        (collapse, "this model cannot measure a MoE kernel: as the candidate serves it, a decode step of 16 tokens"),
        (cut, "expert_use/start-01.json.gz: expert use: texts of different lengths, or of different numbers of layers"),
    ],
)
def test_attack__expert_use_left_out_or_changed(tmp_path, capsys, routed, change, words):
    verdict, _ = judge_routed(tmp_path, capsys, routed, change)

    assert verdict["outcome"] == "INVALID"
    assert any(reason.startswith(words) for reason in verdict["reasons"]), verdict["reasons"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda use: use.update(found="because"), "expert_use.0.found"),
        (lambda use: use["found"].update(top_k=0), "expert_use.0.found"),
        (lambda use: use["found"].update(texts=use["found"]["texts"][:1]), "expert_use.0.found"),
        (lambda use: use["found"]["texts"][0]["layers"].append("<b>"), "expert_use.0.found"),
        (lambda use: use["found"]["texts"][0].update(tokens=[-1]), "expert_use.0.found"),
        (lambda use: use["found"]["texts"][0].update(tokens=[1] * 129), "expert_use.0.found"),
    ],
)
def test_attack__expert_use_that_is_none(tmp_path, capsys, routed, change, field):
    scenario, name, content = routed
    document = orjson.loads(content)
    change(document["expert_use"][0])

    assert open_document(tmp_path, document, scenario, name=name, hardware="h200") == 2
    assert field in refused(tmp_path, capsys)


def test_handoff__a_proof_that_was_left_out_shows(tmp_path, capsys, scenario_file, document):
    assert open_document(tmp_path, document, scenario_file) == 0
    capsys.readouterr()
    main(["check", str(tmp_path / "out" / SCENARIO.name)])

    assert "kernels   they were not built and examined" in capsys.readouterr().out


def timed(**changes):
    """A proof with one start of each arm, in which the candidate's layer took a tenth longer; `changes` are its layer's."""
    layer = {"shape": "gpt-oss-20b", "tokens": 16, "base": [100.0] * 10, "again": [100.0] * 10, "candidate": [110.0] * 10}
    return {"times": [{"layers": [layer | changes]}]}


def test_handoff__carries_what_layers_took(tmp_path, scenario_file, document):
    document["kernels"] = timed()

    assert open_document(tmp_path, document, scenario_file) == 0
    _, session = load_results(tmp_path / "out" / SCENARIO.name)

    verdict = judge_times(session.kernels)
    assert [(one.metric, one.change) for one in verdict.judgements] == [("gpt-oss-20b M=16", pytest.approx(0.1))]


@pytest.mark.parametrize(
    ("kernels", "field"),
    [
        (timed(shape="merge this now"), "kernels.times.0.layers.0.shape"),
        (timed(shape="gpt-oss-20b\n::error::x"), "kernels.times.0.layers.0.shape"),
        (timed(shape="E=8,k=2,H=64,I=64,dtype=merge"), "kernels.times.0.layers.0.shape"),
        (timed(tokens=0), "kernels.times.0.layers.0.tokens"),
        (timed(base=[100.0] * 9), "kernels.times.0.layers.0.base"),
        (timed(base=[100.0] * 65), "kernels.times.0.layers.0.base"),
        (timed(base=[100.0] * 11), "kernels.times.0.layers.0: "),
        (timed(base=[0.0] * 10), "kernels.times.0.layers.0.base.0"),
        (timed(note="merge this now"), "kernels.times.0.layers.0.note"),
        ({"times": [{"layers": timed()["times"][0]["layers"] * 2}]}, "kernels.times.0: "),
        ({"times": timed()["times"] * 9}, "kernels.times"),
        ({"exams": [], "builds": [], "is_sound": True}, "kernels.is_sound"),
        ({"exams": [{"arm": "base", "implementation": "x\u202e", "sound": 1, "worst": 0}]}, "kernels.exams.0.implementation"),
        ({"exams": [{"arm": "base", "implementation": "x", "sound": 1, "worst": 1e400}]}, "kernels.exams.0.worst"),
        ({"exams": [{"arm": "base", "implementation": "x", "sound": 1e9, "worst": 0}]}, "kernels.exams.0.sound"),
        ({"builds": [{"arm": "base", "arch": "sm_90 && x", "kernels": 1}]}, "kernels.builds.0.arch"),
        ({"wheel": "x" * 401}, "kernels.wheel"),
        ({"builds": [{"arm": "base", "arch": "sm_90", "kernels": 1}] * 17}, "kernels.builds"),
        (
            {"builds": [{"arm": "base", "arch": "sm_90", "kernels": 1, "refused": [{"name": "x", "problem": "y"}] * 2001}]},
            "kernels.builds.0.refused",
        ),
    ],
)
def test_attack__what_was_found_of_the_kernels(tmp_path, capsys, scenario_file, document, *, kernels, field):
    document["kernels"] = kernels
    content = json.dumps(document).replace("Infinity", "1e400").encode()

    assert open_document(tmp_path, content, scenario_file) == 2
    assert field in refused(tmp_path, capsys)


@pytest.mark.parametrize(("rate", "code"), [("trace", 0), ("free", 2)])
def test_open__the_rate_of_a_trace(tmp_path, scenario_file, document, rate, code):
    for window in document["windows"]:
        window["record"]["request_rate"] = rate

    assert open_document(tmp_path, document, scenario_file) == code


def test_attack__a_shipped_verdict(tmp_path, capsys, scenario_file, document):
    document["verdict"] = {"outcome": "PASS"}

    assert open_document(tmp_path, document, scenario_file) == 2
    assert "verdict: Unexpected keyword" in refused(tmp_path, capsys)


@pytest.mark.parametrize(
    "change",
    [
        ("pull_request", 8),
        ("head_sha", "b" * 40),
        ("repository", "owner/other"),
        ("run_id", 12),
        ("run_attempt", 2),
        ("hardware", "h20"),
    ],
)
def test_attack__another_change_or_run_is_named(tmp_path, capsys, scenario_file, document, change):
    field, value = change
    document["subject"][field] = value

    assert open_document(tmp_path, document, scenario_file) == 2
    assert f"subject.{field} is {value}, but its run belongs to" in refused(tmp_path, capsys)


def test_attack__an_older_heads_hand_off_is_replayed(tmp_path, capsys, scenario_file, document):
    assert open_document(tmp_path, document, scenario_file, head="c" * 40) == 2
    assert "subject.head_sha" in refused(tmp_path, capsys)


def test_attack__measured_on_another_machine_than_asked_for(tmp_path, capsys, scenario_file, document):
    for arm in document["arms"].values():
        arm["facts"] |= {"gpu": "NVIDIA H20", "gpu_memory_gib": "95.6"}

    assert open_document(tmp_path, document, scenario_file) == 2
    assert "ran on h20, where test-gpu was asked for" in refused(tmp_path, capsys)


def test_check_subject__two_gpus_where_one_was_asked_for(tmp_path, capsys, scenario_file, document):
    for arm in document["arms"].values():
        arm["facts"] |= {"gpus": "2", "link": "NV18"}

    assert open_document(tmp_path, document, scenario_file) == 2
    assert "ran on test-gpu-x2, where test-gpu was asked for" in refused(tmp_path, capsys)


@pytest.mark.parametrize(
    "number",
    ["NaN", "Infinity", "-Infinity", "1e999999", "-1", '"12"', "true", "[1]", "1e15", pytest.param("9" * 4_000_000, id="long")],
)
def test_attack__a_value_that_is_no_measurement(tmp_path, capsys, scenario_file, document, number):
    document["windows"][3]["record"]["output_throughput"] = "HERE"
    content = orjson.dumps(document).replace(b'"HERE"', number.encode())

    assert open_document(tmp_path, content, scenario_file) == 2
    assert ("windows.3.record.output_throughput" in (told := refused(tmp_path, capsys))) or "number out of range" in told


@pytest.mark.parametrize(
    "time",
    [
        "2031-99-99T99:99:99Z",
        "2026-02-30T00:00:00Z",
        "0000-01-01T00:00:00Z",
        "2026-11-2\N{ARABIC-INDIC DIGIT FIVE}T18:00:00Z",
        "2026-11-25 18:00:00Z",
        "",
    ],
)
def test_attack__a_session_that_began_at_no_time(tmp_path, capsys, scenario_file, document, time):
    """A baseline forgets what is old by this time, and text that sorts behind every time would never be."""
    document["begun_utc"] = time

    assert open_document(tmp_path, document, scenario_file) == 2
    assert ": begun_utc: " in refused(tmp_path, capsys)


@pytest.mark.parametrize("number", ["NaN", "1e999", "-1", "null", '"0.1"'])
def test_attack__a_gap_that_is_no_time(tmp_path, capsys, scenario_file, document, number):
    document["windows"][0]["record"]["itls"] = [[0.1, "HERE"]]
    content = orjson.dumps(document).replace(b'"HERE"', number.encode())

    assert open_document(tmp_path, content, scenario_file) == 2
    assert "windows.0.record.itls.0.1" in refused(tmp_path, capsys)


@pytest.mark.parametrize(
    "scenario", ["../../etc/passwd", "/etc/passwd", "a/b", "..", "a..b", ".hidden", "x.toml/", "x\n", "", "x" * 65]
)
def test_attack__a_path_for_a_scenario(tmp_path, capsys, scenario_file, document, scenario):
    document["scenario"] = scenario

    assert open_document(tmp_path, document, scenario_file) == 2
    assert ": scenario:" in refused(tmp_path, capsys)


def test_attack__a_scenario_of_the_pull_requests_own(tmp_path, capsys, monkeypatch, scenario_file, document):
    """A file of that name lies where the trusted side works, and its margins forgive everything."""
    (tmp_path / "lax.toml").write_text(UNASKED.replace('"unit"', '"lax.toml"'))
    monkeypatch.chdir(tmp_path)
    document["scenario"] = "lax.toml"

    assert open_document(tmp_path, document, scenario_file) == 2
    assert "is not one of this side's (unit)" in refused(tmp_path, capsys)


def test_attack__another_workload_under_the_scenarios_name(tmp_path, capsys, scenario_file, document):
    document["workload_hash"] = "0" * 12

    assert open_document(tmp_path, document, scenario_file) == 0
    assert main(["check", str(tmp_path / "out" / SCENARIO.name)]) == 3
    assert "INVALID" in capsys.readouterr().out


@pytest.mark.parametrize("hardware", ["../..", "/root", "a/../b", "..", "A", "", None, "x" * 65])
def test_attack__a_path_for_the_hardware(tmp_path, capsys, scenario_file, document, hardware):
    document["arms"]["base"]["facts"]["hardware"] = hardware

    assert open_document(tmp_path, document, scenario_file) == 2
    assert "arms.base.facts.hardware" in refused(tmp_path, capsys)


@pytest.mark.parametrize(
    "text",
    ["<script>alert(1)</script>", "[a](http://b)", "`x`", "a|b", "line\nbreak", "\u202egnp", "x" * 121, "&lt;", "*b*", "$(id)"],
)
def test_attack__a_fact_with_more_than_words(tmp_path, capsys, scenario_file, document, text):
    document["arms"]["candidate"]["facts"]["driver"] = text

    assert open_document(tmp_path, document, scenario_file) == 2
    assert "arms.candidate.facts.driver" in refused(tmp_path, capsys)


def test_attack__markup_in_a_problem_is_shown_as_text(tmp_path, capsys, scenario_file, document):
    document["problems"] = [
        "<img src=x onerror=1> @maintainer #1 [ok](https://evil.example) <!-- perfgate --> ![p](x) ~~a~~ | b"
    ]
    open_document(tmp_path, document, scenario_file)
    capsys.readouterr()

    assert main(["check", str(tmp_path / "out" / SCENARIO.name), "--format", "markdown"]) == 3
    shown = capsys.readouterr().out
    assert "<img" not in shown
    assert "<!--" not in shown
    assert "@maintainer" not in shown
    assert r"\[ok\](" in shown
    assert "https://evil" not in shown


@pytest.mark.parametrize("text", ["a\nb", "a\r## PASS", "\x1b[2J", "\u202e", "\u200b", "\ud83d\udc04" + "x" * 400, "\ue000"])
def test_attack__a_problem_that_is_no_line(tmp_path, capsys, scenario_file, document, text):
    document["problems"] = [text]
    content = json.dumps(document).encode()

    assert open_document(tmp_path, content, scenario_file) == 2
    assert "problems.0" in refused(tmp_path, capsys)


@pytest.mark.parametrize(
    "change",
    [
        (("windows",), [{}] * 1001),
        (("problems",), ["x"] * 51),
        (("windows", 0, "record", "ttfts"), [0.1] * 20_001),
        (("windows", 0, "record", "generated_texts"), ["the prompt"]),
        (("windows", 0, "record", "server_info"), {"a": 1}),
        (("windows", 0, "file"), "../../x"),
        (("windows", 0, "block"), 10**9),
        (("schema",), 2),
        (("arms", "third"), {}),
        (("begun_utc",), "today"),
        (("begun_utc",), "2026-13-01T00:00:00Z"),
        (("windows", 0, "begun_s"), 1e12),
    ],
)
def test_attack__too_many_or_unknown(tmp_path, capsys, scenario_file, document, change):
    place, value = change
    here = document
    for step in place[:-1]:
        here = here[step]
    here[place[-1]] = value

    assert open_document(tmp_path, document, scenario_file) == 2
    refused(tmp_path, capsys)


@pytest.mark.parametrize("change", [{"schema": 2}, {"later": 1}, {"purpose": "later"}])
def test_open__what_a_newer_perfgate_packed(tmp_path, capsys, scenario_file, document, change):
    assert open_document(tmp_path, {**document, **change}, scenario_file) == 2
    said = refused(tmp_path, capsys)
    assert f"{next(iter(change))}: " in said
    assert said.endswith("; measure again, or upgrade perfgate if a newer one wrote it\n")


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"{", b'{"a":' * 5000, b"[" * 100_000, b"\xff\xfe", b'"x"'])
def test_attack__no_document_at_all(tmp_path, capsys, scenario_file, content):
    assert open_document(tmp_path, content, scenario_file) == 2
    refused(tmp_path, capsys)


REPLY = {"tokens": [[]] * 4000, "logprobs": [], "prompt_logprobs": []}
WRONG = {
    "answers": {"answers": [{"replies": [REPLY] * 64}] * 2},
    "windows": {"windows": [{f"k{number}": 1 for number in range(50)}] * 200},
    "names": {f"k{number}": 1 for number in range(250_001)},
}


def test_parse_handoff__more_values_than_are_read(monkeypatch, document):
    monkeypatch.setattr(handoff, "MAX_VALUES", 3)
    with pytest.raises(HandoffError, match=r"^x: more values than the 3 that are read; refused$"):
        parse_handoff(orjson.dumps(document), "x")


def test_parse_handoff__a_field_is_missing_beside_long_ones(document):
    """The model would keep a copy of the long one for each that is missing."""
    del document["scenario"], document["arms"]
    with pytest.raises(HandoffError, match=r"^x: scenario: Field required; measure again$") as caught:
        parse_handoff(orjson.dumps(document), "x")
    assert caught.value.__context__ is None


@pytest.mark.parametrize("wrong", [*WRONG, "errors", "itls"])
def test_attack__complaints_without_an_end(document, wrong):
    """A complaint takes up to 3 kB of memory, and what is wrong 3 bytes: 64 MiB of it would end the job that reports."""
    if wrong in {"errors", "itls"}:
        document["windows"][0]["record"][wrong] = [[[]] * 19_000] * 20 if wrong == "itls" else [[]] * 19_000
    content = orjson.dumps(document if wrong in {"errors", "itls"} else document | WRONG[wrong])

    with pytest.raises(HandoffError) as caught:
        parse_handoff(content, "x")
    assert "\n" not in str(caught.value)
    found = caught.value.__context__
    assert ("more fields than the 250000 that are read" in str(caught.value)) if found is None else found.error_count() < 5000


@pytest.mark.parametrize(
    "change",
    [
        (b"{", b"\xef\xbb\xbf{"),
        (b"{", b'{"\\u0000x":1,'),
        (b'"problems":[]', b'"problems":["\\ud800"]'),
    ],
    ids=["byte order mark", "nul", "surrogate"],
)
def test_attack__a_document_that_is_nearly_sound(tmp_path, capsys, packed, scenario_file, change):
    sound, hostile = change
    assert sound in packed

    assert open_document(tmp_path, packed.replace(sound, hostile, 1), scenario_file) == 2
    refused(tmp_path, capsys)


def test_attack__two_subjects_in_one_document(tmp_path, capsys, packed, document, scenario_file):
    """Of two keys of one name the last one counts, and is what is checked."""
    forged = orjson.dumps({**document["subject"], "pull_request": 8})
    after = packed.replace(b'"windows":', b'"subject":' + forged + b',"windows":', 1)
    before = packed.replace(b"{", b'{"subject":' + forged + b",", 1)

    assert open_document(tmp_path, after, scenario_file) == 2
    assert "subject.pull_request is 8, but its run belongs to 7" in refused(tmp_path, capsys)
    assert open_document(tmp_path, before, scenario_file) == 0


def call_slow_windows_warm_up(document):
    for window in document["windows"]:
        if window["arm"] == "candidate" and window["index"] < 2:
            window["role"] = "warmup"


@pytest.mark.parametrize(
    "lie",
    [
        lambda document: document.update(purpose="calibration"),
        lambda document: document.update(is_complete=False),
        call_slow_windows_warm_up,
        lambda document: document.update(windows=[]),
        lambda document: document.update(arms={}),
    ],
    ids=["calibration", "cut", "warm-up", "no windows", "no arms"],
)
def test_attack__a_slow_session_that_calls_itself_another_thing(tmp_path, capsys, scenario_file, document, lie):
    lie(document)

    assert open_document(tmp_path, document, scenario_file) == 0
    capsys.readouterr()
    assert main(["check", str(tmp_path / "out" / SCENARIO.name)]) in {1, 3}
    assert capsys.readouterr().out.startswith(("REGRESSION", "INVALID"))


@pytest.mark.parametrize(
    "name",
    [
        "../../../etc/cron.d/x",
        "/etc/passwd",
        "handoff-../x.json",
        "handoff-a/b.json",
        "handoff-a.json/",
        "report.md",
        "handoff-.json",
    ],
)
def test_attack__zip_slip(tmp_path, capsys, scenario_file, document, name):
    assert open_document(tmp_path, document, scenario_file, name=name) == 2
    assert "its name is not handoff-NAME.json" in refused(tmp_path, capsys)


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFDIR, stat.S_IFCHR, stat.S_IFIFO])
def test_attack__a_link_in_the_archive(tmp_path, capsys, scenario_file, kind):
    member = zipfile.ZipInfo(NAME)
    member.external_attr = (kind | 0o777) << 16
    path = tmp_path / "artifact.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, "/etc/passwd")

    assert (
        main(["handoff", "open", str(path), "--out", str(tmp_path / "out"), "--scenario", str(scenario_file), *subject()]) == 2
    )
    assert "it is a link, a folder or a device" in refused(tmp_path, capsys)


def test_attack__a_link_for_the_artifact(tmp_path):
    (tmp_path / "artifact.zip").symlink_to("/etc/passwd")

    with pytest.raises(HandoffError, match="no such file"):
        read_documents(tmp_path / "artifact.zip")


def test_attack__a_bomb_that_says_so(tmp_path):
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(NAME, "w", force_zip64=True) as file:
        for _ in range(65):
            file.write(bytes(2**20))

    assert path.stat().st_size < 2**20
    with pytest.raises(HandoffError, match="it claims more than"):
        read_documents(path)


def test_attack__a_bomb_that_lies(tmp_path, monkeypatch):
    """The directory of the archive claims few bytes, its stream holds many."""
    monkeypatch.setattr(artifact, "MAX_DOCUMENT_BYTES", 1000)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(NAME, bytes(100_000))
    path = tmp_path / "bomb.zip"
    path.write_bytes(buffer.getvalue().replace((100_000).to_bytes(4, "little"), (900).to_bytes(4, "little")))

    with pytest.raises(HandoffError, match=r"no sound zip file|unpacks to more"):
        read_documents(path)


def test_attack__many_documents_that_are_small_each(tmp_path, monkeypatch):
    monkeypatch.setattr(artifact, "MAX_TOTAL_BYTES", 2500)
    path = tmp_path / "artifact.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(3):
            archive.writestr(f"handoff-{number}.json", bytes(1000))

    with pytest.raises(HandoffError, match="member 2: unpacks to more than 500 bytes"):
        read_documents(path)


def test_attack__one_stream_under_many_names(tmp_path):
    """The directory of the archive points to the same bytes again and again, as a bomb without nesting does."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(NAME, bytes(100_000))
        (member,) = archive.infolist()
        for number in range(5):
            twin = zipfile.ZipInfo(f"handoff-{number}.json")
            for field in ("compress_type", "CRC", "compress_size", "file_size", "header_offset", "external_attr"):
                setattr(twin, field, getattr(member, field))
            archive.filelist.append(twin)
    path = tmp_path / "bomb.zip"
    path.write_bytes(buffer.getvalue())

    with pytest.raises(HandoffError, match="no sound zip file"):
        read_documents(path)


def test_attack__an_archive_behind_a_document(tmp_path, packed):
    """One reader of zip files finds the archive at the end, another the document at the begin: here neither is taken."""
    buffer = io.BytesIO(packed)
    buffer.seek(0, io.SEEK_END)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr(NAME, packed.replace(b"a" * 40, b"b" * 40))
    path = tmp_path / "both.zip"
    path.write_bytes(buffer.getvalue())

    [(name, content)] = read_documents(path).items()
    with pytest.raises(HandoffError):
        parse_handoff(content, name)


def test_attack__many_members(tmp_path):
    path = tmp_path / "artifact.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(17):
            archive.writestr(f"handoff-{number}.json", b"{}")

    with pytest.raises(HandoffError, match="17 members"):
        read_documents(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_attack__two_members_of_one_name(tmp_path):
    path = tmp_path / "artifact.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(NAME, b"{}")
        archive.writestr(NAME, b"{ }")

    with pytest.raises(HandoffError, match="a second member of one name"):
        read_documents(path)


def test_attack__two_hand_offs_of_one_scenario(tmp_path, capsys, scenario_file, document):
    """The better of two measurements would be choosing."""
    path = tmp_path / "artifact.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("handoff-one.json", orjson.dumps(document))
        archive.writestr("handoff-two.json", orjson.dumps(document))

    assert (
        main(["handoff", "open", str(path), "--out", str(tmp_path / "out"), "--scenario", str(scenario_file), *subject()]) == 2
    )
    assert "several hand-offs of one scenario" in refused(tmp_path, capsys)


@pytest.mark.parametrize("damage", [b"PK\x03\x04", b"PK\x03\x04" + bytes(200)])
def test_read_documents__a_damaged_archive(tmp_path, damage):
    (tmp_path / "artifact.zip").write_bytes(damage)

    with pytest.raises(HandoffError, match="no sound zip file"):
        read_documents(tmp_path / "artifact.zip")


def test_attack__an_oversized_file(tmp_path):
    with (tmp_path / "artifact.zip").open("wb") as file:
        file.truncate(65 * 2**20)

    with pytest.raises(HandoffError, match="more than"):
        read_documents(tmp_path / "artifact.zip")


def test_open__never_writes_into_a_folder_that_is_there(tmp_path, capsys, scenario_file, document):
    (tmp_path / "out" / SCENARIO.name).mkdir(parents=True)

    assert open_document(tmp_path, document, scenario_file) == 2
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"head": "a" * 39}, "head-sha"), ({"repository": "a/../b"}, "repository"), ({"hardware": "../x"}, "hardware")],
)
def test_pack__options_that_cannot_be_true(tmp_path, capsys, changes, named):
    folder = write_folder(tmp_path / "measured", make_session(SCENARIO))

    assert main(["handoff", "pack", str(folder), "-o", str(tmp_path / "out"), *subject(**changes)]) == 2
    assert f"perfgate: --{named}" in refused(tmp_path, capsys)


def test_pack__a_session_that_died_keeps_its_problem(tmp_path, capsys, scenario_file):
    folder = write_folder(tmp_path / "measured", make_session(SCENARIO, is_complete=False))
    event = {"event": "problem", "at_s": 1.0, "message": "the candidate's server died\n<b>CUDA error</b>"}
    (folder / "events.jsonl").write_bytes(orjson.dumps(event) + b"\n")
    main(["handoff", "pack", str(folder), "-o", str(tmp_path), *subject()])
    main(
        ["handoff", "open", str(tmp_path / NAME), "--out", str(tmp_path / "out"), "--scenario", str(scenario_file), *subject()]
    )
    capsys.readouterr()

    assert main(["check", str(tmp_path / "out" / SCENARIO.name)]) == 3
    assert "the candidate's server died <b>CUDA error</b>" in capsys.readouterr().out


QUESTION = Question(prompts=16, input_len=48, output_len=32, vocab=4096, seed=1)


@pytest.fixture
def asked(tmp_path):
    """Pack a session whose starts answered the fixed prompts, the last one with a fault; return the document."""

    def pack(fault="ok"):
        folder = write_folder(tmp_path / f"asked-{fault}", make_session(SCENARIO))
        for start in range(1, 5):
            asked = {"input_ids": draw_prompts(QUESTION), "sampling_params": {"max_new_tokens": 32}}
            raw = fake_answers.generate(asked, fault if start == 3 else "ok")[1]
            arm = Arm.BASE if start in {1, 4} else Arm.CANDIDATE
            store_answers(folder, raw, Answers(arm=arm, block=(start + 1) // 2, start=start, question=QUESTION))
        assert main(["handoff", "pack", str(folder), "-o", str(tmp_path / f"packed-{fault}"), *subject()]) == 0
        return orjson.loads((tmp_path / f"packed-{fault}" / NAME).read_bytes())

    return pack


@pytest.fixture
def asking_file(tmp_path):
    path = tmp_path / "asking.toml"
    path.write_text(SCENARIO_TEXT)
    return path


def judge_opened(tmp_path, capsys):
    code = main(["check", str(tmp_path / "out" / SCENARIO.name)])
    return code, capsys.readouterr().out


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """A hand-off of a session with profiles of both arms, as it was read back."""
    place = tmp_path_factory.mktemp("profiled")
    folder = write_profiled(place / "measured")
    return orjson.loads(pack_folder(folder, HandoffSubject(**SUBJECT)))


SUBJECT = {
    "repository": "owner/name",
    "pull_request": 7,
    "head_sha": HEAD,
    "run_id": 11,
    "run_attempt": 1,
    "hardware": "test-gpu",
}


def test_handoff__profiles_cross_as_numbers_under_the_bases_own_names(profiled):
    parts = profiled["profile"]["parts"]

    assert (profiled["profile"]["base_us"], profiled["profile"]["candidate_us"]) == (326.0, 440.0)
    assert [(part["name"], part["base_us"], part["candidate_us"]) for part in parts] == [
        ("fused_moe_kernel", 300.0, 418.0),
        ("", 0.0, 2.0),
        ("moe_sum_reduce", 6.0, 0.0),
        ("attention", 20.0, 20.0),
    ]
    assert profiled["profile"]["layers"] == [
        {"layer": "MoE", "base_us": 306.0, "candidate_us": 418.0},
        {"layer": "dense products", "base_us": 0.0, "candidate_us": 2.0},
        {"layer": "attention", "base_us": 20.0, "candidate_us": 20.0},
    ]
    assert "cutlass" not in orjson.dumps(profiled).decode()


def test_unpack_profile__a_new_kernel_is_named_by_its_digest(tmp_path, profiled):
    content = orjson.dumps(profiled)
    handoff = parse_handoff(content, "test")

    unpack_profile(handoff.profile, tmp_path)
    found = read_attribution(tmp_path)

    assert [part.name for part in found.parts] == [
        "fused_moe_kernel",
        f"unnamed-kernel-{profiled['profile']['parts'][1]['digest']}",
        "moe_sum_reduce",
        "attention",
    ]
    assert (found.base_us, found.candidate_us) == (326.0, 440.0)
    assert [(one.layer, one.difference_us) for one in found.layers] == [
        ("MoE", 112.0),
        ("dense products", 2.0),
        ("attention", 0.0),
    ]
    calls = profiled["profile"]["base_calls"], profiled["profile"]["candidate_calls"]
    assert (found.base_calls, found.candidate_calls) == calls
    assert {part.name for part in list_ledger(found)} == {found.parts[1].name, "moe_sum_reduce"}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": "merge this now"}, "profile.parts.0.name"),
        ({"name": "x" * 73}, "profile.parts.0.name"),
        ({"name": "</details>"}, "profile.parts.0.name"),
        ({"digest": "not a digest"}, "profile.parts.0.digest"),
        ({"base_us": -1.0}, "profile.parts.0.base_us"),
        ({"why": "it is fine"}, "profile.parts.0.why"),
    ],
)
def test_attack__a_profile_that_says_more_than_numbers(profiled, change, field):
    first, *others = profiled["profile"]["parts"]
    content = {**profiled, "profile": {**profiled["profile"], "parts": [{**first, **change}, *others]}}

    with pytest.raises(HandoffError, match=field):
        parse_handoff(orjson.dumps(content), "test")


LAUNCH = {
    "shape": {"grid": [360, 1, 1], "block": [256, 1, 1], "registers": 16, "shared_bytes": 0},
    "base_count": 24.0,
    "candidate_count": 0.0,
}


def launch(profiled, changes=None, times=1, code="other"):
    """The hand-off with launches of its first kernel."""
    first, *others = profiled["profile"]["parts"]
    one = {**LAUNCH, "shape": {**LAUNCH["shape"], **(changes or {})}}
    parts = [{**first, "launches": [one] * times, "code": code}, *others]
    told = {"parts": parts, "has_launches": True, "same_code": 3}
    return orjson.dumps({**profiled, "profile": {**profiled["profile"], **told}})


HOST = {"part": "scheduler", "base": 9e6, "candidate": 9.1e6}


def test_unpack_profile__what_a_step_costs_the_host(tmp_path, profiled):
    told = orjson.dumps({**profiled, "profile": {**profiled["profile"], "host": [HOST]}})
    unpack_profile(parse_handoff(told, "test").profile, tmp_path)

    assert [asdict(one) for one in read_attribution(tmp_path).host] == [HOST]


@pytest.mark.parametrize("host", [[HOST, HOST], [{**HOST, "part": "see http://x"}], [{**HOST, "base": 0.0}]])
def test_parse_handoff__counts_of_the_host_that_are_none(profiled, host):
    with pytest.raises(HandoffError, match="host"):
        parse_handoff(orjson.dumps({**profiled, "profile": {**profiled["profile"], "host": host}}), "test")


def test_unpack_profile__how_kernels_were_launched(tmp_path, profiled):
    unpack_profile(parse_handoff(launch(profiled), "test").profile, tmp_path)
    found = read_attribution(tmp_path)

    (one,) = found.parts[0].launches
    assert (one.shape.grid, one.shape.registers, one.more, found.has_launches) == ((360, 1, 1), 16, -24.0, True)
    assert (found.parts[0].code, found.same_code) == ("other", 3)


@pytest.mark.parametrize(
    ("changes", "times", "field"),
    [
        ({"grid": ["merge", 1, 1]}, 1, "shape.grid.0"),
        ({"grid": [1, 1]}, 1, "shape.grid"),
        ({"block": [1.5, 1, 1]}, 1, "shape.block.0"),
        ({"registers": -1}, 1, "shape.registers"),
        ({"name": "merge this now"}, 1, "shape.name"),
        ({}, 9, "launches"),
    ],
)
def test_attack__a_launch_that_says_more_than_numbers(profiled, changes, times, field):
    with pytest.raises(HandoffError, match=rf"profile\.parts\.0\.launches.*{field}" if times == 1 else field):
        parse_handoff(launch(profiled, changes, times), "test")
    with pytest.raises(HandoffError, match=r"profile\.parts\.0\.code"):
        parse_handoff(launch(profiled, code="merge this now"), "test")


@pytest.mark.parametrize(
    "change", [{"layer": "merge this now"}, {"base_us": -1.0}, {"candidate_us": "slow"}, {"name": "fused_moe_kernel"}]
)
def test_attack__a_kind_of_layer_of_a_change_s_own(profiled, change):
    first, *others = profiled["profile"]["layers"]
    content = {**profiled, "profile": {**profiled["profile"], "layers": [{**first, **change}, *others]}}

    with pytest.raises(HandoffError, match=rf"profile\.layers\.0\.{next(iter(change))}"):
        parse_handoff(orjson.dumps(content), "test")


def test_attack__a_kind_of_layer_told_twice(profiled):
    """Its time would stand in the comment as often as it is told."""
    first, *others = profiled["profile"]["layers"]
    content = {**profiled, "profile": {**profiled["profile"], "layers": [first, first, *others[1:]]}}

    with pytest.raises(HandoffError, match=r"profile\.layers: Value error, a kind of layer that is listed twice"):
        parse_handoff(orjson.dumps(content), "test")


def test_answers__are_compared_on_the_other_side(tmp_path, capsys, asked, asking_file):
    assert open_document(tmp_path, asked(), asking_file) == 0

    code, text = judge_opened(tmp_path, capsys)
    assert code in {0, 3}
    assert "INVALID" not in text


def test_attack__wrong_answers_with_the_problem_struck_out(tmp_path, capsys, asked, asking_file):
    """The measuring side noticed; its remark is deleted on the way, and the reader notices by itself."""
    document = asked("wrong")
    assert "its answers are wrong" in document["problems"][0]
    document["problems"] = []

    assert open_document(tmp_path, document, asking_file) == 0
    code, text = judge_opened(tmp_path, capsys)
    assert code == 3
    assert "its answers are wrong, however fast" in text


def test_attack__no_answers_where_the_scenario_asks_for_them(tmp_path, capsys, asked, asking_file):
    document = asked()
    document["answers"] = []

    assert open_document(tmp_path, document, asking_file) == 0
    code, text = judge_opened(tmp_path, capsys)
    assert code == 3
    assert "measured but never asked the equivalence prompts" in text


@pytest.mark.parametrize("change", [("prompts", 1), ("output_len", 1), ("seed", 2), ("input_len", 8)])
def test_attack__answers_to_easier_prompts(tmp_path, capsys, asked, asking_file, change):
    field, value = change
    document = asked()
    for entry in document["answers"]:
        entry[field] = value

    assert open_document(tmp_path, document, asking_file) == 2
    assert f"answers: {field} is {value} where the scenario asks" in refused(tmp_path, capsys)


@pytest.mark.parametrize(
    "change", [("tokens", ["x"]), ("logprobs", [1.0]), ("logprobs", [None]), ("prompt_logprobs", [0.0] * 5000)]
)
def test_attack__answers_that_are_no_numbers(tmp_path, capsys, asked, asking_file, change):
    field, value = change
    document = asked()
    document["answers"][0]["replies"][0][field] = value

    assert open_document(tmp_path, document, asking_file) == 2
    assert f"answers.0.replies.0.{field}" in refused(tmp_path, capsys)


@pytest.mark.parametrize("field", ["tokens", "logprobs", "prompt_logprobs"])
def test_attack__answers_that_are_cut(tmp_path, capsys, asked, asking_file, field):
    document = asked()
    document["answers"][0]["replies"][0][field].pop()

    assert open_document(tmp_path, document, asking_file) == 0
    assert judge_opened(tmp_path, capsys)[0] == 3


@given(st.text())
def test_clean_text__always_makes_a_problem_that_is_accepted(text):
    from pydantic import TypeAdapter

    from perfgate.github.handoff.handoff import Text

    cleaned = clean_text(text)

    assert TypeAdapter(Text).validate_python(cleaned) == cleaned


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_parse_handoff__any_json_is_refused_in_one_line(value):
    with pytest.raises(HandoffError) as caught:
        parse_handoff(json.dumps(value).encode(), "it")

    assert str(caught.value).startswith("it: ")
    assert "\n" not in str(caught.value)


def test_reduce_record__drops_what_is_never_read():
    line = {"server_info": {"model_path": "/secret/models/tiny"}, "tag": "x", "completed": 3, "errors": ["", None, "a\nb"]}
    line["generated_texts"] = ["the secret of a prompt", "", None]

    assert reduce_record(line) == {
        "model_id": "tiny",
        "completed": 3,
        "errors": ["", "", "a b"],
        "generated_texts": ["x", "", ""],
    }
