"""An artifact is a zip file that a pull request's code may have made: it is read in memory, in bounds, and never extracted."""

from __future__ import annotations

import re
import stat
import struct
import zipfile
import zlib
from dataclasses import fields
from pathlib import Path

from perfgate.errors import HandoffError
from perfgate.github.handoff.handoff import MAX_DOCUMENT_BYTES, Handoff, parse_handoff
from perfgate.github.handoff.subject import HandoffSubject
from perfgate.machine.accelerators import find_label_of_facts
from perfgate.machine.fingerprint import read_build
from perfgate.scenario.schema import NAME

MAX_ARCHIVE_BYTES = 32 * 2**20
MAX_MEMBERS = 16
MAX_TOTAL_BYTES = 2 * MAX_DOCUMENT_BYTES
MEMBER = re.compile(rf"handoff-{NAME}\.json")
ZIP_MAGIC = b"PK\x03\x04"
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1


def read_documents(path: Path) -> dict[str, bytes]:
    """Read the hand-offs in `path`, a zip file or a single document. Raise HandoffError for anything else that it holds."""
    content = _read_bounded(path, MAX_DOCUMENT_BYTES)
    if not content.startswith(ZIP_MAGIC):
        return {path.name: content}
    if len(content) > MAX_ARCHIVE_BYTES:
        raise HandoffError(f"{path}: {len(content)} bytes where an artifact has at most {MAX_ARCHIVE_BYTES}")
    try:
        with zipfile.ZipFile(path) as archive:
            return _read_members(archive, path)
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, NotImplementedError, ValueError) as error:
        raise HandoffError(f"{path}: no sound zip file ({type(error).__name__})") from None


def _read_bounded(path: Path, most: int) -> bytes:
    if path.is_symlink() or not path.is_file():
        raise HandoffError(f"{path}: no such file; give the artifact that the GPU job uploaded")
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise HandoffError(f"{path}: cannot be read ({error.strerror})") from None
    if len(content) > most:
        raise HandoffError(f"{path}: more than {most} bytes")
    return content


def _read_members(archive: zipfile.ZipFile, path: Path) -> dict[str, bytes]:
    members = archive.infolist()
    if not 0 < len(members) <= MAX_MEMBERS:
        raise HandoffError(f"{path}: {len(members)} members where an artifact has 1 to {MAX_MEMBERS}")
    documents: dict[str, bytes] = {}
    room = MAX_TOTAL_BYTES
    for number, member in enumerate(members):
        where = f"{path}: member {number}"
        _check_member(member, where)
        if member.filename in documents:
            raise HandoffError(f"{where}: a second member of one name")
        content = _read_member(archive, member, min(room, MAX_DOCUMENT_BYTES), where)
        room -= len(content)
        documents[member.filename] = content
    return documents


def _check_member(member: zipfile.ZipInfo, where: str) -> None:
    """What a name or mode could do on a disk does not matter, as nothing is extracted; it still shows who is at the door."""
    mode = member.external_attr >> 16
    reasons = (
        (not MEMBER.fullmatch(member.filename), "its name is not handoff-NAME.json"),
        (stat.S_IFMT(mode) not in (0, stat.S_IFREG), "it is a link, a folder or a device"),
        (bool(member.flag_bits & _ENCRYPTED), "it is encrypted"),
        (member.compress_type not in _METHODS, f"compression method {member.compress_type}"),
        (member.file_size > MAX_DOCUMENT_BYTES, f"it claims more than {MAX_DOCUMENT_BYTES} bytes"),
    )
    for is_wrong, reason in reasons:
        if is_wrong:
            raise HandoffError(f"{where}: refused, {reason}")


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, most: int, where: str) -> bytes:
    """Stop after `most` bytes, whatever size the archive claims."""
    with archive.open(member) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise HandoffError(f"{where}: unpacks to more than {most} bytes")
    return content


def open_artifact(path: Path, expected: HandoffSubject) -> tuple[Handoff, ...]:
    """Read an artifact and hold every document in it against the run it came from. Raise HandoffError for any difference."""
    documents = read_documents(path)
    handoffs = tuple(parse_handoff(content, name) for name, content in sorted(documents.items()))
    for name, handoff in zip(sorted(documents), handoffs, strict=True):
        check_subject(handoff, expected, name)
    names = [handoff.scenario for handoff in handoffs]
    if len(set(names)) < len(names):
        raise HandoffError(f"{path}: several hand-offs of one scenario; a scenario is measured once a run")
    return handoffs


def check_subject(handoff: Handoff, expected: HandoffSubject, source: str) -> None:
    """Refuse a document of another repository, pull request, commit, run or machine than `expected`."""
    for field in fields(HandoffSubject):
        claimed, due = getattr(handoff.subject, field.name), getattr(expected, field.name)
        if claimed != due:
            raise HandoffError(f"{source}: subject.{field.name} is {claimed}, but its run belongs to {due}; refused")
    if handoff.perfgate != (own := read_build()):
        raise HandoffError(
            f"{source}: measured by perfgate {handoff.perfgate}, and this side is {own}; install this commit on the machine"
        )
    for arm, found in handoff.arms.items():
        if (label := find_label_of_facts(found.facts)) != expected.hardware:
            raise HandoffError(f"{source}: arms.{arm.value} ran on {label}, where {expected.hardware} was asked for; refused")
