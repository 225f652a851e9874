"""Time one arm's layers inside its own environment, as a process of its own that takes a sample whenever it is asked for one.

Run by an arm's Python as `python -m perfgate_moe.timing.timekeeper`. The first line of JSON that it reads names
`implementation`, `shape`, a list of numbers of `tokens`, and `device`; it answers READY once all of them can be replayed. Each
later line names one number of `tokens` and is answered with `us`, the microseconds of a layer in one sample. On a GPU these are
CUDA graphs over rotating weights, timed by CUDA events, as in every survey. Needs torch alone.
"""

from __future__ import annotations

import json
from typing import IO

from perfgate_moe.exam.examiner import READY, open_requests
from perfgate_moe.exam.implementations import find
from perfgate_moe.timing.shapes import LAYERS, find_shape, problems, weight_sets
from perfgate_moe.timing.timing import count_replays, record, replay_ms


def main() -> None:
    """Answer each request on standard input as it comes; end with the input."""
    with open_requests() as (questions, answers):
        _serve(questions, answers)


def _serve(questions: IO[str], answers: IO[str]) -> None:
    """Make the layers ready, then take a sample of one a line."""
    request = json.loads(next(questions))
    run, shape = find(request["implementation"]).load(), find_shape(request["shape"])
    weights = weight_sets(shape, request["device"])
    layers = {count: record(run, problems(shape, count, weights)) for count in request["tokens"]}
    replays = {count: count_replays(one) for count, one in layers.items()}
    print(json.dumps(READY), file=answers, flush=True)
    for question in map(json.loads, questions):
        count = question["tokens"]
        print(json.dumps({"us": replay_ms(layers[count], replays[count]) * 1e3 / LAYERS}), file=answers, flush=True)


if __name__ == "__main__":
    main()
