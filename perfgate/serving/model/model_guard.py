"""Is this the mixture of experts that the scenario names? Answered from config.json alone, before anything is measured.

A dense model served by mistake gives plausible numbers and says nothing about MoE kernels, so it is refused by name of what its
config lacks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from perfgate.errors import CANNOT_MEASURE, InputError, ModelError
from perfgate.scenario import schema as scenario
from perfgate.serving.model.dense_models import explain_dense
from perfgate.storage.stream import STREAM, read_text

# The names under which architectures keep one fact; the first one present is read.
EXPERT_KEYS = (
    "num_experts",  # Qwen2-MoE, Qwen3-MoE, OLMoE, Jamba, Hunyuan, AFMoE
    "num_local_experts",  # gpt-oss, Mixtral, Llama 4, Phi-MoE, Granite, MiniMax, JetMoE
    "n_routed_experts",  # DeepSeek V2 and V3, GLM-4 MoE, dots1, Nemotron-H, LongCat
    "moe_num_experts",  # ERNIE 4.5, DBRX, Aria
    "moe_num_primary_experts",  # SmallThinker
)
TOP_K_KEYS = (
    "num_experts_per_tok",  # most
    "experts_per_token",  # gpt-oss as first published
    "num_experts_per_token",  # Kimi Linear
    "router_top_k",
    "moe_top_k",  # DBRX
    "moe_topk",  # Hunyuan, LongCat, Aria
    "moe_k",  # ERNIE 4.5
    "top_k_experts",  # Gemma 4
    "moe_num_active_primary_experts",  # SmallThinker
)
LAYER_KEYS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")
HIDDEN_KEYS = ("hidden_size", "d_model", "n_embd")
VOCABULARY_KEYS = ("vocab_size", "padded_vocab_size")
"""How each refusal of a model that is no mixture of experts begins, whichever check made it."""

# Sub-configs that hold the language model of a multi-modal one, or the feed-forward part of DBRX.
NESTED_KEYS = ("text_config", "llm_config", "language_config", "thinker_config", "ffn_config")
# How weights are drawn that were not trained; a config that perfgate wrote says which.
DRAWN = ("random", "routed")
_WARNINGS = {
    "random": "weights are RANDOM: shapes are real, answers are noise; expert choices need not be real, nor the speed that "
    "follows from them (plain dummy weights send every token of gpt-oss to the same experts)",
    "routed": "weights are DRAWN by a recipe: shapes, formats and kernels are real, experts are chosen by token and by layer "
    "with about the recipe's imbalance of load; which ones, and the answers, are not those of the published model",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What a config.json says of the model.

    `experts` counts routed experts of a layer and `top_k` how many a token visits. `weights` is "random" or "routed" when the
    config says that they were drawn, else "unstated". `digest` is twelve hex digits over the whole config.
    """

    architecture: str
    experts: int
    top_k: int
    layers: int
    hidden: int
    quantization: str
    weights: str
    digest: str

    @property
    def warning(self) -> str | None:
        """The warning that must stand wherever numbers of this model are shown."""
        return _WARNINGS.get(self.weights)


def read_model_facts(config: Mapping[str, object], source: str = "config.json") -> ModelFacts:
    """Read the facts of a mixture of experts out of its config. `source` names the config in errors.

    Raise ModelError for a dense model, naming the keys that are missing, and InputError for a config that is none.
    """
    experts, top_k = _find(config, EXPERT_KEYS), _find(config, TOP_K_KEYS)
    _refuse_dense(config, experts, top_k, source)
    facts = ModelFacts(
        architecture=_architecture(config, source),
        experts=_count(experts, "experts", source),
        top_k=_count(top_k, "top_k", source),
        layers=_count(_find(config, LAYER_KEYS), "layers", source),
        hidden=_count(_find(config, HIDDEN_KEYS), "hidden", source),
        quantization=_quantization(config),
        weights=_read_weights(config),
        digest=hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12],
    )
    if facts.top_k > facts.experts:
        raise InputError(f"{source}: top_k: {facts.top_k} of {facts.experts} experts cannot serve a token")
    return facts


def verify_moe_config(config: Mapping[str, object], source: str) -> ModelFacts:
    """Refuse a config that is not a mixture of experts; for logs of a model that is not served any more."""
    return read_model_facts(config, source)


def verify_model(folder: Path, expected: scenario.Model) -> ModelFacts:
    """Check the config in `folder` against a scenario's model.

    Raise ModelError naming every field that differs with both values, InputError for a config that cannot be read.
    """
    source = str(find_config(folder))
    facts = read_model_facts(read_config(folder), source)
    differences = list(list_differences(facts, expected))
    if differences:
        raise ModelError(f"{source}: not the scenario's model: {'; '.join(differences)}; serve {expected.path}")
    return facts


