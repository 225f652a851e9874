"""Tiny mixture-of-experts models with random weights, written to a folder so that a gate runs without a hub or a GPU.

The weights are drawn, so the answers are noise; the shapes, the routing and the file layout are those of the real models. The
same name always gives the same bytes, on any machine: only a raw bit stream and exact float arithmetic are used, and the two
file formats are simple enough to be written here, so that no version of a library can change them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from perfgate.errors import InputError, PerfgateError
from perfgate.serving.model.model_folder import CONFIG, write_folder
from perfgate.serving.model.tiny_routed import route
from perfgate.serving.model.tiny_shapes import CONTEXT, MODELS, SPECIAL, VOCAB, Dtype, Tensor, TinyModel

if TYPE_CHECKING:
    Values = np.ndarray[tuple[int, ...], np.dtype[np.float32]]

ROUTED_ENDING = "-routed"


def write_tiny_model(folder: Path, name: str) -> Path:
    """Write the model `name` (with or without `generated:`) into `folder` and return it. Raise InputError for an unknown name.

    A name that ends in `-routed` draws the weights by a recipe, `perfgate.serving.model.routed_recipe`. A folder that already
    holds the model is left as it is, one that an older perfgate wrote is renewed, any other is refused.
    """
    plain = name.removeprefix("generated:")
    model = _build(plain.removesuffix(ROUTED_ENDING))
    return write_tiny(folder, route(model) if plain.endswith(ROUTED_ENDING) else model)


def write_tiny(folder: Path, model: TinyModel) -> Path:
    """Write a tiny model into `folder` as a checkpoint and return it. Raise InputError as `write_tiny_model` does."""
    return write_folder(
        folder,
        {
            "tokenizer.json": _json(_tokenizer()),
            "tokenizer_config.json": _json(_TOKENIZER_CONFIG),
            "generation_config.json": _json(_GENERATION_CONFIG),
            "model.safetensors": lambda: _weights(model),
            CONFIG: _json(model.config),
        },
    )


def _json(content: Mapping[str, object]) -> str:
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def _build(name: str) -> TinyModel:
    if name not in MODELS:
        raise InputError(f"model {name!r}: perfgate generates only {', '.join(sorted(MODELS))}")
    return MODELS[name]


def _draw(name: str, tensor: Tensor, seed: int) -> Values:
    """Draw uniformly with the wanted spread; a bit generator's raw stream is the one thing numpy promises never to change."""
    raw = np.random.PCG64([seed, crc32(name.encode())]).random_raw(prod(tensor.shape))
    uniform = (raw >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24) - np.float32(0.5)
    values = uniform * np.float32(tensor.spread * 12**0.5) + np.float32(tensor.mean)
    values = values.reshape(tensor.shape)
    if tensor.rows:
        values *= np.array(tensor.rows, np.float32).reshape(-1, *[1] * (len(tensor.shape) - 1))
    if tensor.first_column:
        values[:, 0] = np.array(tensor.first_column, np.float32)
    if name == "lm_head.weight":
        # A special token is invisible text: were one generated, its event would carry nothing and an ITL sample would be lost.
        values[: len(SPECIAL)] = 0.0
    return values


def _encode(values: Values, dtype: Dtype) -> bytes:

    if dtype == "float32":
        return values.astype("<f4").tobytes()
    # bfloat16 is the upper half of a float32, rounded to nearest even; numpy has no such type.
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def _weights(model: TinyModel) -> bytes:
    """Lay the weights out as a safetensors file: header length, JSON header, then the bytes of each tensor."""
    data = {name: _encode(_draw(name, tensor, model.seed), model.dtype) for name, tensor in model.tensors.items()}
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, content in data.items():
        shape = list(model.tensors[name].shape)
        header[name] = {"dtype": _DTYPE_CODES[model.dtype], "shape": shape, "data_offsets": [offset, offset + len(content)]}
        offset += len(content)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # aligned data can be mapped without a copy
    return len(text).to_bytes(8, "little") + text + b"".join(data.values())


_DTYPE_CODES: dict[Dtype, str] = {"bfloat16": "BF16", "float32": "F32"}


def vocabulary() -> tuple[str, ...]:
    """List the words by token id: the special ones, then two-syllable words of plain ASCII, no two alike."""
    syllables = [consonant + vowel for consonant in "bcdfghjklmnprstv" for vowel in "aeiou"]
    words = [first + second for first in syllables for second in syllables]
    return (*SPECIAL, *words[: VOCAB - len(SPECIAL)])


def _tokenizer() -> Mapping[str, object]:
    """Describe a word-level tokenizer: one token is one word, so token counts are exact and each token is its own event."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, "content": word, **flags} for index, word in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: index for index, word in enumerate(vocabulary())},
            "unk_token": "<unk>",
        },
    }


_TOKENIZER_CONFIG: Mapping[str, object] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": CONTEXT,
    "clean_up_tokenization_spaces": False,
    "unk_token": "<unk>",
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "pad_token": "<pad>",
}

_GENERATION_CONFIG: Mapping[str, object] = {
    "bos_token_id": SPECIAL.index("<bos>"),
    "eos_token_id": SPECIAL.index("<eos>"),
    "pad_token_id": SPECIAL.index("<pad>"),
    "do_sample": False,
}


def main(argv: list[str]) -> int:
    """Run as `python -m perfgate.serving.model.tiny_model NAME FOLDER` in the environment of the engine."""
    if len(argv) != 2:
        print(
            f"usage: python -m perfgate.serving.model.tiny_model NAME FOLDER; NAME is one of {', '.join(MODELS)}",
            file=sys.stderr,
        )
        return InputError.exit_code
    try:
        print(write_tiny_model(Path(argv[1]), argv[0]))
    except PerfgateError as error:
        print(f"perfgate: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
