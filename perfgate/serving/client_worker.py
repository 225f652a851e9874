"""The load generator's side of the client: SGLang's own bench_serving, imported once and run window after window.

Run as a script by the arm's Python, so it imports nothing of perfgate. Requests are JSON lines on standard input,
`{"argv": [...]}`, answers JSON lines on the descriptor that was standard output: `{"ready": true}` once, then
`{"ok": true}` or `{"ok": false, "error": "..."}`. Everything that bench_serving prints goes to standard error, the log.
"""

from __future__ import annotations

import copy
import functools
import importlib
import json
import os
import random
import subprocess
import sys
import time
import traceback
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any

# Newest first: the implementation moved, and the old path warns that it will go.
MODULES = ("sglang.benchmark.serving", "sglang.bench_serving")
# What they return depends on their arguments alone.
CONSTANT = ("get_tokenizer", "check_chat_template")
# Bench_serving rests a whole second between its warm-up request and the load, in every window. The server needs no such rest.
REST_S, SHORT_REST_S = 1.0, 0.05
# Says where a window goes to and where its results go, not what it sends.
PLACES = ("base_url", "host", "port", "output_file")
# Tokens that a hash id of a trace stands for.
BLOCK_TOKENS = 512


def load_bench_serving() -> ModuleType:
    """Import bench_serving from where this SGLang keeps it, and have it prepare windows that follow the first one faster."""
    for name in MODULES:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not name.startswith(error.name or "?"):
                raise
            continue
        if hasattr(module, "cli_main") or hasattr(module, "run_benchmark"):
            quicken(module)
            return module
    raise SystemExit(f"no bench_serving in this Python: tried {', '.join(MODULES)}")


def quicken(module: ModuleType) -> None:
    """Remove what idles the server from all windows but the first: each sends the same requests, only sooner."""
    for name in CONSTANT:
        if hasattr(module, name):
            setattr(module, name, functools.lru_cache(maxsize=4)(getattr(module, name)))
    if hasattr(module, "get_dataset"):
        module.get_dataset = draw_once(draw_any(module))  # type: ignore[attr-defined]
    if hasattr(module, "get_request"):
        module.get_request = keep_times(module.get_request)  # type: ignore[attr-defined]
    module.time = SimpleNamespace(**{**vars(time), "sleep": rest})  # type: ignore[attr-defined]


def rest(seconds: float) -> None:
    """Sleep, but briefly where that second is meant."""
    time.sleep(SHORT_REST_S if seconds == REST_S else seconds)


def draw_any(module: ModuleType) -> Callable[..., Any]:
    """Bench_serving's data sets, and a trace by its lengths and shared blocks, which its own `mooncake` replaces by others."""
    get_dataset = module.get_dataset

    def draw(args: Namespace, tokenizer: Any, *more: Any) -> Any:
        if not getattr(args, "use_trace_timestamps", False):
            return get_dataset(args, tokenizer, *more)
        with Path(args.dataset_path).open(encoding="utf-8") as file:
            return draw_trace([json.loads(line) for line in file], args.seed, tokenizer.vocab_size, module.DatasetRow)

    return draw


def draw_trace(lines: list[dict[str, Any]], seed: int, vocabulary: int, build: Callable[..., Any]) -> list[Any]:
    """Requests of exactly the trace's lengths, as token ids: equal hash ids are equal tokens, all else differs."""

    @functools.cache
    def draw_tokens(name: str, count: int) -> list[int]:
        return random.Random(f"{seed} {name}").choices(range(vocabulary), k=count)  # noqa: S311 - prompts, no secrets

    rows = []
    for index, line in enumerate(lines):
        length, blocks = line["input_length"], line["hash_ids"]
        drawn = (draw_tokens(f"block {block}", BLOCK_TOKENS) for block in blocks)
        tokens = [token for block in drawn for token in block] if blocks else draw_tokens(f"request {index}", length)
        rows.append(
            build(prompt=tokens[:length], prompt_len=length, output_len=line["output_length"], timestamp=line["timestamp"])
        )
    return rows


def keep_times(send: Callable[..., Any]) -> Callable[..., Any]:
    """Have bench_serving's own sender keep a trace's times, for which its command line never asks; tell how late it was."""

    async def send_in_time(requests: list[Any], *more: Any) -> Any:
        if getattr(requests[0], "timestamp", None) is None:
            async for request in send(requests, *more):
                yield request
            return
        late_s, begun_s = 0.0, time.perf_counter()
        async for request in send(requests, *more, use_trace_timestamps=True):
            late_s = max(late_s, time.perf_counter() - begun_s - (request.timestamp - requests[0].timestamp) / 1e3)
            yield request
        print(f"trace: {len(requests)} requests, each at most {late_s * 1e3:.1f} ms after its time")

    return send_in_time


def draw_once(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the requests of a load, and the random state in which drawing them left us: arrival times are drawn from it."""
    drawn: dict[str, Any] = {}

    def draw_or_recall(args: Namespace, tokenizer: Any, *more: Any) -> Any:
        facts = {name: value for name, value in vars(args).items() if name not in PLACES}
        key = repr((sorted(facts.items()), id(tokenizer), more))
        if key not in drawn:
            drawn[key] = (draw(args, tokenizer, *more), *read_random())
        requests, python, arrays = drawn[key]
        random.setstate(python)
        if arrays is not None:
            sys.modules["numpy"].random.set_state(arrays)
        # A window may write into its requests.
        return copy.deepcopy(requests)

    return draw_or_recall


def read_random() -> tuple[Any, Any]:
    """The states of both generators that bench_serving draws from."""
    numpy = sys.modules.get("numpy")
    return random.getstate(), None if numpy is None else numpy.random.get_state()


def run_window(module: ModuleType, argv: list[str]) -> dict[str, Any]:
    """Run one window through bench_serving's own command line and say how it ended.

    Older releases have a command line only where they are run as a program: there a process is started for each window.
    """
    if not hasattr(module, "cli_main"):
        done = subprocess.run([sys.executable, "-m", module.__name__, *argv], stdin=subprocess.DEVNULL, check=False)
        return {"ok": True} if done.returncode == 0 else {"ok": False, "error": f"bench_serving exited with {done.returncode}"}
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
