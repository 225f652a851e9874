"""What a compiled kernel costs and which instructions it holds, read with the disassembler that Triton brings along."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from perfgate_moe.errors import BuildError

CUOBJDUMP_TIMEOUT_S = 60
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCode:
    """A compiled kernel: registers per thread, stack and local bytes per thread (spills), and its instructions by opcode."""

    registers: int
    stack_bytes: int
    local_bytes: int
    opcodes: Counter[str]

    def count(self, *names: str) -> int:
        """Instructions whose opcode is one of `names`, with any modifiers; a dotted name must match as a prefix."""
        return sum(
            amount
            for opcode, amount in self.opcodes.items()
            if any(opcode == name or opcode.startswith(name + ".") for name in names)
        )


def inspect(cubin: Path) -> MachineCode:
    """Read resource usage and SASS of a cubin file with one kernel."""
    usage = _USAGE.search(_cuobjdump("-res-usage", cubin))
    if usage is None:
        raise BuildError(f"{cubin}: cuobjdump reports no resource usage; is it a cubin with one kernel?")
    registers, stack, _, local = map(int, usage.groups())
    opcodes = Counter(_INSTRUCTION.findall(_cuobjdump("-sass", cubin)))
    return MachineCode(registers=registers, stack_bytes=stack, local_bytes=local, opcodes=opcodes)


def cuobjdump_path() -> Path:
    """The cuobjdump inside the installed Triton package."""
    found = find_spec("triton")
    if found is None or found.origin is None:
        raise BuildError("no cuobjdump: install triton 3.6, whose package carries it")
    path = Path(found.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not path.is_file():
        raise BuildError(f"no cuobjdump at {path}: install triton 3.6, whose package carries it")
    return path


def _cuobjdump(flag: str, cubin: Path) -> str:
    # Resource usage goes to stderr in some versions: read both.
    done = subprocess.run(
        [str(cuobjdump_path()), flag, str(cubin)], capture_output=True, text=True, timeout=CUOBJDUMP_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise BuildError(f"cuobjdump {flag} {cubin} failed: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout + done.stderr
