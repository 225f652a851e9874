"""How the weights of a routed model are drawn: a recipe of few numbers, written into its config.json when the model is made.

A model with drawn weights is good for measuring a mixture of experts only if its router chooses by token and by layer, if its
activations keep their size through all layers, and if its experts matter to its logits. The recipe holds a spread (standard
deviation) for each kind of parameter so that this is so: embeddings of order one, norms of one, and every sub-layer adds to
the residual stream with a variance of order one over the number of layers, as is common for untrained transformers.

Loads of experts are made uneven as trained models' are. Published measurements give Gini coefficients of expert load on real
text: 0.11 to 0.15 for DeepSeek-MoE-16B and Nemotron-30B, above 0.24 for DeepSeek-V2-Lite and Qwen3.5-35B-A3B (arXiv 2605.20982,
abstract); 0.29 to 0.41 for Granite-3.0-1B-A400M and 0.27 to 0.56 for OLMoE-1B-7B (github.com/MakazhanAlpamys/Soup, pull request
992). The default, a largest load of twice the mean, gives 0.25 for 32 experts of which 4 serve a token (gpt-oss-20b) and 0.18
for 128 of which 8 do (Qwen3-30B-A3B).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from perfgate.errors import InputError

VERSION = 1
DEFAULT_SEED = 20
# The load of a layer's most popular expert over the mean load.
DEFAULT_IMBALANCE = 2.0

ROUTED = "routed"
WEIGHTS_KEY = "perfgate_weights"
RECIPE_KEY = "perfgate_recipe"
# Its name in the config.json of models that are made already: they go on being read.
NEVER_GENERATED_KEY = "silent_words"
# What the server's log says once the parameters are filled; `perfgate: routed weights v1 seed 20: 339 tensors`.
MARKER = "perfgate: routed weights"

# Variances that all layers together add to the residual stream, whose embedding has variance 1.
MOE_VARIANCE = 2.0
SHARED_VARIANCE = 0.5
DENSE_VARIANCE = 1.0
# Attention averages over keys, so its output is smaller than the values; this factor makes up for about half of that.
ATTENTION_GAIN = 2.0
BIAS_SPREAD = 0.1
# Small beside the spread of a sigmoid router's scores, 0.2: the popularity of experts is to come from the rows alone.
ROUTER_BIAS_SPREAD = 0.02
# A word's row of the output matrix is scaled by a log-normal factor of this deviation: the popularity of words is uneven too,
# and the largest logit leads the second one by more than normal rows would let it.
WORD_DEVIATION = 0.5
LOGIT_SPREAD = 2.0
# Root mean square of what the activation makes of unit normal gate and up values: SwiGLU, and gpt-oss's with its up + 1.
SILU_RMS, CLAMPED_RMS = 0.596, 0.92

Role = Literal[
    "norm",
    "qk_norm",
    "cache_scale",
    "embedding",
    "head",
    "sink",
    "attention_in",
    "query_up",
    "value_up",
    "attention_out",
    "router",
    "router_bias",
    "gate_up",
    "down",
    "shared_gate_up",
    "shared_down",
    "dense_gate_up",
    "dense_down",
    "bias",
    "out_bias",
]

# The first one that matches names the role; the names are those of SGLang's parameters and of the published checkpoints.
_ROLES: tuple[tuple[str, Role], ...] = (
    (r"self_attn\.[qk]_norm\.weight$", "qk_norm"),
    (r"norm\.weight$", "norm"),
    (r"\.[kv]_scale$", "cache_scale"),
    (r"embed_tokens\.weight$", "embedding"),
    (r"^lm_head\.weight$", "head"),
    (r"self_attn\.sinks$", "sink"),
    (r"mlp\.(gate|router)\.weight$", "router"),
    (r"mlp\.(gate|router)\.(bias|e_score_correction_bias)$", "router_bias"),
    (r"(o_proj|down_proj)\.bias$|(w2_weight|down_proj)_bias$", "out_bias"),
    (r"bias$", "bias"),
    (r"self_attn\.q_b_proj\.", "query_up"),
    (r"self_attn\.kv_b_proj\.", "value_up"),
    (r"self_attn\.o_proj\.", "attention_out"),
    (r"self_attn\.\w*(q|k|v|mqa)(_a)?(_proj)?(_with_mqa)?\.", "attention_in"),
    (r"mlp\.shared_experts?\.(gate_up|gate|up)_proj\.", "shared_gate_up"),
    (r"mlp\.shared_experts?\.down_proj\.", "shared_down"),
    (r"mlp\.experts\.(\d+\.)?(w13_weight|gate_up_proj|gate_proj|up_proj)", "gate_up"),
    (r"mlp\.experts\.(\d+\.)?(w2_weight|down_proj)", "down"),
    (r"mlp\.(gate_up|gate|up)_proj\.", "dense_gate_up"),
    (r"mlp\.down_proj\.", "dense_down"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of a model on which its spreads depend.

    `attention_width` is the number of heads times the size of a value. Widths that a model does not have are 0, as are the
    ranks of a model whose attention is not compressed. `routed_scale` multiplies the sum of the routed experts.
    `is_clamped` tells gpt-oss's activation from plain SwiGLU.
    """

    layers: int
    hidden: int
    experts: int
    top_k: int
    expert_width: int
    attention_width: int
    shared_width: int = 0
    dense_width: int = 0
    query_rank: int = 0
    value_rank: int = 0
    routed_scale: float = 1.0
    is_clamped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a config.json says of its drawn weights: `spreads` by role, and the factors of a router's rows in ascending order.

    `never_generated` are token ids whose rows of the head are zero. `collapsed` adds a bias that makes every token choose
    the same experts: a model to test with.
    """

    seed: int
    imbalance: float
    spreads: Mapping[str, float]
    popularity: tuple[float, ...]
    never_generated: tuple[int, ...] = ()
    collapsed: bool = False


def find_role(name: str) -> Role | None:
    """The role of a parameter by its name; None for a name that no recipe knows. Scales have the role of what they scale."""
    return next((role for pattern, role in _ROLES if re.search(pattern, name)), None)


def build_recipe(
    sizes: Sizes,
    *,
    seed: int = DEFAULT_SEED,
    imbalance: float = DEFAULT_IMBALANCE,
    never_generated: tuple[int, ...] = (),
    collapsed: bool = False,
) -> Recipe:
    """Choose the spreads of a model of these sizes. Raise InputError for an imbalance that its router cannot have."""
    return Recipe(
        seed=seed,
        imbalance=imbalance,
        spreads={role: float(f"{spread:.6g}") for role, spread in _choose_spreads(sizes).items()},
        popularity=choose_popularity(sizes.experts, sizes.top_k, imbalance),
        never_generated=never_generated,
        collapsed=collapsed,
    )


def _choose_spreads(sizes: Sizes) -> Mapping[Role, float]:
    """A spread for each role; norms are constants."""
    activation = CLAMPED_RMS if sizes.is_clamped else SILU_RMS
    gate_up = _per_input(sizes.hidden)
    added = sizes.layers**-0.5
    mixed = activation * math.sqrt(_sum_squares(sizes.experts, sizes.top_k)) * sizes.routed_scale
    return {
        "norm": 1.0,
        "qk_norm": 1.4,
        "cache_scale": 1.0,
        "embedding": 1.0,
        "head": LOGIT_SPREAD * _per_input(sizes.hidden),
        "sink": 1.0,
        "attention_in": _per_input(sizes.hidden),
        "query_up": _per_input(sizes.query_rank),
        "value_up": _per_input(sizes.value_rank),
        "attention_out": ATTENTION_GAIN * (added / 2**0.5) * _per_input(sizes.attention_width),
        "router": _per_input(sizes.hidden),
        "router_bias": ROUTER_BIAS_SPREAD,
        "gate_up": gate_up,
        "down": math.sqrt(MOE_VARIANCE) * added / mixed * _per_input(sizes.expert_width),
        "shared_gate_up": gate_up,
        "shared_down": math.sqrt(SHARED_VARIANCE) * added / activation * _per_input(sizes.shared_width),
        "dense_gate_up": gate_up,
        "dense_down": math.sqrt(DENSE_VARIANCE) * added / activation * _per_input(sizes.dense_width),
        "bias": BIAS_SPREAD,
        "out_bias": BIAS_SPREAD * added,
    }


def _per_input(inputs: int) -> float:
    """The spread of a matrix that keeps the variance of its `inputs`; 0 where the model has none."""
    return inputs**-0.5 if inputs else 0.0


def _sum_squares(experts: int, top_k: int) -> float:
    """The sum of the squared weights of a token's experts: a softmax over the largest of unit normal logits (Blom's scores)."""
    logits = [NormalDist().inv_cdf(1 - (rank - 0.375) / (experts + 0.25)) for rank in range(1, top_k + 1)]
    powers = [math.exp(logit) for logit in logits]
    return sum((power / sum(powers)) ** 2 for power in powers)


def choose_popularity(experts: int, top_k: int, imbalance: float) -> tuple[float, ...]:
    """Factors of a router's rows, ascending, with which the most popular expert gets `imbalance` times the mean load.

    The factors are log-normal quantiles: rows of larger norm reach into the top-k more often, whatever the token is. Raise
    InputError for an imbalance below 1, or above what rows alone can do (a row of any norm wins at most every second time).
    """
    if not 1.0 <= imbalance < math.inf:
        raise InputError(f"imbalance {imbalance:g}: must be at least 1, the largest load over the mean one")
    low, high = 0.0, 3.0
    reachable = max(list_loads(_list_factors(experts, high), top_k))
    if imbalance > 0.9 * reachable:
        raise InputError(f"imbalance {imbalance:g}: {top_k} of {experts} experts reach at most {0.9 * reachable:.3g}")
    for _ in range(60):
        middle = (low + high) / 2
        is_low = max(list_loads(_list_factors(experts, middle), top_k)) < imbalance
        low, high = (middle, high) if is_low else (low, middle)
    return tuple(round(factor, 4) for factor in _list_factors(experts, low))


def _list_factors(experts: int, deviation: float) -> list[float]:
    """Log-normal quantiles of mean square 1."""
    factors = [math.exp(deviation * NormalDist().inv_cdf((place + 0.5) / experts)) for place in range(experts)]
    size = math.sqrt(sum(factor**2 for factor in factors) / experts)
    return [factor / size for factor in factors]


def list_loads(factors: list[float] | tuple[float, ...], top_k: int) -> list[float]:
    """The load of each expert over the mean load, for independent normal logits whose deviations are `factors`."""
    low, high = 0.0, 10.0 * max(factors)
    for _ in range(60):
        middle = (low + high) / 2
        chosen = sum(_exceed(middle / factor) for factor in factors)
        low, high = (middle, high) if chosen > top_k else (low, middle)
    return [_exceed(low / factor) * len(factors) / top_k for factor in factors]


def _exceed(value: float) -> float:
    """How often a unit normal number is above `value`."""
    return 0.5 * math.erfc(value / math.sqrt(2))


def assign_popularity(recipe: Recipe, name: str) -> list[float]:
    """The factor of each row of the router `name`: every layer has its own popular experts."""
    order = sorted(range(len(recipe.popularity)), key=lambda expert: draw_key(recipe.seed, name, "expert", expert))
    factors = [0.0] * len(order)
    for factor, expert in zip(recipe.popularity, order, strict=True):
        factors[expert] = factor
    return factors


def assign_collapse(recipe: Recipe, name: str, top_k: int) -> list[float]:
    """A bias for the router `name` with which its same `top_k` experts win for every token."""
    order = sorted(range(len(recipe.popularity)), key=lambda expert: draw_key(recipe.seed, name, "collapse", expert))
    return [40.0 if expert in order[:top_k] else 0.0 for expert in range(len(order))]


def list_word_factors() -> list[float]:
    """The 256 log-normal factors of mean square 1 of which each word's row has one."""
    factors = [math.exp(WORD_DEVIATION * NormalDist().inv_cdf((place + 0.5) / 256)) for place in range(256)]
    size = math.sqrt(sum(factor**2 for factor in factors) / 256)
    return [round(factor / size, 4) for factor in factors]


