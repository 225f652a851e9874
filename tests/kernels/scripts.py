"""Scripts of benchmarks as modules."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[2] / "benchmarks" / "kernels"


@contextmanager
def loaded(name: str, folder: Path = FOLDER) -> Iterator[ModuleType]:
    """A script's module, of benchmarks/kernels unless another folder is named; its classes and processes find it meanwhile."""
    spec = spec_from_file_location(name, folder / f"{name}.py")
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[name]
