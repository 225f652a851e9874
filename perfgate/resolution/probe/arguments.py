"""The arguments that an engine's launcher resolves, and the choices among them that have had other names in other releases."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

# Fields that differ from start to start, or that name the made-up model's folder.
VARYING = ("model_path", "tokenizer_path", "served_model_name", "random_seed", "model_config")
# Arguments that a choice below is made of, which would otherwise be told twice.
TOLD = (
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "sampling_backend",
    "chunked_prefill_size",
    "kv_cache_dtype",
    "moe_runner_backend",
    "disable_custom_all_reduce",
    "enable_flashinfer_allreduce_fusion",
    "flashinfer_allreduce_fusion_backend",
    "enable_symm_mem",
    "enable_torch_symm_mem",
    "enable_nccl_nvls",
    "enable_mscclpp",
    "disable_cuda_graph",
    "disable_decode_cuda_graph",
    "disable_prefill_cuda_graph",
    "cuda_graph_config",
    "cuda_graph_bs",
    "cuda_graph_max_bs",
    "disable_piecewise_cuda_graph",
    "piecewise_cuda_graph_tokens",
    "piecewise_cuda_graph_max_tokens",
    "piecewise_cuda_graph_compiler",
)
_REDUCE = (
    ("enable_symm_mem", "symmetric memory"),
    ("enable_torch_symm_mem", "torch symmetric memory"),
    ("enable_nccl_nvls", "NVLS"),
    ("enable_mscclpp", "MSCCL++"),
)


def resolve_arguments(model: dict[str, Any], folder: Path) -> Any:
    """The engine's own arguments, read off a command line and resolved as its launcher does it."""
    module = import_module("sglang.srt.server_args")
    words = ["--model-path", str(folder), "--tp-size", str(model["tp"]), *model["args"]]
    args = module.prepare_server_args(words)
    # Since 0.5.19 an object of arguments is raw until it is asked to resolve.
    if hasattr(args, "resolve_once"):
        args.resolve_once()
    return args


def read_values(args: Any) -> dict[str, Any]:
    """Every argument with the value that it resolved to, as JSON values."""
    if hasattr(args, "resolved_dict"):
        values = args.resolved_dict()
    else:
        values = {field.name: getattr(args, field.name) for field in dataclasses.fields(args)}
    return {name: to_plain(value) for name, value in values.items() if name not in VARYING and not name.startswith("_")}


def to_plain(value: Any) -> Any:
    """JSON values of what an argument holds."""
    if isinstance(value, enum.Enum):
        return to_plain(value.value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): to_plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(one) for one in value]
    if isinstance(value, (set, frozenset)):
        return sorted(str(one) for one in value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else type(value).__name__


def list_flags(values: dict[str, Any]) -> dict[str, Any]:
    """The arguments that no choice reports; of a nested one each leaf, by a name with dots."""
    return dict(_flatten({name: value for name, value in values.items() if name not in TOLD}, ""))


def _flatten(values: dict[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{before}{name}.")
        else:
            yield before + name, value


def list_choices(values: dict[str, Any]) -> dict[str, Any]:
    """The choices that arguments alone decide."""
    attention = values["attention_backend"]
    return {
        "attention_prefill": values["prefill_attention_backend"] or attention,
        "attention_decode": values["decode_attention_backend"] or attention,
        "sampling": values["sampling_backend"],
        "chunked_prefill": values["chunked_prefill_size"],
        "all_reduce": describe_reduce(values),
    } | describe_graphs(values)


def describe_reduce(values: dict[str, Any]) -> str:
    """How sums go over the GPUs of a model, the fastest way first; NCCL is behind all of them."""
    if values["tp_size"] == 1:
        return "one GPU"
    ways = [] if values["disable_custom_all_reduce"] else ["custom"]
    backend = values.get("flashinfer_allreduce_fusion_backend")
    if backend or values.get("enable_flashinfer_allreduce_fusion"):
        ways.insert(0, "FlashInfer fusion" + (f" ({backend})" if backend not in (None, "auto") else ""))
    ways += [name for flag, name in _REDUCE if values.get(flag)]
    return ", ".join([*ways, "NCCL"])


def describe_graphs(values: dict[str, Any]) -> dict[str, Any]:
    """Backend and sizes of graphs of decode steps (sequences) and of prefills (tokens)."""
    phases = values.get("cuda_graph_config")
    if phases is None:  # up to 0.5.13
        is_off = values["disable_cuda_graph"]
        is_whole = is_off or values["disable_piecewise_cuda_graph"]
        phases = {
            "decode": {"backend": "disabled" if is_off else "full", "bs": values["cuda_graph_bs"]},
            "prefill": {"backend": "disabled" if is_whole else "tc_piecewise", "bs": values["piecewise_cuda_graph_tokens"]},
        }
    told = {}
    for name, phase in phases.items():
        is_disabled = phase["backend"] == "disabled"
        told[f"graph_{name}"] = phase["backend"]
        told[f"graph_{name}_sizes"] = None if is_disabled else phase["bs"]
    return told
