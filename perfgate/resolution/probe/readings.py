"""What the engine resolves to for one model: its arguments, the layers that it builds of them, the tables they find, the pool.

Each part is read by itself. One whose names are not those of a known release is a line of `unverified`, and no value.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from . import arguments, seam

SRT = "sglang.srt"
TABLES = f"{SRT}.layers.moe.moe_runner.triton_utils.fused_moe_triton_config"
GIB = 1 << 30
MAX_WORDS = 160


def read(model: dict[str, Any], folder: Path, unknown: str) -> dict[str, Any]:
    """Flags, choices and what could not be verified of one model, whose config.json lies in `folder`.

    Where the release's Triton is not known, for the reason `unknown`, no table of another one is looked up.
    """
    choices: dict[str, Any] = {}
    unverified: dict[str, str] = {}
    args = arguments.resolve_arguments(model, folder)
    values = arguments.read_values(args)
    flags = arguments.list_flags(values)
    try:
        choices |= arguments.list_choices(values)
    except KeyError as error:
        unverified["choices of arguments"] = f"no argument {error}"
    try:
        config, built = build_model(args, model)
    except Exception as error:  # noqa: BLE001 - foreign code: whatever it raises is said in one line, and the rest is read
        unverified["layers"] = describe(error)
        return {"flags": flags, "choices": choices, "unverified": unverified}
    for name, part in PARTS.items():
        if part is read_tables and unknown:
            unverified[name] = unknown
            continue
        try:
            choices |= part(args, config, built)
        except Exception as error:  # noqa: BLE001 - the same
            unverified[name] = describe(error)
    return {"flags": flags, "choices": choices, "unverified": unverified}


def describe(error: BaseException) -> str:
    """One line of an error of the engine's."""
    words = " ".join(str(error).split())[:MAX_WORDS]
    return f"{type(error).__name__}: {words}"


def call_known(function: Callable[..., Any], **named: Any) -> Any:
    """Call a function of the engine with those of the arguments that this release knows."""
    known = inspect.signature(function).parameters
    return function(**{name: value for name, value in named.items() if name in known})


def build_model(args: Any, model: dict[str, Any]) -> tuple[Any, Any]:
    """The model as a first rank's loader builds it, of tensors without memory; with the engine's config of it."""
    size = model["tp"]
    seam.fake_world(size)
    publish(args)
    config = import_module(f"{SRT}.configs.model_config").ModelConfig.from_server_args(args)
    for module, name in (
        ("layers.moe.utils", "initialize_moe_config"),
        ("layers.quantization.fp8_utils", "initialize_fp8_gemm_config"),
        ("layers.quantization.fp4_utils", "initialize_fp4_gemm_config"),
    ):
        call_known(getattr(import_module(f"{SRT}.{module}"), name), server_args=args)
    state = import_module(f"{SRT}.distributed.parallel_state")
    world = {"world_size": size, "rank": 0, "local_rank": 0, "distributed_init_method": "none", "backend": "nccl"}
    call_known(state.init_distributed_environment, **world)
    call_known(state.initialize_model_parallel, tensor_model_parallel_size=size, backend="nccl")
    attention = import_module(f"{SRT}.layers.dp_attention")
    call_known(attention.initialize_dp_attention, server_args=args, model_config=config)
    loader = import_module(f"{SRT}.model_loader.loader")
    load = import_module(f"{SRT}.configs.load_config").LoadConfig()
    default_type = import_module(f"{SRT}.model_loader.utils").set_default_torch_dtype
    # The class comes from its own module: the registry would import two hundred others first.
    made = getattr(import_module(f"{SRT}.models.{model['module']}"), model["architecture"])
    vars(loader)["get_model_architecture"] = lambda *_: (made, model["architecture"])
    with seam.no_memory(), default_type(config.dtype):
        quantization = loader._get_quantization_config(config, load)  # noqa: SLF001 - the loader's own two steps
        return config, loader._initialize_model(config, load, quantization)  # noqa: SLF001 - the same


def publish(args: Any) -> None:
    """Make the arguments those of this process, as a scheduler does before anything else."""
    context = import_module(f"{SRT}.runtime_context") if has_module(f"{SRT}.runtime_context") else None
    if context is not None and hasattr(context, "SpawnRanks"):
        context.publish(args, role="scheduler", ranks=context.SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0))
    else:
        import_module(f"{SRT}.server_args").set_global_server_args_for_scheduler(args)


