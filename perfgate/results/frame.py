"""Windows and runs as one tidy pandas frame: a row for each number, ready for `groupby` and `pivot_table`."""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO

from pandas import DataFrame, Series

from perfgate.errors import InputError
from perfgate.results.rows import COLUMNS, Row


def build_frame(rows: Iterable[Row]) -> DataFrame:
    """The rows with the types that also hold what is absent."""
    table = list(rows)
    return DataFrame({name: Series([row.get(name) for row in table], dtype=kind) for name, kind in COLUMNS.items()})


def dump_parquet(frame: DataFrame) -> bytes:
    """Write the frame as Parquet. Raise InputError without pyarrow."""
    content = BytesIO()
    try:
        frame.to_parquet(content, index=False, engine="pyarrow")
    except ImportError:
        raise InputError("Parquet needs pyarrow; pip install pyarrow, or use CSV") from None
    return content.getvalue()
