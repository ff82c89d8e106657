"""A batch that does not fit: reject it, cast its values, or quarantine the rows at fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import icedb
from icedb.errors import InvalidBatch, SchemaConflict, UnknownColumn

__all__ = ["correct", "create", "insert", "insert_cast", "problem", "quarantine", "quarantined_rows"]

Row = Mapping[str, object]


def create(uri: str) -> icedb.Table:
    """Create a table that accepts only declared columns: `order_id`, `due`, `total`, `note`."""
    return icedb.Table.create(
        uri,
        schema={"order_id": "BIGINT", "due": "TIMESTAMP", "total": "DECIMAL(18, 2)", "note": "VARCHAR"},
        required=["order_id"],  # never null
        schema_policy="declared",  # reject undeclared columns; "open" would add them
    )


def insert(orders: icedb.Table, batch: Sequence[Row]) -> int:
    """Insert the whole batch, or reject it."""
    return orders.insert(batch).rows


def problem(orders: icedb.Table, batch: Sequence[Row]) -> str | None:
    """Return why a batch would be rejected, without writing it; None if it fits."""
    try:
        orders.insert(batch, dry_run=True)
    except UnknownColumn:
        return "an undeclared column"
    except SchemaConflict as conflict:
        declared, actual = conflict.types[:2]
        return f"{conflict.column} is {declared}, not {actual}"
    except InvalidBatch:
        return "a required value is missing"
    return None


def insert_cast(orders: icedb.Table, batch: Sequence[Row]) -> int:
    """Insert, casting values to their column's type if nothing is lost: a number to text, a date to a timestamp."""
    return orders.insert(batch, on_conflict="cast").rows


def quarantine(orders: icedb.Table, batch: Sequence[Row]) -> tuple[int, int]:
    """Insert the rows that fit, and quarantine the others with the reason. Return both counts."""
    commit = orders.insert(batch, on_conflict="quarantine")
    return commit.rows, commit.quarantined_rows


def quarantined_rows(orders: icedb.Table) -> icedb.QueryResult:
    """Return the quarantined rows. The quarantine is a table next to the table."""
    return icedb.Table.open(f"{orders.uri}_quarantine").query("SELECT reason, row FROM t ORDER BY row")


#: Matches totals with a decimal comma, as the old shop writes them: "21,50".
_WITH_COMMA = r"regexp_full_match(row ->> '$.total', '\d+,\d\d') AND (row ->> '$.order_id') IS NOT NULL"


def correct(orders: icedb.Table) -> int:
    """Insert quarantined totals with a decimal comma as numbers, and delete those rows from the quarantine."""
    rejected = icedb.Table.open(f"{orders.uri}_quarantine")
    corrected = rejected.query(f"""
        SELECT (row ->> '$.order_id')::BIGINT AS order_id, row ->> '$.note' AS note,
               replace(row ->> '$.total', ',', '.')::DECIMAL(18, 2) AS total
        FROM t WHERE {_WITH_COMMA}
    """)
    rows = orders.insert(corrected, txn=("corrections", 1)).rows
    rejected.delete(_WITH_COMMA)
    return rows
