"""The one seam at which a machine is made up for the engine; all else that runs is the engine's own code.

Three things are stood in for, and nothing of the engine is replaced beside them:

1. The device: `torch.cuda` answers with the name, compute capability, memory and multiprocessors of the GPU that was asked for,
   and `torch.version.cuda` and `triton.__version__` with those of the release's own torch. No `nvidia-smi` is on the path.
2. Packages of kernels that a release requires and this environment lacks are empty modules. Importing a name from them works;
   what a call of it answers is unknown, and deciding by it raises NotImplementedError.
3. The world: the ranks of a tensor-parallel group are counted and not started, and tensors have shapes and no memory.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

MIB = 1 << 20
HOST = 8
"""GPUs of one host."""


def fake_device(gpu: dict[str, Any], toolkit: dict[str, str]) -> None:
    """Let torch report `gpu`, and torch and Triton the versions in `toolkit`, before the engine is imported."""
    import torch  # noqa: PLC0415 - in the arm's environment
    import triton  # noqa: PLC0415 - the same

    major, minor = gpu["capability"]
    memory = gpu["memory_mib"] * MIB
    properties = SimpleNamespace(
        name=gpu["name"],
        major=major,
        minor=minor,
        total_memory=memory,
        multi_processor_count=gpu["multiprocessors"],
        shared_memory_per_block_optin=gpu["shared_bytes"],
        warp_size=32,
        uuid="GPU-0",
        gcnArchName="",
        is_integrated=False,
    )
    torch.version.cuda = toolkit["cuda"]
    triton.__version__ = toolkit["triton"]
    answers = {
        "is_available": True,
        "device_count": gpu["count"],
        "current_device": 0,
        "get_device_name": gpu["name"],
        "get_device_capability": (major, minor),
        "get_device_properties": properties,
        "mem_get_info": (memory, memory),
        "is_bf16_supported": True,
        "set_device": None,
        "synchronize": None,
        "empty_cache": None,
        "_lazy_init": None,
    }
    torch.cuda.Stream = torch.cuda.Event = SimpleNamespace
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)


class _NotHere(type):
    """A name of a package that is not installed: it can be imported, asked for names, derived from and decorate."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _NotHere(name, (), {"place": f"{cls.place}.{name}"})

    def __call__(cls, *given: Any, **named: Any) -> Any:
        if len(given) == 1 and not named and isinstance(given[0], (FunctionType, type)):
            return given[0]
        return _Unknown(cls.place)

    def __getitem__(cls, _: object) -> Any:
        return cls

    def __or__(cls, _: object) -> Any:
        return cls

    __ror__ = __or__


class _Unknown:
    """What a package that is not installed would have answered: nothing can be decided by it."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Unknown(f"{self.place}.{name}")

    def __call__(self, *given: Any, **named: Any) -> Any:
        if len(given) == 1 and not named and isinstance(given[0], (FunctionType, type)):
            return given[0]
        return _Unknown(self.place)

    def _refuse(self, *_: object) -> Any:
        raise NotImplementedError(f"{self.place} is not installed here, and its answer was asked for")

    __bool__ = __int__ = __float__ = __index__ = __iter__ = __len__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse


class _EmptyModule(ModuleType):
    """A module of a package that is not installed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _NotHere(name, (), {"place": f"{self.__name__}.{name}"})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an empty module for every name below the packages that are stood in for."""

    def __init__(self, versions: dict[str, str]) -> None:
        self.versions = versions

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        """A spec for what is below one of the packages."""
        del path, target
        if fullname.partition(".")[0] in self.versions:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        """The empty module, with the version that the release asks for."""
        module = _EmptyModule(spec.name)
        module.__path__ = []
        module.__dict__["__version__"] = self.versions[spec.name.partition(".")[0]]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is in it."""


def stand_in(absent: dict[str, str]) -> None:
    """Stand in for packages that cannot be imported here, by name, with the version that each shall have."""
    sys.meta_path.insert(0, _Finder(absent))  # before what finds a stand-in of another kind under the same name
    _ignore_operators(absent)


def _ignore_operators(absent: dict[str, str]) -> None:
    """Let nothing be registered for operators of packages that are not here, since torch refuses what it does not know."""
    import torch  # noqa: PLC0415 - in the arm's environment

    register = torch.library.register_fake

    def register_known(operator: Any, *given: Any, **named: Any) -> Any:
        if str(operator).partition("::")[0] in absent:
            return lambda function: function
        return register(operator, *given, **named)

    torch.library.register_fake = register_known


def fake_world(size: int) -> None:
    """Count `size` ranks of which this is the first, and start none: groups know their ranks and have no channel."""
    import torch  # noqa: PLC0415 - in the arm's environment

    state = import_module("sglang.srt.distributed.parallel_state")

    def count(self: Any, group_ranks: list[list[int]], local_rank: int, *_: object, **named: Any) -> None:
        ranks = next(ranks for ranks in group_ranks if 0 in ranks)
        self.ranks, self.world_size, self.rank, self.rank_in_group = ranks, len(ranks), 0, ranks.index(0)
        self.local_rank, self.device, self.unique_name = local_rank, torch.device("cuda", 0), str(named.get("group_name"))
        self.device_group = self.cpu_group = self.pynccl_comm = self.ca_comm = self.mq_broadcaster = None

    state.GroupCoordinator.__init__ = count
    answers = {"is_initialized": True, "get_rank": 0, "get_world_size": size, "get_backend": "nccl"}
    answers |= {"all_reduce": None, "barrier": None}
    for name, answer in answers.items():
        setattr(torch.distributed, name, lambda *_, answer=answer, **__: answer)
    for module in list(sys.modules.values()):
        if "in_the_same_node_as" in getattr(module, "__dict__", {}):
            module.__dict__["in_the_same_node_as"] = lambda *_, **__: [rank < HOST for rank in range(size)]


@contextmanager
def no_memory() -> Iterator[None]:
    """Within it a new tensor has a shape and a type on any device, and no memory."""
    import torch  # noqa: PLC0415 - in the arm's environment
    from torch.overrides import TorchFunctionMode  # noqa: PLC0415 - the same

    def redirect(_: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        named = dict(kwargs or {})
        if named.get("device") is not None:
            named["device"] = "meta"
        if function is torch.Tensor.cuda:
            return args[0]
        if function is torch.Tensor.to:
            args = tuple("meta" if _is_cuda(one) else one for one in args)
        return function(*args, **named)

    mode = type("WithoutMemory", (TorchFunctionMode,), {"__torch_function__": redirect})
    with torch.device("meta"), mode():
        yield


def _is_cuda(value: object) -> bool:
    return not hasattr(value, "shape") and str(value).startswith("cuda")
