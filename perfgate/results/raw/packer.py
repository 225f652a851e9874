"""Turn the folder of a finished session into a compact one: its raw files move into `raw.tar.xz`, everything else stays."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from perfgate.errors import EvidenceError
from perfgate.machine.folder_lock import lock_folder
from perfgate.results.answers import ANSWER_DIR, ANSWERS_FILE
from perfgate.results.expert_use import RAW_DIR as USE_DIR
from perfgate.results.folders import read_progressed
from perfgate.results.machine_samples import TELEMETRY_FILE, read_machine_samples
from perfgate.results.raw.pack import PACK_FILE, build_pack, find_damage, read_pack, read_raw
from perfgate.results.records import read_entries, read_record
from perfgate.results.server_info import SERVER_DIR
from perfgate.results.words import describe_damage
from perfgate.storage.bounded import unpack_gzip
from perfgate.storage.journal import WINDOW_DIR, read_bytes, read_lines, write_atomically

PATTERNS = (
    f"{WINDOW_DIR}/[0-9]*.jsonl.gz",
    f"{ANSWER_DIR}/start-*.json.gz",
    f"{SERVER_DIR}/start-*.json",
    f"{USE_DIR}/start-*.json.gz",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """What was moved: how many files, and what they and the packed file take."""

    files: int
    before_bytes: int
    after_bytes: int


def pack_folder(folder: Path, *, is_cut_off: bool = False) -> Packed:
    """Move the raw files of a session into its packed file, which is read back and compared before any of them is removed.

    A second call after a crash removes what the first one left. Raise EvidenceError, and change nothing, for a session that has
    not ended (unless `is_cut_off` says that it never will), that is damaged, or that is packed already.
    """
    read_record(folder)
    if not is_cut_off and not read_progressed(folder).is_ended:
        raise EvidenceError(
            f"{folder}: its session has not ended; continue with --resume first, or give --cut-off to keep it as it is"
        )
    with lock_folder(folder):
        names = _list_loose(folder)
        if not names:
            raise EvidenceError(f"{folder}: holds no raw files beside {PACK_FILE}; there is nothing to pack")
        if not (folder / PACK_FILE).exists():
            _require_undamaged(folder)
            _write(folder, names)
        _compare(folder, names)
        before_bytes = sum((folder / name).stat().st_size for name in names)
        _remove(folder, names)
    return Packed(files=len(names), before_bytes=before_bytes, after_bytes=(folder / PACK_FILE).stat().st_size)


def _list_loose(folder: Path) -> list[str]:
    names = [path.relative_to(folder).as_posix() for pattern in PATTERNS for path in sorted(folder.glob(pattern))]
    # Samples of which a crash tore some off stay where they are: their reader wants each gzip member by itself.
    is_whole = (folder / TELEMETRY_FILE).exists() and not read_machine_samples(folder).torn
    return names + [TELEMETRY_FILE] * is_whole


def _require_undamaged(folder: Path) -> None:
    answers = ((str(line.get("file")), str(line.get("sha256"))) for line in read_lines(folder / ANSWERS_FILE))
    for name, sha256 in (*((entry.file, entry.sha256) for entry in read_entries(folder)), *answers):
        if damage := find_damage(folder, name, sha256):
            raise EvidenceError(f"{folder}: {describe_damage(damage)}")


def _write(folder: Path, names: Iterable[str]) -> None:
    content = build_pack(_read_all(folder, names))
    try:
        write_atomically(folder / PACK_FILE, content)
    except OSError as error:
        raise EvidenceError(f"{folder / PACK_FILE}: cannot be written ({error.strerror}); nothing was removed") from None


def _read_all(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, str, bytes]]:
    for name in names:
        packed = read_bytes(folder / name)
        try:
            raw = unpack_gzip(packed, folder / name) if name.endswith(".gz") else packed
        except (EOFError, OSError, zlib.error) as error:
            raise EvidenceError(f"{folder / name}: damaged gzip file ({error}); nothing was packed") from None
        yield name, hashlib.sha256(packed).hexdigest(), raw


def _compare(folder: Path, names: Iterable[str]) -> None:
    """Raise EvidenceError unless the packed file gives back every loose file."""
    pack = read_pack(folder)
    for name in names:
        digest = hashlib.sha256(read_bytes(folder / name)).hexdigest()
        if pack is None or pack.find_damage(name, digest) or pack.read(name) != read_raw(folder / name):
            raise EvidenceError(f"{folder}: {PACK_FILE} and {name} differ; delete the one that is wrong")


def _remove(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        (folder / name).unlink()
    for name in (WINDOW_DIR, ANSWER_DIR, SERVER_DIR, USE_DIR):
        if (folder / name).is_dir() and not any((folder / name).iterdir()):
            (folder / name).rmdir()
