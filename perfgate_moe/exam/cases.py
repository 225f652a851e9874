"""The matrix of problems: each case is one line of text that rebuilds its tensors bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from perfgate_moe.errors import MoeInputError
from perfgate_moe.layer.problem import ACTIVATIONS, MICRO_BLOCK, QUANTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROUTINGS = ("uniform", "zipf", "same", "empty", "blocks", "duplicate")
MASKS = ("none", "ep", "all", "padded")
WEIGHTS = ("normal", "raw", "odd")
DATA = ("normal", "exact", "edges", "outlier", "nan", "inf", "cancel", "flat")
INTEGER_DATA = ("exact", "cancel")
BIASES = ("on", "off", "large")
DTYPES = ("float32", "float16", "bfloat16")
HALF_DTYPES = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCase:
    """One problem: a shape, a routing, options, a dtype and a kind of data.

    E experts of which each token uses k, hidden size H, intermediate size I (of this shard), M tokens. `str(case)` names all
    that differs from the defaults and `LayerCase.parse` reads it back.
    """

    E: int = 8
    k: int = 4
    H: int = 64
    I: int = 96
    M: int = 16
    dtype: str = "float32"
    activation: str = "swiglu"
    routing: str = "uniform"
    mask: str = "none"
    weights: str = "normal"
    bias: str = "on"
    data: str = "normal"
    scaling: float = 1.0
    on_input: int = 0
    seed: int = 0
    quant: str = "none"

    def __post_init__(self) -> None:
        choices = {"dtype": DTYPES, "activation": tuple(ACTIVATIONS), "routing": ROUTINGS, "mask": MASKS}
        choices |= {"weights": WEIGHTS, "bias": BIASES, "data": DATA, "quant": QUANTS}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise MoeInputError(f"case field {name}={getattr(self, name)}: choose one of {', '.join(allowed)}")
        if min(self.E, self.k, self.H, self.I) < 1 or self.M < 0 or self.k > self.E:
            raise MoeInputError(f"case {self}: needs E, k, H, I >= 1, M >= 0 and k <= E")
        self._require_data_that_is_defined()
        if self.quant == "mxfp4" and (self.H % MICRO_BLOCK or self.I % MICRO_BLOCK):
            raise MoeInputError(f"case {self}: 4-bit weights need H and I that are multiples of {MICRO_BLOCK}")

    def _require_data_that_is_defined(self) -> None:
        if self.data in INTEGER_DATA and (self.activation, self.bias) != ("silu", "on"):
            raise MoeInputError(f"case {self}: data={self.data} is exact only with activation=silu and bias=on")
        is_even = self.E % 2 == self.k % 2 == 0 and (self.routing, self.mask) == ("uniform", "none")
        if self.data == "cancel" and (self.dtype == "float32" or not is_even):
            raise MoeInputError(f"case {self}: data=cancel needs 16 bits, even E and k, routing=uniform and mask=none")
        if self.data == "flat" and (self.bias != "on" or self.activation == "silu"):
            raise MoeInputError(f"case {self}: data=flat needs bias=on and an activation with an alpha, such as swiglu")
        is_drawn = self.data not in (*INTEGER_DATA, "flat")
        if self.quant != "none" and (self.dtype == "float32" or not is_drawn or self.on_input):
            raise MoeInputError(f"case {self}: a quantised layer has 16-bit tokens, drawn data and weights on the output")

    @property
    def precision(self) -> str:
        """What rounds in this case: 8 bits where activations are rounded to them, the layer's dtype otherwise.

        4-bit weights are exact numbers of 16 bits, and nothing else is rounded for them.
        """
        return "fp8" if self.quant == "fp8" else self.dtype

    def __str__(self) -> str:
        """The case as `name=value` pairs, shapes first, defaults left out."""
        always = {"E", "k", "H", "I", "M", "dtype"}
        pairs = ((entry.name, getattr(self, entry.name), entry.default) for entry in fields(self))
        shown = ((name, value) for name, value, default in pairs if name in always or value != default)
        return ",".join(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in shown)

    @classmethod
    def parse(cls, text: str) -> LayerCase:
        """Read what `str(case)` wrote; MoeInputError names the pair that cannot be read."""
        kinds = _kinds()
        values: dict[str, str | int | float] = {}
        for pair in text.split(","):
            name, _, value = pair.partition("=")
            if name not in kinds:
                raise MoeInputError(f"case {text!r}: unknown field {name!r}; fields are {', '.join(kinds)}")
            try:
                values[name] = kinds[name](value)
            except ValueError as error:
                raise MoeInputError(f"case {text!r}: {name}={value!r} is not {kinds[name].__name__}") from error
        return cls(**values)  # type: ignore[arg-type]


def _kinds() -> dict[str, type[str | int | float]]:
    """The type of each field, from its default."""
    defaults = LayerCase()
    return {entry.name: type(getattr(defaults, entry.name)) for entry in fields(LayerCase)}


def _vary(base: dict[str, str | int | float], **axes: Iterable[str | int | float]) -> Iterator[LayerCase]:
    """One case per value of each axis, the other fields as in `base`."""
    for name, values in axes.items():
        yield from (LayerCase(**{**base, name: value}) for value in values)  # type: ignore[arg-type]


def quick_matrix() -> tuple[LayerCase, ...]:
    """Small cases that a CPU runs in seconds: every value of every axis, odd shapes, token counts around block edges."""
    base: dict[str, str | int | float] = {"E": 8, "k": 4, "H": 64, "I": 96, "M": 33}
    silu = base | {"activation": "silu", "bias": "off"}
    cases = [
        *_vary(base, dtype=DTYPES, routing=ROUTINGS, mask=MASKS, weights=WEIGHTS, bias=BIASES, data=("normal", "edges", "nan")),
        *_vary(base, M=(0, 1, 2, 3, 7, 15, 16, 17, 31, 32, 63, 64, 65, 129), H=(63, 65, 127, 129, 511), I=(32, 95, 511)),
        *_vary(base, k=(1, 2, 3, 8), scaling=(2.5,), activation=ACTIVATIONS),
        *_vary(silu, dtype=DTYPES, data=("normal", "outlier"), on_input=(1,), scaling=(2.5,), mask=("ep",)),
        *_vary(silu | {"bias": "on", "data": "exact"}, dtype=DTYPES, M=(1, 33, 65), H=(63, 129), mask=("ep", "padded")),
        *_vary({"E": 5, "k": 3, "H": 80, "I": 96, "M": 17}, dtype=DTYPES, activation=ACTIVATIONS, routing=ROUTINGS),
        *_vary({"E": 16, "k": 8, "H": 128, "I": 192, "M": 48}, dtype=DTYPES, mask=("ep",), routing=("zipf",)),
        *_vary(base | {"dtype": "bfloat16"}, mask=MASKS, bias=BIASES, data=("edges", "nan"), M=(1, 65)),
        *_vary(base | {"dtype": "float16"}, mask=MASKS, data=("edges", "nan"), M=(1, 65)),
        *_vary(base | {"routing": "blocks", "k": 2}, M=(16, 17, 64, 65), mask=("ep",)),
        *sixteen_bit_matrix(),
        *fp8_matrix(),
        *mxfp4_matrix(),
    ]
    return tuple(dict.fromkeys(cases))


def sixteen_bit_matrix() -> tuple[LayerCase, ...]:
    """What a layer that computes in 16 bits alone must be asked, and sizes beyond those of an index or a tile.

    Each case is there for wrong kernels that no other one finds; `tests/kernels/exam/test_mutants.py` names them.
    """
    base: dict[str, str | int | float] = {"E": 8, "k": 4, "H": 64, "I": 96, "M": 33, "dtype": "bfloat16"}
    silu = base | {"activation": "silu", "bias": "off"}
    wide = base | {"E": 4, "k": 2, "H": 1056, "I": 1056, "M": 64}
    cases = [
        *_vary(base, I=(104,), M=(257,), scaling=(2.5,), routing=("duplicate",), weights=("odd",)),
        *_vary(silu | {"on_input": 1}, scaling=(1.0, 2.5)),
        *_vary(silu | {"bias": "on", "data": "cancel"}, dtype=HALF_DTYPES),
        *_vary(base | {"mask": "all"}, data=("nan",)),
        *_vary(wide | {"data": "flat"}, dtype=HALF_DTYPES),
        *_vary(silu | {"E": 264, "k": 10, "I": 32, "M": 48}, routing=("same",)),
        *_vary(base | {"H": 32, "I": 32}, M=(16400,)),
    ]
    return tuple(dict.fromkeys(cases))


def fp8_matrix() -> tuple[LayerCase, ...]:
    """Layers of 8-bit weights in blocks of 128: whole and partial blocks both ways, gates and ups in different ones."""
    base: dict[str, str | int | float] = {"E": 4, "k": 2, "H": 256, "I": 384, "M": 17, "dtype": "bfloat16", "quant": "fp8"}
    silu = base | {"activation": "silu", "bias": "off"}
    cases = [
        *_vary(base, mask=MASKS, data=("normal", "edges", "nan"), M=(1, 65), scaling=(2.5,)),
        *_vary(silu, H=(128, 320), I=(64, 128, 200), mask=("ep",), routing=("duplicate",), dtype=("float16",)),
    ]
    return tuple(dict.fromkeys(cases))


def mxfp4_matrix() -> tuple[LayerCase, ...]:
    """Layers of 4-bit weights, as gpt-oss has them; sizes that no tile divides."""
    base: dict[str, str | int | float] = {"E": 4, "k": 2, "H": 160, "I": 96, "M": 17, "dtype": "bfloat16", "quant": "mxfp4"}
    cases = [
        *_vary(base, dtype=("bfloat16", "float16"), mask=MASKS, data=("edges", "nan"), M=(1, 65), H=(32, 256), I=(32, 192)),
        *_vary(base | {"activation": "silu", "bias": "off"}, mask=("ep",), scaling=(2.5,)),
    ]
    return tuple(dict.fromkeys(cases))


# Token counts beside a block's edge by one and by two: blocks are of 16, 32, 64 and 128 rows.
EDGE_TOKENS = (0, 1, 2, 3, 7, 14, 15, 16, 17, 18, 30, 31, 32, 33, 34, 62, 63, 64, 65, 66, 126, 127, 128, 129, 130, 1000)
# Rows of odd widths are out of reach of the tensor copy engine; those of whole 16 bytes go through it and end within a tile.
ODD_HIDDEN = (63, 65, 127, 129, 511, 72, 136, 520)
ODD_INTERMEDIATE = (32, 95, 511, 40, 104, 520)


def half_matrix() -> tuple[LayerCase, ...]:
    """Every axis again in 16 bits, where other tiles, tensor copies and half-filled blocks are used than in float32."""
    cases: list[LayerCase] = []
    for dtype in HALF_DTYPES:
        base: dict[str, str | int | float] = {"E": 8, "k": 4, "H": 64, "I": 96, "M": 33, "dtype": dtype}
        silu = base | {"activation": "silu", "bias": "off"}
        chunked = base | {"activation": "swiglu-chunked"}
        cases += [
            *_vary(
                base, M=EDGE_TOKENS, H=ODD_HIDDEN, I=ODD_INTERMEDIATE, k=(1, 2, 3, 8), scaling=(2.5,), activation=ACTIVATIONS
            ),
            *_vary(base, routing=ROUTINGS, mask=MASKS, weights=WEIGHTS, bias=BIASES, data=("edges", "nan", "inf")),
            *_vary(chunked, M=(1, 129), H=(65, 136), I=(95, 104), mask=("ep", "padded")),
            *_vary(
                silu, data=("outlier", "nan", "inf"), on_input=(1,), scaling=(2.5,), mask=MASKS, M=(1, 129), H=(65,), I=(95,)
            ),
            *_vary(silu | {"on_input": 1}, mask=("ep",), M=(1, 129), H=(65,), I=(95,), weights=("odd",)),
            *_vary(silu | {"bias": "on", "data": "exact"}, M=(1, 33, 65, 129), H=(63, 129), mask=("ep", "padded")),
            *_vary(base | {"E": 5, "k": 3, "H": 80, "M": 17}, activation=ACTIVATIONS, routing=ROUTINGS),
            *_vary(base | {"E": 16, "k": 8, "H": 128, "I": 192, "M": 48}, mask=("ep",), routing=("zipf",)),
            *_vary(base | {"routing": "blocks", "k": 2}, M=(16, 17, 64, 65, 128, 129), mask=("ep",)),
        ]
    return tuple(dict.fromkeys(cases))


# Real layers: gpt-oss-20b with its TP2 and TP4 shards, gpt-oss-120b, Qwen3-30B, and TP8 shards of Qwen3-235B, DeepSeek-V3
# and Mixtral.
MODEL_SHAPES: tuple[dict[str, str | int | float], ...] = (
    {"E": 32, "k": 4, "H": 2880, "I": 2880},
    {"E": 32, "k": 4, "H": 2880, "I": 1440},
    {"E": 32, "k": 4, "H": 2880, "I": 720},
    {"E": 128, "k": 4, "H": 2880, "I": 2880},
    {"E": 128, "k": 8, "H": 2048, "I": 768, "activation": "silu", "bias": "off"},
    {"E": 128, "k": 8, "H": 2048, "I": 192, "activation": "silu", "bias": "off"},
    {"E": 256, "k": 8, "H": 7168, "I": 256, "activation": "silu", "bias": "off", "scaling": 2.5},
    {"E": 8, "k": 2, "H": 4096, "I": 1792, "activation": "silu", "bias": "off"},
)
# Mixtral's TP2 shard, the widest, and gpt-oss's sizes with so many experts that the first weight has more than 2^31 elements:
# an offset of 32 bits would wrap. Both fit a GPU of 80 GB.
WIDE_SHAPE: dict[str, str | int | float] = {"E": 8, "k": 2, "H": 4096, "I": 7168, "activation": "silu", "bias": "off"}
LARGE_SHAPE: dict[str, str | int | float] = {"E": 160, "k": 4, "H": 2880, "I": 2880}
FP8_SHAPES = (MODEL_SHAPES[6], MODEL_SHAPES[4])  # DeepSeek-V3 ships 8-bit blocks, and Qwen3-30B has a variant of them
# What the exam of a pull request asks of each layer: decode, a full graph, a prefill whose tokens have half of their experts
# elsewhere, one whose tokens all want the same experts, and more slots than a 16-bit index has.
EXAM_TOKENS = (
    {"M": 1},
    {"M": 64},
    {"M": 257, "routing": "zipf", "mask": "ep"},
    {"M": 1025, "routing": "same"},
    {"M": 8200, "routing": "zipf"},
)
MODEL_TOKENS = (1, 2, 4, 8, 16, 17, 64, 127, 256, 1024, 1025, 4096)


def exam_matrix(layers: Iterable[LayerCase]) -> tuple[LayerCase, ...]:
    """What a pull request is asked on a GPU: the quick matrix, and `layers` of real models at their own sizes."""
    own = (replace(layer, **changes) for layer in layers for changes in EXAM_TOKENS)
    return tuple(dict.fromkeys((*quick_matrix(), *own)))


def full_matrix() -> tuple[LayerCase, ...]:
    """What a GPU adds to the quick matrix: every axis in 16 bits; the layers of real models over M, routing, masks and data."""
    cases = [*quick_matrix(), *half_matrix()]
    for dtype in HALF_DTYPES:
        cases += _vary(WIDE_SHAPE | {"dtype": dtype}, M=(1, 16, 127, 1024))
    cases += _vary(LARGE_SHAPE | {"dtype": "bfloat16"}, M=(4, 64, 1024, 4096))
    for shape, dtype in ((shape, dtype) for shape in MODEL_SHAPES for dtype in HALF_DTYPES):
        cases += _vary(shape | {"dtype": dtype}, M=MODEL_TOKENS)
        cases += _vary(shape | {"dtype": dtype, "M": 127}, routing=ROUTINGS, mask=MASKS, weights=WEIGHTS, data=("nan",))
    cases += _vary(MODEL_SHAPES[0] | {"dtype": "bfloat16"}, M=(128, 1000, 1023, 4095, 4097, 8192))
    cases += _vary(MODEL_SHAPES[0] | {"dtype": "bfloat16", "quant": "mxfp4"}, M=MODEL_TOKENS)
    cases += _vary(MODEL_SHAPES[0] | {"dtype": "bfloat16", "quant": "mxfp4", "M": 127}, mask=MASKS, routing=("zipf", "same"))
    for shape in FP8_SHAPES:
        cases += _vary(shape | {"dtype": "bfloat16", "quant": "fp8"}, M=MODEL_TOKENS)
        cases += _vary(shape | {"dtype": "bfloat16", "quant": "fp8", "M": 127}, mask=MASKS, routing=("zipf", "same"))
    return tuple(dict.fromkeys(cases))