def read_vocabulary(folder: Path) -> int:
    """Read how many tokens the model in `folder` knows. Raise InputError when its config does not say."""
    return _count(_find(read_config(folder), VOCABULARY_KEYS), "vocab_size", str(find_config(folder)))


def find_config(folder: Path) -> Path:
    """Name the config of a model folder; a path that is a file already, or `-`, is the config itself."""
    return folder if folder == STREAM or folder.is_file() else folder / "config.json"


def read_config(folder: Path) -> Mapping[str, object]:
    """Load config.json from a model folder, or from the path of the file itself. Raise InputError for anything else."""
    path = find_config(folder)
    try:
        config = json.loads(read_text(path))
    except FileNotFoundError:
        what = "no config.json there" if folder.is_dir() else "no such folder"
        raise InputError(f"{folder}: {what}; give the folder that holds the model") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); give the folder that holds the model") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON ({error}); fetch or make the model again") from None
    if not isinstance(config, dict):
        raise InputError(f"{path}: not a JSON object; fetch or make the model again")
    return config


def list_levels(config: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """The config and its nested configs of a language model, outermost first."""
    yield config
    for key in NESTED_KEYS:
        nested = config.get(key)
        if isinstance(nested, Mapping):
            yield from list_levels(nested)


def _find(config: Mapping[str, object], keys: tuple[str, ...]) -> object:
    for level in list_levels(config):
        for key in keys:
            if level.get(key) is not None:
                return level[key]
    return None


def _refuse_dense(config: Mapping[str, object], experts: object, top_k: object, source: str) -> None:
    names = config.get("architectures")
    architecture = names[0] if isinstance(names, list) and names else config.get("model_type", "unnamed")
    where = f"{CANNOT_MEASURE}: {source}"
    if experts is None and top_k is None:
        keys = ", ".join((*EXPERT_KEYS, *TOP_K_KEYS))
        raise ModelError(f"{where}: {architecture} is a dense model: it has none of {keys}; serve a mixture of experts")
    missing = EXPERT_KEYS if experts is None else TOP_K_KEYS if top_k is None else None
    if missing is not None:
        what = "how many experts there are" if experts is None else "how many experts serve a token"
        raise ModelError(f"{where}: {architecture} does not say {what}: it has none of {', '.join(missing)}")
    if experts in (0, 1):
        raise ModelError(f"{where}: {architecture} is a dense model: it has {experts} experts; serve a mixture of experts")
    layers = _find(config, LAYER_KEYS)
    reason = explain_dense(list(list_levels(config)), layers if isinstance(layers, int) and layers > 0 else None)
    if reason is not None:
        raise ModelError(f"{where}: {architecture} is a dense model: {reason}; serve a mixture of experts")


def _architecture(config: Mapping[str, object], source: str) -> str:
    names = config.get("architectures")
    if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
        return str(names[0])
    raise InputError(f"{source}: architectures: must be a list of at least one name")


def _read_weights(config: Mapping[str, object]) -> str:
    found = config.get("perfgate_weights")
    return str(found) if found in DRAWN else "unstated"


def _count(value: object, name: str, source: str) -> int:
    # Some multi-layer configs give one number for each layer; they may only agree.
    if isinstance(value, list) and value and all(item == value[0] for item in value):
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{source}: {name}: must be a whole number of at least 1, not {value!r}")
    return value


def _quantization(config: Mapping[str, object]) -> str:
    for level in list_levels(config):
        quantized = level.get("quantization_config")
        if isinstance(quantized, Mapping):
            return str(quantized.get("quant_method") or quantized.get("quant_algo") or "unknown")
    return "none"


def list_differences(facts: ModelFacts, expected: scenario.Model) -> Iterator[str]:
    """Name each field in which a model is not the one that a scenario wants, with both values."""
    for name in ("architecture", "experts", "top_k", "layers", "quantization"):
        found, wanted = getattr(facts, name), getattr(expected, name)
        if found != wanted:
            yield f"{name} is {found}, the scenario wants {wanted}"
    if expected.config_digest not in (None, facts.digest):
        yield f"config_digest is {facts.digest}, the scenario wants {expected.config_digest}"
    # A hub config served with random weights looks like any other: only what a config says can be told.
    if facts.weights != expected.weights and (facts.weights in DRAWN or expected.weights == "routed"):
        yield f"weights is {facts.weights}, the scenario wants {expected.weights}"