def has_module(name: str) -> bool:
    """Whether this release has a module."""
    try:
        import_module(name)
    except ModuleNotFoundError:
        return False
    return True


def find_methods(built: Any) -> list[tuple[Any, Any]]:
    """Every layer that multiplies, with the object that knows how."""
    return [(layer, layer.quant_method) for layer in built.modules() if getattr(layer, "quant_method", None) is not None]


def read_layers(args: Any, config: Any, built: Any) -> dict[str, Any]:
    """How the layers multiply: expert layers by a runner, 8-bit layers by a function."""
    del args, config
    runners, functions, kinds = set(), set(), set()
    for layer, method in find_methods(built):
        runner = getattr(getattr(method, "runner", None), "runner_backend", None)
        if hasattr(layer, "w13_weight"):
            runners.add(runner.value if runner is not None else type(method).__name__)
            kinds.add(type(method).__name__)
        function = getattr(method, "w8a8_block_fp8_linear", None)
        if function is not None:
            functions.add(getattr(function, "__name__", type(function).__name__))
    shared = getattr(built, "num_fused_shared_experts", None)
    return {
        "moe_runner": ", ".join(sorted(runners)),
        "moe_method": ", ".join(sorted(kinds)),
        "fp8_gemm": ", ".join(sorted(functions)) or None,
        "fused_shared_experts": shared,
    }


def read_tables(args: Any, config: Any, built: Any) -> dict[str, Any]:
    """Which files of tuned tiles SGLang's Triton runner opens for the expert layers, and whether they are its own Triton's."""
    del args
    tables = import_module(TABLES)
    opened: list[Path] = []

    def note(file: str, *given: Any, **named: Any) -> Any:
        opened.append(Path(file))
        return opened[-1].open(*given, **named)

    vars(tables)["open"] = note  # the module's own name for the built-in one
    found: dict[str, list[dict[str, Any]]] = {"moe_tiles": [], "moe_tiles_down": []}
    for experts, inner, kind, rows, columns in list_shapes(tables, config, built):
        for name, is_down in (("moe_tiles", False), ("moe_tiles_down", True)):
            opened.clear()
            tables.get_moe_configs.cache_clear()
            tables.get_moe_configs(experts, inner, kind, rows, columns, down_moe=is_down)
            own = [file for file in opened if ("_down" in file.name) == is_down]
            wanted = tables.get_config_file_name(experts, inner, kind, [rows, columns], down_moe=is_down)
            found[name].append(read_table(own[-1]) if own else {"name": wanted})
    return {name: rows or None for name, rows in found.items()}


def list_shapes(tables: Any, config: Any, built: Any) -> list[tuple[int, int, str | None, int, int]]:
    """What the table is looked up by, for each kind of expert layer that Triton runs: experts, width, type, block."""
    shapes = set()
    for layer, method in find_methods(built):
        runner = getattr(getattr(method, "runner", None), "runner_backend", None)
        if hasattr(layer, "w13_weight") and runner is not None and runner.value == "triton":
            rows, columns = getattr(getattr(method, "quant_config", None), "weight_block_size", None) or (0, 0)
            kind = tables.get_config_dtype_str(dtype=config.dtype, use_fp8_w8a8=bool(getattr(method, "block_quant", False)))
            experts, _, inner = layer.w2_weight.shape
            shapes.add((experts, inner, kind, rows, columns))
    return sorted(shapes, key=str)


def read_table(file: Path) -> dict[str, Any]:
    """A table by its name, the Triton that it was tuned for, whether that is the arm's, and the beginning of its digest."""
    import triton  # noqa: PLC0415 - in the arm's environment

    tuned = file.parent.name.removeprefix("triton_").replace("_", ".")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:8]
    return {"name": file.name, "triton": tuned, "is_own": tuned == triton.__version__, "digest": digest}


def read_gemms(args: Any, config: Any, built: Any) -> dict[str, Any]:
    """What the backends of 8-bit, 4-bit and bf16 products were set to at the start."""
    del args, config, built
    places = {
        "fp8_gemm_backend": ("layers.quantization.fp8_utils", "get_fp8_gemm_runner_backend"),
        "fp4_gemm_backend": ("layers.quantization.fp4_utils", "get_fp4_gemm_runner_backend"),
    }
    found = {}
    for name, (module, getter) in places.items():
        found[name] = getattr(import_module(f"{SRT}.{module}"), getter)().value
    return found


