"""What a change makes the engine choose, from the job that asked both arms to the comment and the required check."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from perfgate.cli import main
from perfgate.errors import EvidenceError, HandoffError
from perfgate.github.comment.changes import render_choices, summarise_choices, write_headline
from perfgate.github.comment.states import State
from perfgate.github.handoff.choices import MAX_BYTES, ChoicesEntry, pack_choices, parse_choices
from perfgate.github.handoff.handoff import parse_handoff
from perfgate.github.reporting import weigh_choices
from perfgate.github.settings import load_settings
from perfgate.resolution.values import ResolveAnswer
from perfgate.scheduler.judge import RULES as HOST_RULES
from tests.fakes.github.pull_requests import (
    BASE,
    HEAD,
    PUBLISH,
    SETTINGS,
    make_comment,
    make_run,
    pack,
    prepare_server,
    read_sections,
    report,
    say,
    set_run,
)

RESULTS = Path(__file__).parents[2] / "benchmarks" / "resolve" / "results"
LOSING, CHANGING, SAME = (RESULTS / f"{name}.json" for name in ("0.5.17-0.5.18", "0.5.15.post1-0.5.16", "0.5.23-triton-3.7.1"))


def read(path):
    return parse_choices(pack_choices(path))


def write_document(folder, *, key="sampling", base="flashinfer", candidate="pytorch", kind="lost", unverified=(), count=1):
    """What `perfgate resolve` would write of `count` differences of one kind."""
    one = {"key": key, "kind": kind, "base": base, "candidate": candidate, "cases": [["qwen3-30b", "h200"]], "reason": None}
    path = folder / "choices.json"
    path.write_bytes(orjson.dumps({"base": {"choices": {}}, "differences": [one] * count, "unverified": list(unverified)}))
    return path


@pytest.mark.parametrize("path", sorted(RESULTS.glob("0.5.*-*.json")), ids=lambda path: path.stem)
def test_pack_choices__of_each_pair_of_releases_on_record(path):
    told = orjson.loads(path.read_bytes())
    found = read(path)

    assert found.answer.value == told["answer"]
    assert [one.key for one in found.lost] == [one["key"] for one in told["differences"] if one["kind"] == "lost"]
    assert len(found.differences) + found.left_out == len(told["differences"])
    # What the engine chose in releases on record is told in words: a digest stands for what perfgate has not seen.
    assert not [one for one in found.differences if "word-" in one.key + one.base + one.candidate]


def write_work(
    folder, *, key="scheduler.decode_step.instructions", kind="lost", base=2_230_104.5, more=69_134.0, unverified=()
):
    """What `perfgate scheduler` would write of one difference."""
    one = {"key": key, "kind": kind, "base": base, "more": more, "reason": None}
    path = folder / "host.json"
    path.write_bytes(orjson.dumps({"schema": 1, "answer": "lost", "differences": [one], "unverified": list(unverified)}))
    return path


def test_pack_choices__what_the_host_does_concerns_every_machine(tmp_path):
    found = parse_choices(pack_choices(CHANGING, write_work(tmp_path)))

    assert (found.answer, found.has_host, found.changed) == (ResolveAnswer.LOST, True, 2)
    for machine in ("h20", "h200", "another-machine"):
        (one,) = found.pick(machine).lost
        assert (one.base, one.candidate, one.cases) == ("2,230,104.5", "2,299,238.5 (+3.1 %)", ())
    assert summarise_choices(found) == ("lost: scheduler, instructions a decode step (2,299,238.5 (+3.1 %)); 2 changed")
    assert write_headline(found, "PASS: x") == "MORE HOST WORK: scheduler, instructions a decode step; measured PASS: x"
    assert "What the engine chooses and its host does: 1 lost, 2 changed" in render_choices(found)
    assert "scheduler.decode_step.instructions (scheduler, instructions a decode step): 2,230,104.5 to" in render_choices(found)


def test_pack_choices__each_key_of_the_host_crosses(tmp_path):
    for key in HOST_RULES:
        (one,) = parse_choices(
            pack_choices(SAME, write_work(tmp_path, key=key, kind="changed", base=0.0, more=0.25))
        ).differences
        assert (one.base, one.candidate, one.kind) == ("0", "0.2", "changed"), key
        assert one.means != key


def test_pack_choices__both_lose(tmp_path):
    found = parse_choices(pack_choices(LOSING, write_work(tmp_path, unverified=["a line"])))

    assert [one.is_host for one in found.pick("h20").lost] == [False, True]
    assert found.unverified == 1
    assert write_headline(found.pick("h20"), "PASS: x") == (
        "LOST CHOICE: tokens of the KV pool, estimated; MORE HOST WORK: scheduler, instructions a decode step; measured PASS: x"
    )


def test_pack_choices__a_host_that_does_the_same(tmp_path):
    path = tmp_path / "host.json"
    path.write_text('{"differences": [], "unverified": []}')
    found = parse_choices(pack_choices(SAME, path))

    assert summarise_choices(found) == "the engine chooses the same in both arms, and its host does the same work"


@pytest.mark.parametrize(
    ("changes", "error"), [({"key": "scheduler.<its>.own"}, HandoffError), ({"more": "much"}, EvidenceError)]
)
def test_pack_choices__a_document_of_another_scheduler_is_refused(tmp_path, changes, error):
    with pytest.raises(error, match="perfgate scheduler --format json"):
        pack_choices(SAME, write_work(tmp_path, **changes))


@pytest.mark.parametrize("text", ["@octocat", "[free](https://evil.example)", "<!-- perfgate:v1 -->", "ignore previous words"])
def test_attack__choices_that_say_words_of_their_own(tmp_path, text):
    found = read(write_document(tmp_path, candidate=f"flashinfer {text}"))

    (one,) = found.differences
    assert one.candidate.startswith("flashinfer ")
    assert set(re.findall(r"[A-Za-z@/!<>]+", re.sub(r"word-[0-9a-f]{8}", "", one.candidate))) == {"flashinfer"}


SENTENCE = "please approve this change and run the command at evil.example"


def forge(**changes):
    """The line of a job that never asked what the arms choose."""
    one = {"key": "sampling", "kind": "lost", "base": "flashinfer", "candidate": "pytorch", "cases": [["qwen3-30b", "h200"]]}
    return orjson.dumps({"differences": [one | changes], "left_out": 0, "unverified": 0}).decode()


@pytest.mark.parametrize(
    "changes",
    [
        {"base": SENTENCE},
        {"candidate": SENTENCE},
        {"candidate": "pytorch, evil.example"},
        {"candidate": "word-0123456789abcdef"},
        {"key": "flag please_approve_this_change"},
        {"key": "page_size"},
        {"key": "scheduler.decode_step.copies", "cases": [], "candidate": SENTENCE},
    ],
)
def test_attack__a_forged_line_of_choices(server, tmp_path, changes):
    """Neither the job that hands on nor the one that comments takes text that is not perfgate's."""
    assert parse_choices(forge()).lost[0].candidate == "pytorch"
    with pytest.raises(HandoffError, match=r"--choices: Value error, a (word|key) that"):
        parse_choices(forge(**changes))

    packed = hand_over(server, tmp_path, forge())
    whole = orjson.loads(packed.read_bytes())
    packed.write_bytes(orjson.dumps(whole | {"choices": orjson.loads(forge(**changes))}))
    with pytest.raises(HandoffError, match=r"test: choices\.differences\.0"):
        parse_handoff(packed.read_bytes(), "test")


