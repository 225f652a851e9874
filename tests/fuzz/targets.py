"""Everything that reads what others wrote, as functions of bytes: nothing but a PerfgateError may come out of one.

A program that is killed, a disk that is full, an editor or a stranger can put anything into such a file.
"""

from __future__ import annotations

import atexit
import gzip
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import orjson

from perfgate.check import judge
from perfgate.errors import PerfgateError
from perfgate.gate.baselines import verify_baseline
from perfgate.github.handoff.artifact import read_documents
from perfgate.github.handoff.handoff import parse_handoff
from perfgate.github.handoff.packing import unpack_folder
from perfgate.github.settings import load_settings
from perfgate.readers.arrivals import read_arrivals
from perfgate.readers.bench_serving import read_runs, read_window
from perfgate.readers.layer_timings import read_timings
from perfgate.readers.traces import read_traces
from perfgate.results.folders import read_progressed
from perfgate.results.profiling.profiles import read_attribution
from perfgate.results.records import load_proof
from perfgate.results.results import load_results
from perfgate.runner.settings import load_runner
from perfgate.scenario.catalog import load_scenario, read_matrix_text
from perfgate.scenario.load import Load
from perfgate.scenario.matrix import parse_matrix
from perfgate.serving.watch.engine_metrics import parse_metrics, summarize_engine
from perfgate.storage.rounding import format_verdict
from perfgate.verdict.baselines import compute_checksum
from perfgate.verdict.layers import judge_layers
from perfgate.verdict.validity.kernel_proof import check_kernels, describe_proof
from tests.fakes.sessions import SCENARIO_TEXT, make_baseline, make_scenario
from tests.fuzz import seeds

SCENARIO = make_scenario()
BASELINE = make_baseline(SCENARIO)
LARGEST = 64 * 1024

SETTINGS = b"""[hardware.h20]
scenarios = ["gpt-oss-20b-shape-mxfp4-mixed-c16"]
smoke = ["gpt-oss-20b-shape-mxfp4-mixed-c16"]
"""
RUNNER = b"""repositories = ["owner/name"]
workflows = ["gate.yml"]
[slots.a]
user = "gate-a"
gpu = "GPU-0123abcd"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One reader. `read` gets the content of a file and an empty folder of its own, `make_seeds` gives sound content."""

    name: str
    read: Callable[[bytes, Path], object]
    make_seeds: Callable[[], list[bytes]]


def probe(target: Target, content: bytes, folder: Path) -> str | None:
    """Let `target` read `content` below `folder`, which is emptied again; return what it says of content that it refuses."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        target.read(content[:LARGEST], folder)
    except PerfgateError as error:
        return str(error)
    finally:
        shutil.rmtree(folder)
    return None


def write(folder: Path, name: str, content: bytes) -> Path:
    """Put a file into a folder, and return its path."""
    path = folder / name
    path.write_bytes(content)
    return path


def read_bench_output(content: bytes, folder: Path) -> None:
    """A file of results, and its last line as the packed file of a window."""
    read_runs(write(folder, "plain", content))
    if content.lstrip()[:1] == b"{":
        read_window(write(folder, "packed", gzip.compress(content.strip().rpartition(b"\n")[2], 1)))


def read_trace_files(content: bytes, folder: Path) -> None:
    """A trace of the profiler, plain and packed."""
    read_traces([write(folder, "trace.json", content)])
    read_traces([write(folder, "trace.json.gz", gzip.compress(content, 1))])


def read_request_trace(content: bytes, folder: Path) -> None:
    """A trace of requests; a load of its first two."""
    path = write(folder, "trace", content)
    read_arrivals(Load(num_prompts=2, max_concurrency=2, dataset="trace", dataset_path=str(path), dataset_sha256="0" * 64))


def read_baseline(content: bytes, folder: Path) -> None:
    """A baseline as it is, and signed anew, as by a person who knows how."""
    path = write(folder, "unit.json", sign(content))
    judge(seeds.SESSION, SCENARIO, verify_baseline(path))


def sign(content: bytes) -> bytes:
    """Write the right checksum into a baseline that can be parsed."""
    try:
        data = orjson.loads(content)
    except orjson.JSONDecodeError:
        return content
    if isinstance(data, dict) and content[-1:] != b" ":
        data["checksum"] = compute_checksum(data)
        return orjson.dumps(data)
    return content


def make_handoff_seeds() -> list[bytes]:
    """A hand-off as it is, with a proof of kernels, and with the experts that were chosen."""
    return [seeds.make_handoff(), seeds.make_proven_handoff(), seeds.make_routed_handoff()]


def read_handoff(content: bytes, folder: Path) -> None:
    """A document from a job that is not trusted, up to the verdict."""
    unpack_folder(parse_handoff(content, "handoff-unit.json"), SCENARIO_TEXT, folder / "unit")
    judge_folder(folder / "unit")


def read_proof(content: bytes, folder: Path) -> None:
    """What a pull request's job found of the kernels, up to what is said of it."""
    proof = load_proof(write(folder, "proof.json", content))
    list(check_kernels(proof))
    describe_proof(proof)


