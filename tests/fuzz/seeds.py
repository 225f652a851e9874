"""Small sound files of every kind that perfgate reads: what damage begins with."""

from __future__ import annotations

import hashlib
import io
import json
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import orjson

from perfgate.core import Arm
from perfgate.github.handoff.handoff import AnswerEntry, ReplyEntry
from perfgate.github.handoff.packing import pack_folder, unpack_answers
from perfgate.github.handoff.subject import HandoffSubject
from perfgate.results.profiling.profiles import Profile, store_profile
from perfgate.scenario.catalog import compose, list_scenarios
from perfgate.verdict.baselines import format_baseline
from tests.fakes.sessions import SCENARIO_TEXT, make_baseline, make_line, make_scenario, make_session, write_folder

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "tests/fixtures/runs"
# Where there is one, a file system in memory: on a disk, writing would be most of the time.
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
SESSION = make_session(make_scenario(), blocks=1)
ARRIVALS = (
    b"""{"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [0, 1]}
{"timestamp": 1500, "input_length": 30, "output_length": 4, "hash_ids": [2]}
""",
    b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,A,472,18,490,x\n45.5,B,1087,230,1317,x\n",
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.03,3180,8\n",
)
"""Mooncake's, BurstGPT's and Azure's traces of requests."""
METRICS = b"""# HELP sglang:num_running_reqs Requests that run.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",tp_rank="0"} 16.0
sglang:num_queue_reqs{model_name="m"} 2.0
sglang:token_usage{model_name="m"} 0.25
# TYPE sglang:prompt_tokens counter
sglang:prompt_tokens_total{model_name="m"} 12800.0
sglang:cached_tokens_total{model_name="m"} 64.0
# TYPE sglang:queue_time_seconds histogram
sglang:queue_time_seconds_bucket{le="0.1",model_name="m"} 3.0
sglang:queue_time_seconds_bucket{le="+Inf",model_name="m"} 4.0
sglang:queue_time_seconds_sum{model_name="m"} 0.7
sglang:queue_time_seconds_count{model_name="m"} 4.0
"""


def make_result_lines() -> bytes:
    """One line without and one with the details of every request."""
    plain = make_line(SESSION.windows[0])
    details = {
        "num_prompts": 2,
        "completed": 2,
        "total_output_tokens": 6,
        "duration": 0.5,
        "output_throughput": 12.0,
        "ttfts": [0.02, 0.03],
        "itls": [[0.01, 0.011], [0.01, 0.5]],
        "output_lens": [3, 3],
        "errors": ["", ""],
        "generated_texts": ["a b c", "d e f"],
        "server_info": {"model_path": "some/model"},
    }
    return plain + orjson.dumps({**orjson.loads(plain.replace(b"Infinity", b'"inf"')), **details}) + b"\n"