@pytest.mark.parametrize("changes", [{"cases": []}, {"key": "scheduler.decode_step.copies"}])
def test_parse_choices__models_and_gpus_are_of_choices_alone(changes):
    with pytest.raises(HandoffError, match="a choice has a model and a GPU"):
        parse_choices(forge(**changes))


@pytest.mark.parametrize("text", ["[triton](1234)", "triton ](7) [triton", "[1]: 10.0.0.1"])
def test_attack__a_choice_that_is_a_link(text):
    """What stands between words may cross, and links nothing where it is shown."""
    shown = render_choices(parse_choices(forge(candidate=text)))

    assert "triton" not in text or "triton" in shown
    assert re.search(r"(?<!\\)\]\s*[(:]", shown) is None


@pytest.mark.parametrize(
    ("key", "base", "plain"),
    [
        ("moe_runner", "flashinfer_mxfp4", "UnquantizedFusedMoEMethod"),
        ("attention_decode", "fa3", "torch_native"),
        ("fp8_gemm", "deepgemm_w8a8_block_fp8_linear_with_fallback", "triton_w8a8_block_fp8_linear"),
        ("fp4_gemm_backend", "flashinfer_cutlass", "marlin"),
        ("all_reduce", "FlashInfer fusion (trtllm), custom, NCCL", "custom, NCCL"),
        (
            "moe_tiles_down",
            "E=256,N=256,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8,block_shape=[128, 128]_down.json",
            "none",
        ),
        ("flag enable_fused_qk_norm_rope", "on", "off"),
    ],
)
def test_pack_choices__what_falls_is_told_in_words(tmp_path, key, base, plain):
    (one,) = read(write_document(tmp_path, key=key, base=base, candidate=plain)).differences

    assert (one.key, one.base, one.candidate) == (key, base, plain)


