"""Scripts of benchmarks/kernels as modules."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[2] / "benchmarks" / "kernels"


@contextmanager
def loaded(name: str) -> Iterator[ModuleType]:
    """A script's module, which its own classes and processes find while it is needed."""
    spec = spec_from_file_location(name, FOLDER / f"{name}.py")
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[name]
