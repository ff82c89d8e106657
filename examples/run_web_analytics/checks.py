"""Checks of the example: the tables after each step, against counts of the generated files."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import icedb
from examples.run_web_analytics.expected import EventCounts, ExpectedSession, metrics_of
from examples.shared.numbers import NumbersDisagree, agree

__all__ = ["ingested", "merged", "metrics", "nothing_stored_of", "only_live_objects", "sessions", "unchanged", "viewed"]

Key = TypeVar("Key")


def _agree(name: str, actual: object, expected: object) -> None:
    agree(name, actual, expected, source="the generated files")


def ingested(table: icedb.Table, quarantine: icedb.Table, expected: EventCounts) -> None:
    """Check the rows that fit by tenant and day, and the other rows in the quarantine."""
    rows = table.query("SELECT tenant, day, count(*) FROM t GROUP BY ALL").fetchall()
    _agree("events by tenant and day", {(t, d): n for t, d, n in rows}, dict(expected.by_partition))
    users = [user for (user,) in quarantine.query("SELECT row ->> '$.user_id' FROM t").fetchall()]
    _agree("users of rows that do not fit", Counter(users), Counter(expected.misfits))


def unchanged(snapshots: Mapping[str, str], before: Mapping[str, str]) -> None:
    """Check that the tables have the same parts as before."""
    if changed := [name for name, id_ in snapshots.items() if id_ != before[name]]:
        raise NumbersDisagree(f"known files were inserted again, and changed {changed}")


def viewed(view: icedb.Table, expected: EventCounts) -> None:
    """Check the materialized view by hour, merged or not."""
    rows = view.query("SELECT tenant, hour, page, views, clicks FROM final").fetchall()
    counts = {(tenant, hour, page): (views, clicks) for tenant, hour, page, views, clicks in rows}
    _agree("duplicate page views", len(rows) - len(counts), 0)
    _agree("views and clicks by hour and page", _differing(counts, expected.page_views), {})


def sessions(table: icedb.Table, expected: Iterable[ExpectedSession]) -> None:
    """Check every session with all its values."""
    rows = table.query(
        "SELECT session_id, tenant, user_id, day, round(seconds, 6), page_views, clicks, purchases, revenue_cents, "
        "landing_page FROM t"
    ).fetchall()
    _agree("rows of the sessions", len(rows), len(wanted := {s.session_id: tuple(s) for s in expected}))
    _agree("sessions", _differing({row[0]: row for row in rows}, wanted), {})


def metrics(table: icedb.Table, expected: Iterable[ExpectedSession]) -> None:
    """Check for a row for each tenant and day."""
    rows = table.query(
        "SELECT tenant, day, visitors, sessions, page_views, round(bounce_rate, 9), round(seconds_median, 6), "
        "purchases, revenue_cents FROM t"
    ).fetchall()
    wanted = metrics_of(expected)
    _agree("rows of the metrics", len(rows), len(wanted))
    _agree("metrics", _differing({row[:2]: row[2:] for row in rows}, wanted), {})


def merged(table: icedb.Table) -> None:
    """Check for one part for each partition."""
    snapshot = table.snapshot()
    _agree_parts(table, "parts after the merge", len(snapshot.parts), len(snapshot.partitions()))


def only_live_objects(table: icedb.Table) -> None:
    """Check that only live parts are stored."""
    stored = {o.key for o in table.handle.store.list(table.handle.keys.data_prefix)}
    _agree_parts(table, "stored parts", stored, {part.key for part in table.snapshot().parts})


def nothing_stored_of(table: icedb.Table, user: int) -> int:
    """Check that no object of a table, part or log, contains a user. Return the number of objects."""
    store, keys = table.handle.store, table.handle.keys
    objects = [o.key for prefix in (keys.data_prefix, keys.log_prefix, keys.claims_prefix) for o in store.list(prefix)]
    for key in objects:
        content = store.get(key).body
        contains_user = _rows_of(content, user) if key.endswith(".parquet") else str(user).encode() in content
        if contains_user:
            raise NumbersDisagree(f"{table.uri}: '{key}' still contains the user {user}")
    return len(objects)


def _rows_of(content: bytes, user: int) -> bool:
    """Return whether a part has the user in any column, as a number or in a text."""
    rows = pq.read_table(io.BytesIO(content))
    for column in rows.columns:
        if pa.types.is_integer(column.type) and pc.any(pc.equal(column, user)).as_py():
            return True
        if pa.types.is_string(column.type) and pc.any(pc.match_substring(column, str(user))).as_py():
            return True
    return False


def _agree_parts(table: icedb.Table, name: str, actual: object, wanted: object) -> None:
    if actual != wanted:
        raise NumbersDisagree(f"{table.uri}: {name}: found {actual}, not {wanted}")


def _differing(actual: Mapping[Key, object], wanted: Mapping[Key, object]) -> dict[Key, tuple[object, object]]:
    """Return key -> (actual, expected) for keys whose values differ."""
    return {
        key: (actual.get(key), wanted.get(key))
        for key in sorted(actual.keys() | wanted.keys(), key=str)
        if actual.get(key) != wanted.get(key)
    }