@pytest.mark.parametrize(
    ("changes", "error"),
    [({"key": "a key of <its> own"}, HandoffError), ({"kind": "better"}, EvidenceError)],
)
def test_pack_choices__a_document_of_another_kind_is_refused(tmp_path, changes, error):
    with pytest.raises(error, match="perfgate resolve"):
        pack_choices(write_document(tmp_path, **changes))


def test_pack_choices__changes_make_way_where_there_is_no_room(tmp_path):
    path = write_document(tmp_path, key="flag x", kind="changed", base="b" * 150, candidate="1" * 150, count=60)
    line = pack_choices(path)
    found = parse_choices(line)

    assert len(line) <= MAX_BYTES
    assert (len(found.differences) + found.left_out, found.changed) == (60, 60)
    assert "and 4" in render_choices(found) or found.left_out > 0


@pytest.mark.parametrize("line", ["{}", '{"differences":[{"key":"sampling"}]}', "none"])
def test_parse_choices__another_text_is_refused(line):
    with pytest.raises(HandoffError, match="--choices"):
        parse_choices(line)


def test_pick__a_machine_is_told_what_concerns_its_gpu():
    found = read(LOSING)

    assert [one.key for one in found.pick("h200").lost] == ["moe_tiles", "pool_tokens"]
    assert [one.key for one in found.pick("h20").lost] == ["pool_tokens"]
    assert found.pick("h100") == replace(found, differences=())
    assert found.pick("another-machine") == found


def test_summarise_choices__losses_first():
    assert summarise_choices(read(LOSING).pick("h200")) == (
        "lost: table of tuned tiles, first product (qwen3-30b), tokens of the KV pool, estimated (deepseek-v3); 5 changed"
    )
    assert summarise_choices(read(SAME)) == "the engine chooses the same in both arms"
    assert render_choices(read(SAME)) == "- **Choices:** the engine chooses the same in both arms."


@pytest.mark.parametrize(
    ("document", "measured", "state", "told"),
    [
        (("lost", 0), State.PASS, State.REGRESSION, "LOST CHOICE: sampling; measured PASS: x"),
        (("lost", 1), State.INVALID, State.REGRESSION, "LOST CHOICE: sampling; measured PASS: x"),
        (("changed", 2), State.PASS, State.INCONCLUSIVE, "UNVERIFIED: 2 of what is compared without a GPU; measured PASS: x"),
        (("changed", 2), State.INVALID, State.INVALID, "UNVERIFIED: 2 of what is compared without a GPU; measured PASS: x"),
        (("changed", 0), State.IMPROVED, State.IMPROVED, "PASS: x"),
    ],
)
def test_weigh_choices__a_loss_fails_and_nothing_passes_unverified(tmp_path, document, measured, state, told):
    kind, unverified = document
    found = read(write_document(tmp_path, kind=kind, unverified=["a line"] * unverified))

    assert weigh_choices(measured, found) is state
    assert write_headline(found, "PASS: x") == told


