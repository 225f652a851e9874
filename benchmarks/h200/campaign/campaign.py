"""Fill the time of a lent GPU machine with the next most wanted measurement, and go on where the last call stopped.

    python3 benchmarks/h200/campaign/campaign.py --seconds 590 --out "$OUT" --bundle sglang-0.5.16.tar.xz [--carried DIR]

`wanted.toml` beside this lists measurements in the order of want. Each call unpacks SGLang once, goes on with what was cut off,
ends a session between two blocks where the next block would outlast the call, and leaves in --out what is new: result folders
(`cat results.tar.xz* | tar -xJ`), a state by which a call on another machine knows what is done, and compile caches. Only
Python's own library is imported, since nothing else is sure to be there before the archive is unpacked.

The rows with `closes`, equal arms, come last on every machine, and time for a block of them is kept: so the error rates grow
with each machine. `--more` leaves them to the campaign that follows on the same machine.

On a machine with several GPUs campaigns measure side by side, each with GPUs, cores and rows (`--row`) of its own: `slots.sh`
beside this starts them. Rows with `gpus = 2` need two GPUs: a campaign with `--gpus 2` measures these and no others.

Each `--release sglang-VERSION.tar.xz` lays another release beside the bundle's. Rows name them, and the bundle's, as
{home}/releases/VERSION/bin/python; a row whose release is not there waits for a call that brings it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
STATE, LOG, CACHES, RESULTS = "state.json", "campaign.log", "caches.tar.xz", "results.tar.xz"
# Writes a model whose plain dummy weights collapse its router.
DUMMY = "benchmarks/h200/serving/make_model.py"
# Lets servers find the museum's patches; without a variable that asks for one they change nothing.
MUSEUM = "import pathlib, sys; from benchmarks.museum.run import write_plug_in; write_plug_in(pathlib.Path(sys.argv[1]))"
LAY = "benchmarks.h200.campaign.releases"
# What comes back of one call: 8 files of 16 MiB; the state, the log and the caches are three of them.
MAX_FILE_BYTES, MAX_RESULT_FILES = 15 * 2**20, 5
POLL_S = 0.2
STOP_S = 20.0
"""A session that is told to end stops two servers first, which took 5 to 10 s."""
PACK_S = 10.0
"""What is left at the end for archives."""
MAX_FAILED = 2
"""After so many failures in a row the machine's time is better given back."""
LONGER = 1.1
"""A block may take so many times as long as the last one."""
ROUNDS = 2
"""Rounds of a matrix whose file names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One measurement. `command` is perfgate's, or a module's of this repository where `module` names one.

    `block_s` is what a block, or a module's whole run, is thought to take before one was seen, `first_s` what the first takes
    with compile caches that are cold. `blocks` ends a session after so many, where its command would go on. `gpus` are those
    that a server of it takes. One that `closes` is measured on every machine, after all others.
    """

    name: str
    reason: str
    command: tuple[str, ...]
    block_s: float
    first_s: float
    module: str = ""
    blocks: int = 0
    gpus: int = 1
    closes: bool = False

    @property
    def scenario(self) -> str:
        """What it serves and sends: compile caches are warm for that."""
        return self.command[0] if self.module else self.command[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The folders of a campaign on this machine, and what sessions start from. `number` counts machines."""

    home: Path
    number: int
    python: str
    root: Path = ROOT

    @property
    def site(self) -> Path:
        """The unpacked archive."""
        return self.home / "site"

    @property
    def environment(self) -> dict[str, str]:
        """Variables of everything that is started: the archive and the checkout are only on PYTHONPATH."""
        paths = [self.home / "plug-in", self.site, self.root]
        own = {
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "PERFGATE_STATE": str(self.home / "state"),
            "HF_HUB_OFFLINE": "1",
        }
        return {**os.environ, **own, "PYTHONUNBUFFERED": "1", "COLUMNS": "160"}

    def find_folder(self, wanted: Wanted) -> Path:
        """Where a measurement's results lie. A session is of one machine: another machine's goes into a folder of its own."""
        name = wanted.name if self.number == 1 else f"{wanted.name}-m{self.number}"
        return self.home / "results" / name


@dataclass(slots=True)
class Campaign:
    """A call in flight: what is done, and until when there is time."""

    place: Place
    ends: float
    state: dict[str, Any]
    seen_s: dict[str, float] = field(default_factory=dict)
    failed: int = 0
    kept_s: float = 0.0

    @property
    def left_s(self) -> float:
        """Seconds until a session has to be told to end, but for those that are kept for what closes."""
        return self.ends - STOP_S - PACK_S - self.kept_s - time.monotonic()

    def say(self, text: str) -> None:
        """One line for the terminal and the log, with the seconds that are left."""
        line = f"[{self.left_s:6.0f} s left] {text}"
        print(line, flush=True)
        with (self.place.home / LOG).open("a", encoding="utf-8") as log:
            log.write(line + "\n")

    def save(self) -> None:
        """Write the state down; a reader never sees half of it."""
        path = self.place.home / STATE
        path.with_suffix(".new").write_text(json.dumps(self.state, indent=1) + "\n", encoding="utf-8")
        path.with_suffix(".new").replace(path)

    def run(self, table: Sequence[Wanted]) -> None:
        """Go through the table until the time is spent. A row that is there twice is tried again where it failed."""
        tried: set[str] = set()
        for wanted in table:
            folder = self.place.find_folder(wanted)
            done = self.state["done"].get(wanted.name)
            is_here = done is not None and done["folder"] == folder.name
            if done is not None and (is_here or not wanted.closes) and (done["is_whole"] or wanted.name not in tried):
                continue
            self.kept_s = 0.0 if wanted.closes else sum(self.keep(row, wanted) for row in table if row.closes)
            if self.failed >= MAX_FAILED:
                self.say(f"{self.failed} measurements in a row ended without a block: the call ends, the next would fail alike")
                return
            if missing := find_missing(wanted, self.place):
                self.say(f"{wanted.name}: not begun, {missing} is not there; give its archive with --release")
                continue
            needed_s = self.guess(wanted, folder)
            if self.left_s < needed_s:
                self.say(f"{wanted.name}: not begun, {needed_s:.0f} s are needed")
                continue
            tried.add(wanted.name)
            self.measure(wanted, folder)

    def keep(self, closing: Wanted, wanted: Wanted) -> float:
        """Seconds of a block of what closes: a warm one where this measurement serves the same scenario."""
        is_warmed = closing.scenario == wanted.scenario
        return closing.block_s if is_warmed else self.guess(closing, self.place.find_folder(closing))

    def guess(self, wanted: Wanted, folder: Path) -> float:
        """What the next block takes: as long as the last one of this session, else as the table thinks."""
        took_s = self.seen_s.get(wanted.name)
        if took_s is not None:
            return took_s * LONGER
        return wanted.first_s if self.is_cold(wanted) and not count_blocks(folder) else wanted.block_s

    def is_cold(self, wanted: Wanted) -> bool:
        """Whether this scenario has not been served with these caches yet."""
        return wanted.scenario not in self.state["warm"]

    def measure(self, wanted: Wanted, folder: Path) -> None:
        """Run one measurement until it ends or its next block would not."""
        if wanted.module and folder.exists():
            shutil.rmtree(folder)
        elif is_void(folder):
            self.say(f"{wanted.name}: its session ended as void and is kept as {move_aside(folder).name}")
        argv = build_argv(wanted, self.place, folder)
        self.say(f"{wanted.name}: {shlex.join(argv[1:])}")
        log = self.place.home / "results" / f"{folder.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        begun = time.monotonic()
        # In this call's own process group: what ends the call ends a session, and a session's reaper its servers.
        with log.open("ab") as output:
            process = subprocess.Popen(argv, cwd=self.place.home, env=self.place.environment, stdout=output, stderr=output)
            try:
                is_stopped = self.watch(process, wanted, folder)
            finally:
                if process.poll() is None:
                    stop(process, grace_s=STOP_S)
        blocks, is_ended = count_blocks(folder), has_ended(folder)
        is_over = bool(wanted.module) and process.returncode == 0
        if is_over:
            share_caches(self.place)
        if blocks or is_over:
            self.state["warm"] = sorted({*self.state["warm"], wanted.scenario})
        is_done = (is_ended and blocks > 0) or is_over or 0 < wanted.blocks <= blocks
        self.failed = 0 if is_done or is_stopped else self.failed + 1
        if is_done or not is_stopped:
            facts = {"folder": folder.name, "blocks": blocks, "exit_code": process.returncode}
            self.state["done"][wanted.name] = facts | {"is_whole": is_done, "last_words": read_last_words(log)}
        self.save()
        took_s = time.monotonic() - begun
        how = "done" if is_done else "cut off, goes on in the next call" if is_stopped else "FAILED"
        self.say(f"{wanted.name}: {how} after {took_s:.0f} s, {blocks} blocks, exit code {process.returncode}")
        if wanted.name in self.state["done"]:
            self.say(f"{wanted.name}: {self.state['done'][wanted.name]['last_words']}")

    def watch(self, process: subprocess.Popen[bytes], wanted: Wanted, folder: Path) -> bool:
        """Wait for the end of a process; tell it to end where time is up, and say whether it was told."""
        blocks, began = count_blocks(folder), time.monotonic()
        while process.poll() is None:
            time.sleep(POLL_S)
            now = count_blocks(folder)
            if now > blocks:
                took_s, began, blocks = time.monotonic() - began, time.monotonic(), now
                # What a first block compiled, the second finds.
                is_cold = now == 1 and self.is_cold(wanted)
                self.seen_s[wanted.name] = min(took_s, wanted.block_s / LONGER) if is_cold else took_s
                self.say(f"{wanted.name}: block {now} took {took_s:.0f} s")
                # What has all its blocks, or cells, ends by itself within moments.
                if not has_all(wanted, folder) and (0 < wanted.blocks <= now or self.left_s < self.guess(wanted, folder)):
                    stop(process, grace_s=STOP_S)
                    return True
            if self.left_s < 0:
                stop(process, grace_s=STOP_S)
                return True
        return False


def build_argv(wanted: Wanted, place: Place, folder: Path) -> list[str]:
    """The command of a measurement; a session that was begun in `folder` goes on there."""
    caches, asked = place.home / "caches", fill(wanted.command, place)
    if wanted.module:
        # A module's caches are those of an arm: the next machine, to which the base's are carried, finds them.
        return [place.python, "-m", wanted.module, *asked, "--out", str(folder), "--caches", str(caches / "base")]
    is_begun = any((folder / name).exists() for name in ("session.json", "matrix.json"))
    resume = ["--resume"] if is_begun else []
    return [place.python, "-m", "perfgate", *asked, "--out", str(folder), "--caches", str(caches), *resume]


def fill(words: Sequence[str], place: Place) -> list[str]:
    """The words of a command with the machine's folders in them."""
    return [word.replace("{root}", str(place.root)).replace("{home}", str(place.home)) for word in words]


def find_missing(wanted: Wanted, place: Place) -> str | None:
    """The first Python of a release that a measurement names and that was not laid here; None where all are there."""
    releases = str(place.home / "releases")
    words = (word for word in fill(wanted.command, place) if word.startswith(releases))
    return next((word for word in words if not Path(word).exists()), None)


def read_events(folder: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a session's journal; a line in the making is left out."""
    path = folder / "events.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else ():
        if line.endswith("\n"):
            yield json.loads(line)


def count_events(folder: Path, *names: str) -> int:
    """How many events of these names a journal has."""
    return sum(event.get("event") in names for event in read_events(folder))


def count_blocks(folder: Path) -> int:
    """How many blocks of a session have ended, or cells of a matrix."""
    return count_events(folder, "block_ended", "cell_ended")


def has_all(wanted: Wanted, folder: Path) -> bool:
    """Whether no block of a session is missing, or no cell of a matrix; never where a look may end it earlier."""
    path = folder / "matrix.toml"
    if path.exists():
        matrix = tomllib.loads(path.read_text(encoding="utf-8"))
        wants: int = len(matrix["servers"]) * len(matrix["loads"]) * matrix.get("rounds", ROUNDS)
        return count_events(folder, "cell_ended", "cell_failed") == wants
    words = wanted.command
    return "--blocks" in words and count_blocks(folder) == int(words[words.index("--blocks") + 1])


def has_ended(folder: Path) -> bool:
    """Whether a session is over, or a matrix: all its blocks are there, or it is void."""
    return count_events(folder, "session_ended", "matrix_ended") > 0


def is_void(folder: Path) -> bool:
    """Whether a session is over without a whole block: it cannot be gone on with, and has nothing to judge."""
    return has_ended(folder) and not count_blocks(folder)


def move_aside(folder: Path) -> Path:
    """Rename a folder to the first free name of NAME-void-1, NAME-void-2, ... and return that."""
    names = (folder.with_name(f"{folder.name}-void-{number}") for number in count(1))
    free = next(path for path in names if not path.exists())
    folder.rename(free)
    return free


def stop(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Tell a session to end, which ends its servers and leaves a folder to go on with; kill what does not."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=grace_s)
    except subprocess.TimeoutExpired:
        # Its servers end with its reaper.
        process.kill()
        process.wait()


def read_last_words(log: Path) -> str:
    """The last line that a measurement printed."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][-300:] if lines else "printed nothing"


def read_table(path: Path) -> list[Wanted]:
    """The wanted measurements, in the order of want."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["wanted"]
    return [Wanted(**{**row, "command": tuple(shlex.split(row["command"]))}) for row in rows]


def read_state(home: Path, carried: Path | None) -> tuple[dict[str, Any], bool]:
    """What is done, from this machine or carried from another, and whether this machine is new to the campaign."""
    if (home / STATE).exists():
        return dict(json.loads((home / STATE).read_text(encoding="utf-8"))), False
    state: dict[str, Any] = {"machines": 0, "done": {}, "warm": [], "sent": {}}
    if carried is not None and (carried / STATE).exists():
        state |= json.loads((carried / STATE).read_text(encoding="utf-8"))
    return {**state, "machines": state["machines"] + 1, "sent": {}}, True


def prepare(place: Place, bundle: Path | None, carried: Path | None, releases: Sequence[Path] = ()) -> None:
    """Make a bare machine ready: SGLang unpacked, other releases beside it, the plug-ins found, the caches that came along."""
    is_whole = place.site / ".whole"
    if bundle is not None and not is_whole.exists():
        place.site.mkdir(parents=True, exist_ok=True)
        with tarfile.open(bundle) as archive:
            archive.extractall(place.site, filter="data")
        is_whole.touch()
    if is_whole.exists():
        plug_ins = str(place.home / "plug-in")
        for words in (
            ("-m", "perfgate", "kernels", "plug-in", plug_ins),
            ("-c", MUSEUM, plug_ins),
            (str(place.root / DUMMY), str(place.home / "dummy")),
        ):
            subprocess.run([place.python, *words], env=place.environment, check=True, stdout=subprocess.DEVNULL)
    if bundle is not None and releases:
        archives = [str(archive) for archive in (bundle, *releases)]
        subprocess.run([place.python, "-m", LAY, str(place.home), *archives], env=place.environment, check=True)
    require_engine(place)
    write_machine(place)
    packed = None if carried is None else carried / CACHES
    if packed is not None and packed.exists() and not (place.home / "caches").exists():
        with tarfile.open(packed) as archive:
            archive.extractall(place.home, filter="data")
        share_caches(place)


def require_engine(place: Place) -> None:
    """End the call where no SGLang can be found: each measurement would fail for the same reason, and count as tried."""
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('sglang') is None)"
    if subprocess.run([place.python, "-c", find], env=place.environment, check=False).returncode:
        sys.exit(f"{place.python} finds no SGLang: give --bundle, or --python of an environment that has it")


def write_machine(place: Place) -> None:
    """Keep what the machine says of its GPU, driver and cores."""
    tools = filter(None, map(shutil.which, ("nvidia-smi", "lscpu", "uname")))
    told = [subprocess.run([tool], check=False, capture_output=True, text=True).stdout for tool in tools]
    (place.home / "results" / f"machine-{place.number}.txt").write_text("\n".join(told), encoding="utf-8")


def share_caches(place: Place) -> None:
    """Let the candidate's compiler begin with what the base's has: both would compile the same kernels, at the same time."""
    base, candidate = place.home / "caches" / "base", place.home / "caches" / "candidate"
    if base.exists() and not candidate.exists():
        shutil.copytree(base, candidate)


def bring_back(campaign: Campaign, out: Path) -> None:
    """Leave in `out` what changed since the last call: results in files that may travel, the state, the log, the caches."""
    place, sent = campaign.place, campaign.state["sent"]
    new = {path.name: measure_size(path) for path in sorted((place.home / "results").iterdir())}
    changed = [name for name, size in new.items() if sent.get(name) != size]
    changed.sort(key=lambda name: int(new[name].split()[1]))
    sent |= {name: new[name] for name in pack_what_fits(campaign, out / RESULTS, changed)}
    campaign.save()
    pack_caches(campaign, out / CACHES)
    for name in (STATE, LOG):
        shutil.copy(place.home / name, out / name)


def measure_size(path: Path) -> str:
    """How many files and bytes there are: more when a result folder grew."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return f"{len(files)} {sum(file.stat().st_size for file in files)}"


def pack_what_fits(campaign: Campaign, archive: Path, names: list[str]) -> list[str]:
    """Pack results, which come by rising size, and return those that travel: the largest stay where all are too much."""
    while names:
        pack(archive, campaign.place.home / "results", names)
        if archive.stat().st_size <= MAX_RESULT_FILES * MAX_FILE_BYTES:
            cut(archive)
            break
        archive.unlink()
        campaign.say(f"{names.pop()} is too large to travel and stays here")
    return names


def cut(archive: Path) -> None:
    """Cut what is too large for one file into NAME.00, NAME.01, ..., which `cat` joins."""
    if archive.stat().st_size <= MAX_FILE_BYTES:
        return
    with archive.open("rb") as file:
        for number, piece in enumerate(iter(lambda: file.read(MAX_FILE_BYTES), b"")):
            archive.with_name(f"{archive.name}.{number:02}").write_bytes(piece)
    archive.unlink()


def pack(archive: Path, folder: Path, names: Sequence[str]) -> None:
    """Write entries of a folder into one tar.xz, by all cores where `xz` is at hand."""
    tool = shutil.which("xz")
    if tool is None:
        with tarfile.open(archive, "w:xz", preset=2) as tar:
            for name in names:
                tar.add(folder / name, arcname=name)
        return
    with (
        archive.open("wb") as file,
        subprocess.Popen([tool, "-T0", "-3"], stdin=subprocess.PIPE, stdout=file) as xz,
        tarfile.open(fileobj=xz.stdin, mode="w|") as tar,
    ):
        for name in names:
            tar.add(folder / name, arcname=name)


def pack_caches(campaign: Campaign, archive: Path) -> None:
    """Bring the base's compile caches back, where they changed and may travel; the candidate's begin as a copy."""
    home = campaign.place.home
    if not (home / "caches" / "base").exists():
        return
    now = measure_size(home / "caches" / "base")
    if campaign.state["sent"].get(CACHES) == now:
        return
    pack(archive, home, ["caches/base"])
    if archive.stat().st_size > MAX_FILE_BYTES:
        campaign.say(f"the compile caches stay here: {archive.stat().st_size / 2**20:.0f} MiB packed")
        archive.unlink()
    campaign.state["sent"][CACHES] = now
    campaign.save()


def describe(table: Sequence[Wanted], place: Place, state: Mapping[str, Any]) -> str:
    """What a call would do, one line a measurement."""
    lines = []
    for wanted in table:
        done = state["done"].get(wanted.name)
        told = f"done ({done['blocks']} blocks, exit code {done['exit_code']})" if done else f"{wanted.first_s:.0f} s cold"
        lines.append(f"{wanted.name:28} {told:30} {shlex.join(build_argv(wanted, place, place.find_folder(wanted))[1:])}")
    return "\n".join(lines)


def choose(table: Sequence[Wanted], names: Sequence[str], gpus: int, *, has_more: bool = False) -> list[Wanted]:
    """The rows of so many GPUs: those named, in the order of their names, or all; those that close come last.

    `has_more` leaves out what closes, unless it is named. End the call for a name that is none.
    """
    rows = {row.name: row for row in table if row.gpus == gpus}
    if unknown := [name for name in names if name not in rows]:
        sys.exit(f"--row {unknown[0]}: the table has no such row of {gpus} GPU(s)")
    chosen = [rows[name] for name in names] or list(rows.values())
    closing = [row for row in rows.values() if row.closes and (row.name in names or not has_more)]
    return [row for row in chosen if not row.closes] + closing


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a call."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, required=True, help="after which this call has ended, archives included")
    parser.add_argument("--out", type=Path, required=True, help="a folder for what is new")
    parser.add_argument("--bundle", type=Path, help="SGLang's archive; without one it is installed")
    parser.add_argument(
        "--release", type=Path, action="append", default=[], help="another release's archive over the bundle; repeatable"
    )
    parser.add_argument("--carried", type=Path, help="a folder with the state and caches that an earlier machine left")
    parser.add_argument("--home", type=Path, default=Path("/tmp/perfgate-campaign"))  # noqa: S108 - kept between calls
    parser.add_argument("--table", type=Path, default=HERE / "wanted.toml")
    parser.add_argument("--row", action="append", default=[], help="measure this row; repeatable, tried again if it failed")
    parser.add_argument("--more", action="store_true", help="another campaign follows on this machine: leave what closes to it")
    parser.add_argument("--gpus", type=int, default=1, help="measure the rows whose servers take so many GPUs, and no others")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--retry", action="store_true", help="try again what failed, on this machine or another")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    options = parser.parse_args(arguments)
    if options.release and options.bundle is None:
        parser.error("--release needs --bundle: another release's archive holds only what differs from it")
    return options


def main(arguments: Sequence[str]) -> int:
    """Spend the seconds of one call."""
    begun = time.monotonic()
    options = parse(arguments)
    home, out, carried = options.home.resolve(), options.out.resolve(), options.carried and options.carried.resolve()
    state, is_new = read_state(home, carried)
    if options.retry:
        state["done"] = {name: done for name, done in state["done"].items() if done["is_whole"]}
    place = Place(home=home, number=state["machines"], python=options.python)
    table = choose(read_table(options.table), options.row, options.gpus, has_more=options.more)
    if options.dry_run:
        print(describe(table, place, state))
        return 0
    for folder in (home / "results", out):
        folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
    campaign = Campaign(place=place, ends=begun + options.seconds, state=state)
    campaign.save()
    try:
        campaign.say(
            f"machine {place.number}{', new' if is_new else ''}: {len(state['done'])} of {len(table)} measurements are done"
        )
        prepare(place, options.bundle and options.bundle.resolve(), carried, [path.resolve() for path in options.release])
        if not (home / "caches").exists():
            state["warm"] = []
        campaign.run(table)
    finally:
        bring_back(campaign, out)
        campaign.say("all that is new is packed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
