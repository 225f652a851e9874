"""The load generator's side of the client: SGLang's own bench_serving, imported once and run window after window.

Run as a script by the arm's Python, so it imports nothing of perfgate. Requests are JSON lines on standard input,
`{"argv": [...]}`, answers JSON lines on the descriptor that was standard output: `{"ready": true}` once, then
`{"ok": true}` or `{"ok": false, "error": "..."}`. Everything that bench_serving prints goes to standard error, the log.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import traceback
from types import ModuleType
from typing import IO, Any

# Newest first: the implementation moved, and the old path warns that it will go.
MODULES = ("sglang.benchmark.serving", "sglang.bench_serving")


def load_bench_serving() -> ModuleType:
    """Import bench_serving from where this SGLang keeps it, and cache its tokenizer across windows."""
    for name in MODULES:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not name.startswith(error.name or "?"):
                raise
            continue
        if hasattr(module, "cli_main") or hasattr(module, "run_benchmark"):
            module.get_tokenizer = functools.lru_cache(maxsize=4)(module.get_tokenizer)  # type: ignore[attr-defined]
            return module
    raise SystemExit(f"no bench_serving in this Python: tried {', '.join(MODULES)}")


def run_window(module: ModuleType, argv: list[str]) -> dict[str, Any]:
    """Run one window through bench_serving's own command line and say how it ended."""
    sys.argv = ["bench_serving", *argv]
    try:
        module.cli_main()
    except SystemExit as error:
        if error.code not in (None, 0):
            return {"ok": False, "error": f"bench_serving exited with {error.code}"}
    except Exception as error:  # noqa: BLE001 - foreign code: whatever it raises voids this window only
        traceback.print_exc()
        return {"ok": False, "error": f"{type(error).__name__}: {error}"[:500]}
    return {"ok": True}


def serve(requests: IO[str], answers: IO[str]) -> None:
    """Answer requests until the pipe closes."""
    module = load_bench_serving()
    answers.write('{"ready": true}\n')
    answers.flush()
    for line in requests:
        answers.write(json.dumps(run_window(module, json.loads(line)["argv"])) + "\n")
        answers.flush()


if __name__ == "__main__":
    protocol = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.stdin, protocol)