def read_pool(args: Any, config: Any, built: Any) -> dict[str, Any]:
    """Weights of one rank, and the tokens that the engine's own formula gives the pool beside them.

    Graphs and activations are what the static share leaves out, so this is what a start that measures nothing would size.
    """
    import torch  # noqa: PLC0415 - in the arm's environment

    tensors = {id(one): one for one in (*built.parameters(), *built.buffers())}.values()
    weights = sum(one.numel() * one.element_size() for one in tensors)
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.mem_get_info = lambda *_: (total - weights, total)
    runner = stand_for_runner(args, config, built)
    pools = import_module(f"{SRT}.model_executor.pool_configurator")
    available = find_profiler()(runner, total / GIB)
    sized = pools.create_memory_pool_configurator(runner).calculate_pool_sizes(available, runner.page_size)
    full = sized.full_max_total_num_tokens
    return {
        "weights_bytes": weights,
        "pool_tokens": full if full is not None else sized.max_total_num_tokens,
        "kv_dtype": str(runner.kv_cache_dtype).removeprefix("torch."),
    }


def find_profiler() -> Callable[[Any, float], int]:
    """The engine's function from memory before the weights, in GiB, to bytes for the pool."""
    for module, name in (
        ("mem_cache.kv_cache_configurator", "KVCacheConfigurator"),
        ("model_executor.model_runner_kv_cache_mixin", "ModelRunnerKVCacheMixin"),
    ):
        if has_module(f"{SRT}.{module}"):
            return getattr(import_module(f"{SRT}.{module}"), name)._profile_available_bytes  # type: ignore[no-any-return] # noqa: SLF001 - no public way
    raise AttributeError("no _profile_available_bytes where releases up to 0.5.23 have it")


def stand_for_runner(args: Any, config: Any, built: Any) -> Any:
    """What the sizing of the pool reads of a runner; a name that it lacks is an AttributeError."""
    values = arguments.read_values(args)
    layers = config.num_hidden_layers
    swa = {name: getattr(config, name, None) for name in ("full_attention_layer_ids", "swa_attention_layer_ids")}
    info = SimpleNamespace(start_layer=0, end_layer=layers, num_effective_layers=layers, is_hybrid_swa_mtp_draft=False, **swa)
    none = SimpleNamespace(dflash_draft_num_layers=None, eagle_draft_num_layers=None, eagle_draft_swa_num_layers=None)
    speculation = import_module(f"{SRT}.speculative.spec_info").SpeculativeAlgorithm
    return SimpleNamespace(
        **vars(info),
        layer_info=info,
        spec_aux_config=none,
        **{name: value for name, value in vars(none).items() if "swa" not in name},
        model=built,
        model_config=config,
        server_args=args,
        dtype=config.dtype,
        model_dtype=config.dtype,
        kv_cache_dtype=find_kv_type(values["kv_cache_dtype"], config),
        kv_cache_dtype_str=values["kv_cache_dtype"],
        use_mla_backend=config.attention_arch.name == "MLA",
        is_hybrid_swa=config.is_hybrid_swa,
        sliding_window_size=getattr(config, "sliding_window_size", None),
        spec_algorithm=speculation.NONE,
        is_draft_worker=False,
        mambaish_config=None,
        page_size=values["page_size"],
        mem_fraction_static=values["mem_fraction_static"],
        device="cuda",
        gpu_id=0,
        pp_size=1,
        attn_dp_size=1,
        ps=SimpleNamespace(pp_size=1, tp_size=values["tp_size"]),
        post_capture_kv_active=False,
        fused_entry_bytes=lambda *_: None,
    )


def find_kv_type(name: str, config: Any) -> Any:
    """The element type of the cache by its name."""
    import torch  # noqa: PLC0415 - in the arm's environment

    known = {
        "auto": config.dtype,
        "bfloat16": torch.bfloat16,
        "bf16": torch.bfloat16,
        "fp8_e4m3": torch.float8_e4m3fn,
        "fp8_e5m2": torch.float8_e5m2,
    }
    return known[name]


PARTS = {"layers": read_layers, "moe tables": read_tables, "gemms": read_gemms, "pool": read_pool}


def be_quiet() -> None:
    """Standard output is the answer alone, and what the engine warns of is not asked here."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
