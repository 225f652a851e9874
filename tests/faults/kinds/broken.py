"""Evidence that is missing, impossible, copied, mixed or edited: a verdict on it would be worth nothing."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.checking import Edit, check, check_raw
from tests.faults.fault import Answer, Fault, Kind, Where
from tests.faults.recording import BASELINES, Recording

INVALID = ("INVALID",)
REFUSED = ("exit 2",)
HARDWARE, SCENARIO = "nvidia-h200-141gb", "gpt-oss-20b-shape-mxfp4-mixed-c16"
H100 = {"gpu": "NVIDIA H100", "gpu_memory_gib": "79.6", "hardware": "nvidia-h100-80gb"}
ALIKE = frozenset(
    {
        "infinite latency",
        "negative latency",
        "another number of requests",
        "reordered windows",
        "truncated file behind the index",
        "two runs in one file",
        "mixed workload",
        "partial scenario",
        "baseline of another GPU, kept",
        "stale baseline, kept",
    }
)
"""Long rows: what a short one is caught by catches them, too."""
SHIPPED = BASELINES / HARDWARE / f"{SCENARIO}.json"


def set_value(**fields: Any) -> Edit:
    """Set what the load generator wrote of the candidate's first measured window."""
    return lambda recording: recording.change(recording.first(), **fields)


def set_entry(**fields: Any) -> Edit:
    """Set what the index says of that window."""
    return lambda recording: recording.first().update(fields)


def set_raw(change: Callable[[bytes], bytes]) -> Edit:
    """Change the bytes of that window, with a digest that fits."""

    def edit(recording: Recording) -> None:
        entry = recording.first()
        recording.write_raw(entry, change(gzip.decompress((recording.folder / entry["file"]).read_bytes())))

    return edit


def turn_gaps(recording: Recording) -> None:
    """Every gap of a window is -1 s."""
    entry = recording.first()
    recording.change(entry, itls=[[-1.0] * len(gaps) for gaps in recording.read(entry)["itls"]])


def drop_window(recording: Recording) -> None:
    recording.index.remove(recording.first())


def drop_block(recording: Recording) -> None:
    recording.index = [entry for entry in recording.index if (entry["block"], entry["arm"]) != (2, "base")]


def drop_all(recording: Recording) -> None:
    recording.index = []


def drop_warmup(recording: Recording) -> None:
    recording.index = [entry for entry in recording.index if entry["role"] != "warmup"]


def cold_start(recording: Recording) -> None:
    """Each window of a start takes less time than the one before, the judged ones too."""
    start = recording.first()["start"]
    for place, entry in enumerate(entry for entry in recording.pick() if entry["start"] == start):
        recording.stretch(entry, recording.read(entry), 8 * 0.7**place)


def repeat_line(recording: Recording) -> None:
    recording.index.append(dict(recording.first()))


def copy_window(recording: Recording) -> None:
    """One window takes the place of its neighbour: its file copied, with a digest that fits."""
    one, two = list(recording.pick(role="measured"))[:2]
    recording.write(two, recording.read(one))


def copy_block(recording: Recording) -> None:
    """The second block is the first one once more, later."""
    first = [entry for entry in recording.index if entry["block"] == 1]
    shift_s = max(entry["ended_s"] for entry in first) + 60
    later = [recording.copy_file(entry) for entry in first]
    for entry in later:
        moved = {"begun_s": entry["begun_s"] + shift_s, "ended_s": entry["ended_s"] + shift_s}
        entry.update(block=2, start=entry["start"] + 2, **moved)
    recording.index = [*first, *later]


def reorder(recording: Recording) -> None:
    """Two windows of a start change their numbers, and so stand against the order of time."""
    one, two = list(recording.pick(role="measured"))[:2]
    one["index"], two["index"] = two["index"], one["index"]


def swap_files(recording: Recording) -> None:
    """A base window and a candidate window change their contents behind the index's back."""
    one, two = recording.folder / recording.first("base")["file"], recording.folder / recording.first()["file"]
    content = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(content)


def rerun_unasked(recording: Recording) -> None:
    entry = recording.copy_file(list(recording.pick())[-1])
    line = recording.read(entry)
    last_s = max(other["ended_s"] for other in recording.index)
    recording.change(entry, duration=line["duration"] * 1.001, output_throughput=line["output_throughput"] / 1.001)
    entry.update(role="rerun", index=9, begun_s=last_s + 1, ended_s=last_s + 8)
    recording.index.append(entry)


def mix_versions(recording: Recording) -> None:
    """One window is of a bench_serving that tells sums only."""
    entry = recording.first()
    details = ("itls", "ttfts", "input_lens", "output_lens", "errors")
    recording.write(entry, {key: value for key, value in recording.read(entry).items() if key not in details})


def share_server(recording: Recording) -> None:
    for entry in recording.pick("candidate"):
        entry["start"] = 1


def jump_back(recording: Recording) -> None:
    entry = list(recording.pick(role="measured"))[1]
    entry.update(begun_s=entry["begun_s"] - 30, ended_s=entry["ended_s"] - 30)


