"""Profile a living server for one small window: which kernels run, and how long, while it answers a fixed batch.

The batch is as wide as the scenario's load and has prompts of its length; all requests run in step, so one token of each is one
forward step of the whole batch. PyTorch's profiler slows the server while it records and may do so afterwards, so a
profile is taken after the last window that counts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from perfgate.errors import ServerError
from perfgate.evidence import Question
from perfgate.readers.replies import draw_prompts
from perfgate.results.profiling.profiles import Profile, store_profile
from perfgate.scenario.load import Load
from perfgate.serving.engine.conversation import post
from perfgate.serving.engine.machine_code import combine, read_codes
from perfgate.serving.engine.server import Server
from perfgate.serving.equivalence import GENERATE_PATH
from perfgate.serving.model.model_guard import read_vocabulary

START_PATH, STOP_PATH = "/start_profile", "/stop_profile"
MAX_STEPS = 32
# Where a data set has lengths of its own, prompts of this one stand for it.
INPUT_LEN = 512
# One batch to warm the shapes of the other; different prompts, so that no prefix of the second is known.
WARM_SEED, PROFILED_SEED = 101, 102
# Writing a trace takes the server longer than recording it.
TIMEOUT_S = 300.0
PATTERN = "*.trace.json*"


def profile_server(server: Server, load: Load, folder: Path, place: Profile) -> Profile:
    """Profile one batch and put its traces and their index line into the result folder; `place` says which start it is.

    Where prefill and decode are apart, what decodes is profiled.

    Raise ServerError when the server refuses, dies, or writes no trace.
    """
    if not server.launch.engine.is_profiled:
        raise ServerError(f"engine {server.launch.engine.name} starts no profiler by request")
    profile = replace(place, steps=min(load.output_len or MAX_STEPS, MAX_STEPS), prompts=load.max_concurrency)
    target = folder / profile.folder
    target.mkdir(parents=True)
    vocabulary = read_vocabulary(server.launch.model)
    _generate(server, load, profile, vocabulary, WARM_SEED)
    options = {
        "output_dir": str(target.resolve()),
        "activities": ["CPU", "GPU"] if server.launch.engine.uses_gpu else ["CPU"],
        # Stacks and shapes make a trace ten times as large and tell nothing of a kernel's time.
        "with_stack": False,
        "record_shapes": False,
    }
    post(server, server.engine_urls[-1] + START_PATH, options, what="to start the profiler", timeout_s=TIMEOUT_S)
    _generate(server, load, profile, vocabulary, PROFILED_SEED)
    post(server, server.engine_urls[-1] + STOP_PATH, {}, what="to stop the profiler", timeout_s=TIMEOUT_S)
    traces = sorted(target.glob(PATTERN))
    if not traces:
        raise ServerError(f"the server's profiler wrote no trace into {target} (log {server.log})")
    codes = read_codes(server.launch.env) or {}
    return store_profile(folder, replace(profile, code={name: combine(found) for name, found in codes.items()}), traces)


def _generate(server: Server, load: Load, profile: Profile, vocabulary: int, seed: int) -> None:
    question = Question(
        prompts=profile.prompts, input_len=load.input_len or INPUT_LEN, output_len=profile.steps, vocab=vocabulary, seed=seed
    )
    sampling = {"temperature": 0.0, "max_new_tokens": question.output_len, "ignore_eos": True}
    content = {"input_ids": draw_prompts(question), "sampling_params": sampling}
    post(server, GENERATE_PATH, content, what="the batch to profile", timeout_s=load.timeout_s)