def make_trace(category: str = "kernel") -> bytes:
    """A trace of three events, one within another."""
    spans = (("outer", 0, 10), ("inner", 2, 3), ("later", 20, 4))
    events = [
        {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": 2, "args": {}}
        for name, ts, dur in spans
    ]
    return json.dumps({"schemaVersion": 1, "traceEvents": [*events, {"ph": "i", "name": "mark", "ts": 1}]}).encode()


def make_timings() -> bytes:
    """What pytest-benchmark stores of one layer."""
    samples = [100.0 + number / 10 for number in range(10)]
    layer = {
        "format": 1,
        "shape": "tiny",
        "tokens": 16,
        "samples_us": {"base": samples, "again": samples, "candidate": samples},
    }
    stored = {
        "machine_info": {"perfgate": {"device": "Test GPU", "torch": "2"}},
        "datetime": "2026-11-21T00:00:00+00:00",
        "benchmarks": [{"name": "layer", "extra_info": {"perfgate": layer}}],
    }
    return json.dumps(stored, indent=1).encode()


def make_answers(arm: Arm, number: int) -> AnswerEntry:
    """What one start answered to the prompts of the scenario."""
    rules = make_scenario().equivalence
    reply = ReplyEntry(
        tokens=(7,) * rules.output_len,
        logprobs=tuple(-0.01 * index for index in range(1, rules.output_len + 1)),
        prompt_logprobs=(-1.5,) * (rules.input_len - 1),
    )
    return AnswerEntry(
        arm=arm,
        block=1,
        start=number,
        prompts=rules.prompts,
        input_len=rules.input_len,
        output_len=rules.output_len,
        vocab=1000,
        seed=rules.seed,
        replies=(reply,) * rules.prompts,
    )


def make_folder(folder: Path) -> Path:
    """A result folder of one block, with answers and profiles of both arms."""
    write_folder(folder, SESSION, SCENARIO_TEXT)
    for number, arm in enumerate(Arm, start=1):
        unpack_answers(make_answers(arm, number), folder)
        profile = Profile(arm=arm, block=1, start=number, steps=2, prompts=4)
        path = folder / profile.folder / "trace.json"
        path.parent.mkdir(parents=True)
        path.write_bytes(make_trace())
        store_profile(folder, profile, [path])
    return folder


@cache
def make_handoff() -> bytes:
    """The hand-off of that folder."""
    subject = HandoffSubject(
        repository="owner/name", pull_request=7, head_sha="a" * 40, run_id=11, run_attempt=1, hardware="test-gpu-80gb"
    )
    with tempfile.TemporaryDirectory() as folder:
        return pack_folder(make_folder(Path(folder, "r")), subject)


def make_proof() -> bytes:
    """Both arms built and examined; each has a case of its own that is wrong."""
    case = {"name": "E=8,k=4,H=64,I=96,M=16,dtype=bfloat16", "problem": "relative error 0.5 > 0.0042"}
    builds = [{"arm": arm, "arch": "sm_90", "kernels": 6, "refused": []} for arm in Arm]
    exams = [
        {"arm": arm, "implementation": "sglang", "sound": 9, "worst": 0.5, "wrong": [case | {"name": arm}], "left_out": [case]}
        for arm in Arm
    ]
    return json.dumps({"builds": builds, "exams": exams, "wheel": ""}).encode()


def make_proven_handoff() -> bytes:
    """A hand-off that says what was found of the kernels, too."""
    return orjson.dumps({**orjson.loads(make_handoff()), "kernels": orjson.loads(make_proof())})


def make_routed_handoff() -> bytes:
    """A hand-off that tells which experts the arms chose: of four experts one, in two layers, for two texts of four tokens."""
    text = {"tokens": [5, 6, 7, 8], "layers": ["AAABAAIAAwA=", "AwACAAEAAAA="]}
    found = {"experts": 4, "top_k": 1, "prompt_len": 2, "tokens_a_step": 2, "texts": [text, text], "again": [text]}
    entries = [{"arm": arm, "block": 1, "start": start, "found": found} for start, arm in enumerate(Arm, start=1)]
    return orjson.dumps({**orjson.loads(make_handoff()), "measures_expert_use": True, "expert_use": entries})


def make_artifact(content: bytes) -> bytes:
    """A hand-off as GitHub keeps it."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("handoff-unit.json", content)
    return packed.getvalue()


def make_baseline_file() -> bytes:
    """A baseline of two sessions."""
    return format_baseline(make_baseline(make_scenario(), sessions=2))


def read_scenarios() -> list[bytes]:
    """The shipped scenarios and the one of the unit tests."""
    return [SCENARIO_TEXT.encode(), *(compose(name).encode() for name in list_scenarios())]


def read_matrices() -> list[bytes]:
    """The shipped matrices and the one of the tests."""
    return [
        path.read_bytes() for path in sorted([ROOT / "tests/fakes/matrix.toml", *(ROOT / "perfgate/matrices").glob("*.toml")])
    ]


def read_tables() -> list[bytes]:
    """Printed tables: one, two in one file, and one with its argument line and colours."""
    one, two = (RUNS / name for name in ("fusion_on_1.txt", "dense_rate20.txt"))
    head = b"\x1b[32mNamespace(backend='sglang', dataset_name='random', num_prompts=256, random_input_len=8)\x1b[0m\n"
    return [one.read_bytes(), one.read_bytes() + two.read_bytes(), head + one.read_bytes()]


def sign_index(folder: Path, changed: Path) -> None:
    """Write the digest of a changed raw file into the index that names it."""
    name, found = str(changed.relative_to(folder)), hashlib.sha256(changed.read_bytes()).hexdigest()
    for index in folder.glob("*.jsonl"):
        lines = [orjson.loads(line) for line in index.read_bytes().splitlines()]
        for entry in (entry for line in lines for entry in (line, *line.get("traces", ())) if entry.get("file") == name):
            entry["sha256"] = found
        index.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