def judge_folder(folder: Path) -> None:
    """Everything that `perfgate check` and `--resume` read of a result folder."""
    read_progressed(folder)
    scenario, session = load_results(folder)
    format_verdict(judge(session, scenario, BASELINE))
    read_attribution(folder)


def read_timing_files(content: bytes, folder: Path) -> None:
    """Timings of layers, three processes that stored the same."""
    judge_layers(read_timings(tuple(write(folder, f"{number}.json", content) for number in range(3))))


def read_metrics(content: bytes, folder: Path) -> None:
    """What an engine answers to a scrape."""
    del folder
    found = parse_metrics(content.decode("utf-8", "replace"), took_s=0.01)
    summarize_engine(found, [found] if found else [], found)


def read_result_folder(content: bytes, folder: Path) -> None:
    """A result folder in which one file, which the first byte names, holds the rest of `content`."""
    made = shutil.copytree(build_template(), folder / "r")
    path = list_files(made)[content[0] % len(list_files(made))] if content else made / "session.json"
    is_raw = path.suffix == ".gz"
    path.write_bytes(gzip.compress(content[1:], 1, mtime=0) if is_raw else content[1:])
    if is_raw or path.parent.name.startswith("start-"):
        seeds.sign_index(made, path)
    judge_folder(made)


@cache
def build_template() -> Path:
    """A sound result folder, written once a process; it goes with the process."""
    place = tempfile.TemporaryDirectory(prefix="perfgate-fuzz-", dir=seeds.MEMORY)
    atexit.register(place.cleanup)
    return seeds.make_folder(Path(place.name, "r"))


def list_files(folder: Path) -> list[Path]:
    """The files that a reader opens, always in one order."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")


def make_folder_seeds() -> list[bytes]:
    """Each file of a result folder behind the byte that names it."""
    return [bytes([index]) + unpack(path) for index, path in enumerate(list_files(build_template()))]


def unpack(path: Path) -> bytes:
    """The content of a file, plain."""
    content = path.read_bytes()
    return gzip.decompress(content) if path.suffix == ".gz" else content


TARGETS = (
    Target(name="bench_serving_jsonl", read=read_bench_output, make_seeds=lambda: [seeds.make_result_lines()]),
    Target(name="printed_table", read=read_bench_output, make_seeds=seeds.read_tables),
    Target(name="matrix_log", read=read_bench_output, make_seeds=lambda: [(seeds.RUNS / "matrix.log").read_bytes()]),
    Target(name="trace", read=read_trace_files, make_seeds=lambda: [seeds.make_trace(), seeds.make_trace("cpu_op")]),
    Target(
        name="scenario",
        read=lambda content, folder: load_scenario(str(write(folder, "unit.toml", content))),
        make_seeds=seeds.read_scenarios,
    ),
    Target(
        name="matrix",
        read=lambda content, folder: parse_matrix(read_matrix_text(write(folder, "m.toml", content)), "m.toml"),
        make_seeds=seeds.read_matrices,
    ),
    Target(
        name="settings",
        read=lambda content, folder: load_settings(write(folder, "perfgate.toml", content)),
        make_seeds=lambda: [SETTINGS],
    ),
    Target(
        name="runner_settings",
        read=lambda content, folder: load_runner(write(folder, "runner.toml", content)),
        make_seeds=lambda: [RUNNER],
    ),
    Target(name="baseline", read=read_baseline, make_seeds=lambda: [seeds.make_baseline_file()]),
    Target(name="handoff", read=read_handoff, make_seeds=make_handoff_seeds),
    Target(name="proof", read=read_proof, make_seeds=lambda: [seeds.make_proof()]),
    Target(
        name="artifact",
        read=lambda content, folder: read_documents(write(folder, "artifact.zip", content)),
        make_seeds=lambda: [seeds.make_artifact(b"{}"), seeds.make_artifact(seeds.make_handoff())],
    ),
    Target(name="metrics", read=read_metrics, make_seeds=lambda: [seeds.METRICS]),
    Target(name="arrivals", read=read_request_trace, make_seeds=lambda: list(seeds.ARRIVALS)),
    Target(name="layer_timings", read=read_timing_files, make_seeds=lambda: [seeds.make_timings()]),
    Target(name="result_folder", read=read_result_folder, make_seeds=make_folder_seeds),
)
