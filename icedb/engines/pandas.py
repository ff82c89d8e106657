"""A snapshot as a pandas DataFrame. All that is asked for is in memory then: name columns, and filter with `where`.

    read(table.snapshot(), columns=["user_id", "ts"], where="d >= '2026-11-01'")

By default the columns stay Arrow's (`pandas.ArrowDtype`): every type is what it was, and a null is a null. NumPy's
types, which older code may expect, have no nulls for whole numbers and truth values: a column of whole numbers that
holds a null becomes `float64`, exact up to 2^53 only, and one of truth values `object`.
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
    """The rows for which `where` (as for `Snapshot.query`) is true, with these columns; None: all.

    Raises MissingExtra, InvalidOption, UnknownColumn, and as `Snapshot.query`.
    """
    pandas = import_optional("pandas", extra="pandas")
    if dtype_backend not in get_args(DtypeBackend):
        raise InvalidOption(
            f"{snapshot.table}: dtype_backend is {dtype_backend!r}; give one of {list(get_args(DtypeBackend))}."
        )
    rows = record_batches(snapshot, columns, where=where).read_all()
    frame: pd.DataFrame = rows.to_pandas(types_mapper=pandas.ArrowDtype if dtype_backend == "pyarrow" else None)
    return frame