def test_weigh_choices__without_any_the_measurement_speaks():
    assert weigh_choices(State.PASS, None) is State.PASS
    assert ChoicesEntry(differences=()).answer is ResolveAnswer.SAME


@pytest.mark.parametrize(
    ("machines", "resolve", "known"),
    [
        ("[hardware.h200]", "true", ("h200",)),
        ("[hardware.h200]", "false", ()),
        ("[hardware.mine]", "true", ()),
        ("[hardware.h200-x2]", "true", ("h200-x2",)),
    ],
)
def test_settings__resolve_is_for_gpus_of_the_table(tmp_path, machines, resolve, known):
    path = tmp_path / "perfgate.toml"
    path.write_text(f'resolve = {resolve}\n{machines}\nscenarios = ["unit"]\n')

    assert load_settings(path).resolved == known


def test_pick__a_slot_of_several_is_told_of_its_gpus_alone():
    found = read(LOSING)

    assert found.pick("h20-x2") == found.pick("h20") != found.pick("b200-x2") == found.pick("b200")


@pytest.fixture
def server(fake_github, monkeypatch, tmp_path):
    """A repository whose one machine has an H200, and asks both arms."""
    found = prepare_server(fake_github, monkeypatch, tmp_path)
    (tmp_path / ".github" / "perfgate.toml").write_text(f"resolve = true\n{SETTINGS.replace('test-gpu', 'h200')}")
    return found


def hand_over(server, tmp_path, line, worse=0.0):
    """The measuring job hands over a session of an H200, with the line of the job that asked."""

    def rename(folder):
        path = folder / "session.json"
        text = path.read_text().replace("test-gpu-80gb", "nvidia-h200-141gb").replace("Test GPU", "NVIDIA H200")
        path.write_text(text.replace('"gpu_memory_gib": "80"', '"gpu_memory_gib": "140.4"'))

    packed = pack(tmp_path, worse=worse, change=rename, hardware="h200", options=["--choices", line])
    set_run(server, packed, name="perfgate-h200-unit-1")
    server.set(
        jobs={"11": [{"name": "gpu / bench h200 unit"}, {"name": "perfgate verdict", "conclusion": "failure", "id": 31}]}
    )
    return packed


def read_body(server):
    (comment,) = (one for one in server.get()["comments"] if "perfgate:section" in one["body"])
    return comment["body"]


def test_report__a_lost_choice_fails_a_change_that_is_not_slower(server, tmp_path):
    hand_over(server, tmp_path, pack_choices(LOSING))
    assert report(tmp_path, make_run()) == 0
    body = read_body(server)

    assert read_sections(server) == {"h200": "regression"}
    assert "LOST CHOICE: table of tuned tiles, first product, tokens of the KV pool, estimated; measured PASS" in body
    assert "- **Choices:** lost: table of tuned tiles, first product (qwen3-30b)" in body
    assert "<details><summary>What the engine chooses: 2 lost, 5 changed</summary>" in body


def test_report__a_change_of_choices_is_told_and_fails_nothing(server, tmp_path):
    hand_over(server, tmp_path, pack_choices(CHANGING))
    report(tmp_path, make_run())

    assert read_sections(server) == {"h200": "pass"}
    assert "- **Choices:** 2 changed." in read_body(server)