def jump_forth(recording: Recording) -> None:
    """An hour passes inside one window, by the session's clock alone."""
    entry = recording.first()
    for other in recording.index:
        if other["begun_s"] >= entry["ended_s"]:
            other.update(begun_s=other["begun_s"] + 3600, ended_s=other["ended_s"] + 3600)
    entry["ended_s"] += 3600


def too_fast(recording: Recording) -> None:
    """The load generator says that it measured for longer than the window lasted."""
    entry = recording.first()
    entry["ended_s"] = entry["begun_s"] + 1.0


def other_scenario(recording: Recording) -> None:
    recording.scenario = recording.scenario.replace("output_len = 192", "output_len = 96")


def other_gpu(recording: Recording) -> None:
    recording.session["arms"]["candidate"]["facts"]["gpu"] = "NVIDIA H100"


def no_gate(recording: Recording) -> None:
    head, _, _ = recording.scenario.partition("[gates.")
    recording.scenario = head + "[gates.max_itl_ms]\n"


def drop_answers(recording: Recording) -> None:
    (recording.folder / "answers.jsonl").unlink()


def drop_use(recording: Recording) -> None:
    (recording.folder / "expert_use.jsonl").unlink()


def write_baseline(folder: Path, **changes: Any) -> Path:
    """The shipped baseline with other content, and a checksum that fits it."""
    from perfgate.verdict.baselines import compute_checksum

    content = json.loads(SHIPPED.read_text())
    for name, value in changes.items():
        content[name] = {**content[name], **value} if isinstance(value, dict) else value
    content["checksum"] = compute_checksum(content)
    path = folder / HARDWARE / SHIPPED.name
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content))
    return path


def keep_baseline(**changes: Any) -> Edit:
    """The folder brings a baseline of its own."""
    return lambda recording: write_baseline(recording.folder / "baselines", **changes) and None


def edit_baseline(recording: Recording) -> None:
    """The noise is made wider by hand."""
    path = write_baseline(recording.folder / "baselines")
    content = json.loads(path.read_text())
    metric = content["metrics"]["output_tok_per_s"]
    metric["values"][0] = [value * 1.2 for value in metric["values"][0]]
    path.write_text(json.dumps(content))


def cut_baseline(recording: Recording) -> None:
    path = write_baseline(recording.folder / "baselines")
    path.write_bytes(path.read_bytes()[:2000])


def make_empty(recording: Recording) -> None:
    (recording.folder.parent / "empty").mkdir()


def given_baseline(**changes: Any) -> Callable[[Recording], None]:
    return lambda recording: write_baseline(recording.folder.parent / "given", **changes) and None


def delete_window(folder: Path) -> None:
    (folder / "windows" / "0010.jsonl.gz").unlink()


def cut(name: str, share: float) -> Callable[[Path], None]:
    """Cut a file off, as a disk that was full or a copy that was broken off would."""

    def damage(folder: Path) -> None:
        path = folder / name
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * share)])

    return damage


def cut_first_line(folder: Path) -> None:
    path = folder / "windows.jsonl"
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([first[:60], *rest]) + "\n")


