"""A store of results that grows, and what it says of trends: when a level changed, at which commit, and what measuring cost.

Parquet files in Hive partitions under any fsspec URL, read in process by DuckDB; `docs/how-to/history.md` describes them.
"""

from __future__ import annotations

from importlib.util import find_spec

from perfgate.errors import InputError

NEEDED = ("duckdb", "fsspec", "otava", "pyarrow")


def require_extra() -> None:
    """Raise InputError naming what is missing when the extra `history` is not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise InputError(
            f"perfgate history needs {', '.join(missing)}: pip install '.[history]' in perfgate's checkout"
            " (beside the CPU engine as docs/how-to/history.md says)"
        )