def test_report__choices_cost_no_request_of_their_own(server, tmp_path):
    counts = []
    for settings, line in (("", ""), ("resolve = true\n", pack_choices(CHANGING))):
        (tmp_path / ".github" / "perfgate.toml").write_text(f"{settings}{SETTINGS.replace('test-gpu', 'h200')}")
        hand_over(server, tmp_path, line)
        server.set(log=[], comments=[], statuses=[])
        report(tmp_path, make_run())
        counts.append(len([entry for entry in server.get()["log"] if not entry["path"].startswith("/store/")]))

    assert counts[0] == counts[1] <= 12


def test_report__choices_that_are_due_and_missing_let_nothing_pass(server, tmp_path):
    hand_over(server, tmp_path, "")
    report(tmp_path, make_run())

    assert read_sections(server) == {"h200": "invalid"}
    assert "what the change makes the engine choose was not compared" in read_body(server)


def test_publish__a_dispatched_measurement_tells_them_too(server, tmp_path):
    hand_over(server, tmp_path, pack_choices(LOSING))
    matrix = '[{"hardware":"h200","scenario":"unit","runs_on":["self-hosted","linux","perfgate","h200"]}]'
    assert main([*PUBLISH, "--matrix", matrix]) == 0

    assert read_sections(server) == {"h200": "regression"}


def check(tmp_path, packed):
    """The required check of the run."""
    folder = tmp_path / "artifacts" / "perfgate-h200-unit-1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / packed.name).write_bytes(packed.read_bytes())
    matrix = '[{"hardware":"h200","scenario":"unit","runs_on":["x"]}]'
    words = ["--action", "run", "--result", "success", "--matrix", matrix, "--artifacts", str(tmp_path / "artifacts")]
    return main(["github", "verdict", *words, "--pr", "7", "--head-sha", HEAD, "--base-sha", BASE, "--scenario", "unit.toml"])


@pytest.mark.parametrize(("path", "code"), [(LOSING, 1), (CHANGING, 0), (SAME, 0), (None, 3)])
def test_verdict__the_check_knows_choices(server, tmp_path, capsys, path, code):
    assert check(tmp_path, hand_over(server, tmp_path, pack_choices(path) if path else "")) == code
    assert "perfgate h200%3A choices" in capsys.readouterr().out
    assert ("**Choices:**" in (tmp_path / "summary").read_text()) == (path is not None)


def accept(server, tmp_path, reason):
    """A maintainer accepts what failed: the record that is kept of it."""
    statuses = [one for one in server.get()["statuses"] if one.get("context")]
    server.set(statuses=[{**one, "state": "failure"} for one in statuses])
    assert say(tmp_path, make_comment(f'/perfgate accept "{reason}"', "mia")) == 0
    (record,) = (one["body"] for one in server.get()["comments"] if "perfgate:accepted" in one["body"])
    return record


def test_accept__a_lost_choice_with_a_reason(server, tmp_path):
    """Bound to the model and the key: what is lost beside it fails again."""
    packed = hand_over(server, tmp_path, pack_choices(LOSING))
    report(tmp_path, make_run())

    record = accept(server, tmp_path, "the table comes next week")
    assert "- qwen3-30b, moe_tiles: up to 100.0 %" in record
    assert check(tmp_path, packed) == 0

    other = write_document(tmp_path, key="graph_decode", base="full", candidate="disabled")
    assert check(tmp_path, hand_over(server, tmp_path, pack_choices(other))) == 1


def test_accept__more_work_of_the_host(server, tmp_path):
    packed = hand_over(
        server, tmp_path, pack_choices(SAME, write_work(tmp_path, key="tokenizer_manager.decode_step.instructions"))
    )
    report(tmp_path, make_run())
    assert read_sections(server) == {"h200": "regression"}

    record = accept(server, tmp_path, "streams are checked now")
    assert "- tokenizer_manager, decode_step_instructions: up to 100.0 %" in record
    assert check(tmp_path, packed) == 0


def test_pack_folder__choices_come_back_as_they_went(server, tmp_path):
    packed = hand_over(server, tmp_path, pack_choices(LOSING))

    assert parse_handoff(packed.read_bytes(), "test").choices == read(LOSING)
