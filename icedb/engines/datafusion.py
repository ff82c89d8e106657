"""A snapshot as a table of a DataFusion SessionContext.

    register(ctx, "events", table.snapshot())
    ctx.sql("SELECT user_id, count(*) FROM events WHERE d = '2026-11-21' GROUP BY user_id")

DataFusion asks the Arrow dataset of `icedb.engines.arrow` for the columns and with the filters of a query, so filters
on partition columns skip parts. Its own Parquet reader takes a folder or one file, in which a list of live parts cannot
be said; on 8 million rows in 16 parts it was about twice as fast as the dataset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from icedb.engines.arrow import dataset
from icedb.errors import InvalidOption
from icedb.reader.snapshot import Snapshot
from icedb.sql.connections import quote_name
from icedb.util.arguments import checks_arguments
from icedb.util.optional_deps import import_optional

if TYPE_CHECKING:
    from datafusion import SessionContext

__all__ = ["register"]


@checks_arguments
def register(ctx: SessionContext, name: str, snapshot: Snapshot, parts_where: str | None = None) -> None:
    """Make a snapshot, or those of its parts that may hold rows for which `parts_where` is true, a table of `ctx`.

    A table that had the name is replaced: register a new snapshot to see what came since. Letters keep their case, and
    SQL finds a name with upper case letters only in double quotes. `parts_where` is a DuckDB predicate that only leaves
    parts out; filter in the query as well. The types are those of `Snapshot.to_arrow`, but a UUID is 16 bytes.

    Raises MissingExtra, and what `icedb.engines.arrow.dataset` raises. What a query raises later is DataFusion's own.
    """
    datafusion = import_optional("datafusion", extra="datafusion")
    if not isinstance(ctx, datafusion.SessionContext):
        raise InvalidOption(
            f"{snapshot.table}: register() was given a {type(ctx).__name__}; give a datafusion.SessionContext."
        )
    if not isinstance(name, str) or not name:
        raise InvalidOption(f"{snapshot.table}: {name!r} cannot be a table's name; give a text.")
    rows = dataset(snapshot, parts_where, uuid=pa.binary(16))
    ctx.deregister_table(quote_name(name))
    ctx.register_dataset(quote_name(name), rows)