def cut_packed(recording: Recording) -> None:
    entry = recording.first()
    content = (recording.folder / entry["file"]).read_bytes()
    recording.write_packed(entry, content[: len(content) // 2])


def remove(*names: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        for name in names:
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def row(name: str, made: str, run: Callable[[Path], Answer], words: str, expected: tuple[str, ...] = INVALID) -> Fault:
    return Fault(
        name=name,
        kind=Kind.BROKEN,
        made=made,
        where=Where.RECORDED,
        expected=expected,
        words=words,
        run=run,
        is_long=name in ALIKE,
    )


WINDOWS = (
    row("missing window", "its line is removed from the index", check(drop_window), "4 measured windows where"),
    row("missing arm", "the base of block 2 is removed", check(drop_block), "0 measured windows where"),
    row("no window at all", "the index is empty", check(drop_all), "no window was measured"),
    row("missing raw file", "one file is deleted", check_raw(delete_window), "missing although the index names it"),
    row("missing metric", "a window without the parts of its throughput", check(set_value(duration=None)), "no duration"),
    row(
        "zero throughput", "0 tok/s in one window", check(set_value(output_throughput=0.0)), "output_tok_per_s says 0.00 where"
    ),
    row("zero latencies", "every TTFT of a window is 0 s", check(set_value(ttfts=[0.0] * 60)), "never saw a first token"),
    row("NaN", "mean E2E is NaN", check(set_value(mean_e2e_latency_ms=float("nan"))), "is no measurement"),
    row("infinite latency", "mean E2E is infinite", check(set_value(mean_e2e_latency_ms=float("inf"))), "no measurement"),
    row("negative latency", "mean E2E is -3 ms", check(set_value(mean_e2e_latency_ms=-3.0)), "is negative"),
    row("negative gaps", "every ITL of a window is -1 s", check(turn_gaps), "negative or non-finite"),
    row("edited throughput", "10 % more tok/s", check(set_value(output_throughput=1900.0)), "count over duration makes"),
    row("failed request", "59 of 60 requests completed", check(set_value(completed=59)), "59 of 60 requests completed"),
    row("another number of requests", "32 requests asked for", check(set_value(num_prompts=32)), "60 of 32 requests completed"),
    row("duplicated line", "one index line twice", check(repeat_line), "repeats block 1"),
    row("duplicated window", "one window copied over the next", check(copy_window), "a copy is no second measurement"),
    row("duplicated block", "block 2 is a later copy of block 1", check(copy_block), "a copy is no second measurement"),
    row("reordered windows", "two windows exchange their numbers", check(reorder), "against the order of time"),
    row("swapped files", "a base and a candidate file are exchanged", check(swap_files), "does not match its digest"),
    row("truncated window", "half of a packed file", check(cut_packed), "damaged gzip file"),
    row(
        "truncated file behind the index",
        "half of a packed file, its digest unchanged",
        check_raw(cut("windows/0010.jsonl.gz", 0.5)),
        "does not match its digest",
    ),
    row("truncated line", "half of a window's JSON", check(set_raw(lambda raw: raw[: len(raw) // 2])), "not valid JSON"),
    row("two runs in one file", "a window with two lines", check(set_raw(lambda raw: raw + b" " + raw)), "2 result lines"),
    row(
        "mixed versions",
        "one window by a bench_serving without details",
        check(mix_versions),
        "the first window tells es5_itl_ms",
    ),
    row("mixed workload", "one window at concurrency 32", check(set_value(max_concurrency=32)), "max_concurrency 32 where"),
    row("no warm-up", "cold windows are judged", check(drop_warmup), "no window was discarded"),
    row("never steady", "each window takes less time than the one before", check(cold_start), "never steady"),
    row("one server for two starts", "both arms come from start 1", check(share_server), "needs a server of its own"),
    row("re-run that no rule asked for", "a window measured again at will", check(rerun_unasked), "no rule asked for"),
    row("clock goes back", "a window begins before the one before it ended", check(jump_back), "the clock went back"),
    row("clock jumps", "an hour inside one window", check(jump_forth), "s where 120 s are allowed"),
    row("window shorter than its run", "1 s for a run of 3.6 s", check(too_fast), "its requests took 3.6 s, the window 1.0 s"),
)
FILES = (
    row("partial session.json", "cut in the middle", check_raw(cut("session.json", 0.5)), "not valid JSON", REFUSED),
    row("partial index line", "the first line cut", check_raw(cut_first_line), "windows.jsonl:1: not valid JSON", REFUSED),
    row("partial scenario", "cut in the middle", check_raw(cut("scenario.toml", 0.5)), "not valid TOML", REFUSED),
    row("no session.json", "session.json deleted", check_raw(remove("session.json")), "no result folder", REFUSED),
    row(
        "no events",
        "events.jsonl deleted",
        check_raw(remove("events.jsonl")),
        "events.jsonl is missing although windows were measured",
        (*INVALID, *REFUSED),
    ),
    row("impossible place", "block 0", check(set_entry(block=0)), "block: Input should be greater", REFUSED),
    row(
        "another scenario",
        "half the output length in scenario.toml",
        check(other_scenario),
        "with workload d33807135193, but judged as",
    ),
    row("nothing gates", "a scenario with max ITL alone", check(no_gate), "nothing could ever fail"),
    row("arms on two GPUs", "the candidate ran on an H100", check(other_gpu), "different hardware"),
    row("answers lost", "answers.jsonl deleted", check(drop_answers), "never asked the equivalence prompts"),
    row(
        "expert use lost",
        "expert_use.jsonl deleted where it was measured",
        check(drop_use),
        "expert use was measured, and expert_use.jsonl does not tell it",
    ),
)
BASELINE = (
    row("edited baseline", "values edited by hand", check(edit_baseline), "edited by hand", REFUSED),
    row("partial baseline", "cut after 2,000 bytes", check(cut_baseline), "not valid JSON", REFUSED),
    row(
        "missing baseline",
        "--baselines names an empty folder",
        check(make_empty, "--baselines", "{folder}/empty"),
        f"holds no baseline of {SCENARIO} on this hardware",
        REFUSED,
    ),
    row(
        "baseline of another GPU",
        "an H100's baseline in place of the H200's",
        check(given_baseline(fingerprint=H100), "--baselines", "{folder}/given"),
        "other hardware (gpu: NVIDIA H200 here",
        (*INVALID, *REFUSED),
    ),
    row(
        "stale baseline",
        "a baseline of another workload",
        check(given_baseline(workload_hash="000000000000"), "--baselines", "{folder}/given"),
        "another workload",
        (*INVALID, *REFUSED),
    ),
    row(
        "baseline of another GPU, kept",
        "the same in the session's own folder",
        check(keep_baseline(fingerprint=H100)),
        "other hardware (gpu: NVIDIA H200 here",
        (*INVALID, *REFUSED),
    ),
    row(
        "stale baseline, kept",
        "the same in the session's own folder",
        check(keep_baseline(workload_hash="0" * 12)),
        "another workload",
        (*INVALID, *REFUSED),
    ),
)
BROKEN = (*WINDOWS, *FILES, *BASELINE)
