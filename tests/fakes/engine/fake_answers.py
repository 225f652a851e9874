"""What the fake engine generates: a language model made of hashes, with the faults that a real one shows.

`fault` is what FAKE_ANSWER chooses: ok, noisy (last bits differ at each request), near (drifts a little and flips tokens),
wrong (drifts a lot), one_prompt (drifts in the last prompt), empty, early (ends by itself), cut, cut_scores, missing (a prompt
is lost), cached, mixed (answers another prompt), nan, positive, constant, other_text (another tokenizer), html (no JSON), other
(another form), refuse (HTTP 500), hang_up.
"""

import json
import os
import random
import zlib

SPREAD = 2.0
DRIFTS = {"noisy": 0.002, "near": 0.05, "wrong": 2.0}
noise = random.Random(os.getpid())


def draw(*parts):
    return random.Random(zlib.crc32(repr(parts).encode()))


def score(place, drift, fault):
    """The log-prob of the token at a place of a text: always the same, but for a drift."""
    if fault == "constant":
        return -8.0
    shift = drift * (noise.gauss(0, 1) if fault == "noisy" else draw("drift", *place).gauss(0, 1))
    return min(-0.01, -12.0 + SPREAD * (draw(*place).gauss(0, 1) + shift))


def answer_one(prompt, length, number, count, fault):
    drift = 2.0 if fault == "one_prompt" and number == count - 1 else DRIFTS.get(fault, 0.0)
    inputs = [
        [None if place == 0 else score((prompt[place - 1], token), drift, fault), token, None]
        for place, token in enumerate(prompt)
    ]
    text, outputs = list(prompt), []
    for place in range(length):
        flips = drift >= 0.05 and place == 5 + number % 3
        token = draw(text[-1]).randrange(1000, 2000) + flips
        outputs.append([score((text[-1], "top"), drift, fault), token, None])
        text.append(token)
    meta = {"finish_reason": {"type": "length", "length": length}, "prompt_tokens": len(prompt), "cached_tokens": 0}
    if number == 3:
        spoil(meta, inputs, outputs, fault)
    return {
        "text": ("Wort " if fault == "other_text" else "word ") * len(outputs),
        "output_ids": [token for _, token, _ in outputs],
        "meta_info": {
            "id": f"request-{number}",
            "weight_version": "default",
            **meta,
            "input_token_logprobs": inputs,
            "output_token_logprobs": outputs[: -1 if fault == "cut_scores" else None],
            "completion_tokens": length if fault in {"cut", "empty"} else len(outputs),
        },
    }


def spoil(meta, inputs, outputs, fault):
    if fault == "empty":
        outputs.clear()
    if fault in {"early", "cut"}:
        del outputs[5:]
    if fault == "early":
        meta["finish_reason"] = {"type": "stop", "matched": 2}
    if fault == "cached":
        meta["cached_tokens"] = len(inputs)
    if fault == "mixed":
        inputs[4][1] += 1
    if fault == "nan":
        outputs[7][0] = None
    if fault == "positive":
        outputs[7][0] = 3.5


def generate(question, fault="ok"):
    """Return status and body as SGLang's /generate does for a list of prompts."""
    if fault == "refuse":
        return 500, b'{"error": {"message": "logprobs are not supported here"}}'
    if fault == "html":
        return 200, b"<html>504 Gateway Time-out</html>"
    if fault == "other":
        return 200, json.dumps([{"text": "word"}] * len(question["input_ids"])).encode()
    is_single = isinstance(question["input_ids"][0], int)
    prompts = [question["input_ids"]] if is_single else question["input_ids"]
    length = question["sampling_params"]["max_new_tokens"]
    answers = [answer_one(prompt, length, number, len(prompts), fault) for number, prompt in enumerate(prompts)]
    return 200, json.dumps(answers[0] if is_single else answers[: -1 if fault == "missing" else None]).encode()
