"""A batch that does not fit: refuse it, convert what can be converted, or set the rows at fault aside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import icedb
from icedb.errors import InvalidBatch, SchemaConflict, UnknownColumn

__all__ = ["create", "mend", "problem", "set_aside", "take", "take_what_converts", "what_was_set_aside"]

Row = Mapping[str, object]


def create(uri: str) -> icedb.Table:
    """A table that takes what was declared, and nothing else: `order_id`, `due`, `total`, `note`."""
    return icedb.Table.create(
        uri,
        schema={"order_id": "BIGINT", "due": "TIMESTAMP", "total": "DECIMAL(18, 2)", "note": "VARCHAR"},
        required=["order_id"],  # null in no row
        schema_policy="declared",  # a column that nobody declared is a mistake; with "open" it would join the table
    )


def take(orders: icedb.Table, batch: Sequence[Row]) -> int:
    """The whole batch, or nothing of it."""
    return orders.insert(batch).rows


def problem(orders: icedb.Table, batch: Sequence[Row]) -> str | None:
    """What is wrong with a batch, without writing it. None: it fits."""
    try:
        orders.insert(batch, dry_run=True)
    except UnknownColumn:
        return "a column that was not declared"
    except SchemaConflict as conflict:
        declared, found = conflict.types[:2]
        return f"{conflict.column} is {declared}, and not {found}"
    except InvalidBatch:
        return "a value that is required is missing"
    return None


def take_what_converts(orders: icedb.Table, batch: Sequence[Row]) -> int:
    """As `take`, but values become their column's type where nothing is lost: a number a text, a date a timestamp."""
    return orders.insert(batch, on_conflict="cast").rows


def set_aside(orders: icedb.Table, batch: Sequence[Row]) -> tuple[int, int]:
    """Rows that fit, and rows that went into the table's quarantine, each with the reason why."""
    commit = orders.insert(batch, on_conflict="quarantine")
    return commit.rows, commit.quarantined_rows


def what_was_set_aside(orders: icedb.Table) -> icedb.QueryResult:
    """The quarantine is a table of its own, beside the table."""
    return icedb.Table.open(f"{orders.uri}_quarantine").query("SELECT reason, row FROM t ORDER BY row")


#: What the old shop writes as "21,50".
_WITH_COMMA = r"regexp_full_match(row ->> '$.total', '\d+,\d\d') AND (row ->> '$.order_id') IS NOT NULL"


def mend(orders: icedb.Table) -> int:
    """Totals with a comma were meant as numbers: insert those rows corrected, and take them out of the quarantine."""
    quarantine = icedb.Table.open(f"{orders.uri}_quarantine")
    corrected = quarantine.query(f"""
        SELECT (row ->> '$.order_id')::BIGINT AS order_id, row ->> '$.note' AS note,
               replace(row ->> '$.total', ',', '.')::DECIMAL(18, 2) AS total
        FROM t WHERE {_WITH_COMMA}
    """)
    rows = orders.insert(corrected, txn=("mending", 1)).rows
    quarantine.delete(_WITH_COMMA)
    return rows
