"""The file that `perfgate kernels prove` writes and a session takes over into its record."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import orjson
from pydantic import TypeAdapter, ValidationError

from perfgate.errors import EvidenceError
from perfgate.evidence.journal import write_atomically
from perfgate.evidence.records import describe_first
from perfgate.kernel_proof import KernelProof

MAX_BYTES = 16 * 2**20


@cache
def _adapter() -> TypeAdapter[KernelProof]:
    return TypeAdapter(KernelProof)


def load_proof(path: Path) -> KernelProof:
    """Read a proof. Raise EvidenceError naming the file and the first field that is wrong."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror}); `perfgate kernels prove` writes one") from None
    if len(content) > MAX_BYTES:
        raise EvidenceError(f"{path}: more than {MAX_BYTES} bytes; give the file that `perfgate kernels prove` wrote")
    try:
        return _adapter().validate_python(orjson.loads(content))
    except orjson.JSONDecodeError as error:
        raise EvidenceError(f"{path}: not valid JSON ({error}); run `perfgate kernels prove` anew") from None
    except ValidationError as error:
        raise EvidenceError(f"{path}: {describe_first(error)}; run `perfgate kernels prove` anew") from None


def save_proof(proof: KernelProof, path: Path) -> None:
    """Write a proof, whole or not at all. Raise EvidenceError where that cannot be."""
    content = orjson.dumps(_adapter().dump_python(proof, mode="json"), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be written ({error.strerror}); choose another file with --output") from None