def draw_key(seed: int, *place: object) -> int:
    """64 bits that depend on the seed and on each part of a place, the same on every machine."""
    text = "\0".join(str(part) for part in (VERSION, seed, *place))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def write_recipe(recipe: Recipe) -> Mapping[str, object]:
    """The keys that a recipe adds to a config.json."""
    facts: dict[str, object] = {
        "version": VERSION,
        "seed": recipe.seed,
        "imbalance": recipe.imbalance,
        "spreads": dict(recipe.spreads),
        "popularity": list(recipe.popularity),
        NEVER_GENERATED_KEY: list(recipe.never_generated),
    }
    # Absent in every model that is measured.
    if recipe.collapsed:
        facts["collapsed"] = True
    return {WEIGHTS_KEY: ROUTED, RECIPE_KEY: facts}


def read_recipe(config: Mapping[str, object], source: str) -> Recipe | None:
    """The recipe of a config.json; None where it names none. Raise InputError for one that this version cannot follow."""
    if config.get(WEIGHTS_KEY) != ROUTED:
        return None
    facts = config.get(RECIPE_KEY)
    if not isinstance(facts, Mapping) or facts.get("version") != VERSION:
        found = facts.get("version") if isinstance(facts, Mapping) else None
        raise InputError(
            f"{source}: {RECIPE_KEY}.version is {found}, this perfgate follows {VERSION}; make the model again, "
            "with the perfgate that is installed beside the server"
        )
    try:
        return Recipe(
            seed=int(facts["seed"]),
            imbalance=float(facts["imbalance"]),
            spreads={str(role): float(spread) for role, spread in facts["spreads"].items()},
            popularity=tuple(float(factor) for factor in facts["popularity"]),
            never_generated=tuple(int(word) for word in facts[NEVER_GENERATED_KEY]),
            collapsed=bool(facts.get("collapsed", False)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{source}: {RECIPE_KEY}: cannot be read ({error}); make the model again") from None


def describe_marker(recipe: Recipe) -> str:
    """How a log line begins that says that this recipe was followed."""
    return f"{MARKER} v{VERSION} seed {recipe.seed}:"
