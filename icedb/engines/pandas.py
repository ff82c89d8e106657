"""A snapshot as a pandas DataFrame.

    read(table.snapshot(), columns=["user_id", "ts"], where="d >= '2026-11-01'")

All selected rows and columns are loaded into memory, so name columns and filter with `where`. By default the columns
keep Arrow's types (`pandas.ArrowDtype`), so every type and null is preserved. NumPy's types, which older code may
expect, have no nulls for integers and booleans. An integer column with a null becomes `float64`, which is exact only up
to 2^53. A boolean column with a null becomes `object`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

from icedb.engines.arrow import record_batches
from icedb.errors import InvalidOption
from icedb.reader.snapshot import Snapshot
from icedb.util.arguments import checks_arguments
from icedb.util.optional_deps import import_optional

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["read"]

DtypeBackend = Literal["pyarrow", "numpy"]


@checks_arguments
def read(
    snapshot: Snapshot,
    columns: Sequence[str] | None = None,
    *,
    where: str | None = None,
    dtype_backend: DtypeBackend = "pyarrow",
) -> pd.DataFrame:
    """Return rows of a snapshot as a DataFrame.

    Args:
        snapshot: The snapshot to read.
        columns: The columns to return; None returns all.
        where: A DuckDB predicate that selects rows, as for `Snapshot.query`.
        dtype_backend: `pyarrow` for Arrow's types, `numpy` for NumPy's.

    Returns:
        A DataFrame with all matching rows.

    Raises:
        MissingExtra: If pandas is not installed.
        UnknownColumn: If the snapshot has no such column.
        InvalidOption: If an argument is invalid. Also the errors of `Snapshot.query`.

    Example:
        >>> read(table.snapshot(), ["user_id"], where="day = '2026-11-21'")
    """
    pandas = import_optional("pandas", extra="pandas")
    if dtype_backend not in get_args(DtypeBackend):
        raise InvalidOption(
            f"{snapshot.table}: dtype_backend is {dtype_backend!r}; pass one of {list(get_args(DtypeBackend))}."
        )
    rows = record_batches(snapshot, columns, where=where).read_all()
    frame: pd.DataFrame = rows.to_pandas(types_mapper=pandas.ArrowDtype if dtype_backend == "pyarrow" else None)
    return frame
