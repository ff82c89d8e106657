"""The recently committed ids of a table, and the protocol by which two writers never commit one id twice.

Every commit with ids is an exactly-once append of one application. Its sequence is one more than the last that the log
records. So commits with ids are ordered: a writer that tries the next sequence has read all commits before it, with
their ids. If two writers try the same sequence, the claim of the first decides (`icedb.transaction.idempotent_append`).
The other writer reads the new commits, and tries the next sequence with the rows that are still new. The table itself
is the record of ids, also after a crash: at the start they are read from the parts of the window.

The ids are kept as digests of 16 bytes, in DuckDB, in segments by time. Expired ids are dropped a segment at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from uuid import UUID

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from icedb.buffering.submissions import Submission
from icedb.errors import InvalidBatch, InvalidOption, SnapshotExpired
from icedb.format.records import Marker
from icedb.format.replay import TableState
from icedb.format.table_spec import Aggregating
from icedb.format.timing import Timing
from icedb.reader.scan_sql import read_as, translate_read_error
from icedb.sources.inference.type_tree import parse_type
from icedb.sql.connections import connect_reader, quote_name, renew_access
from icedb.storage.obstore_store import ObjectNotFound
from icedb.transaction.append import Commit
from icedb.transaction.idempotent_append import SEQUENCE_MAX
from icedb.transaction.table_handle import Handle
from icedb.util.durations import duration_text

__all__ = ["Ids", "check_window"]

logger = logging.getLogger(__name__)

_SIGNED = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")
#: The types that a column of ids may have.
_TYPES = frozenset((*_SIGNED, *(f"U{name}" for name in _SIGNED), "VARCHAR", "UUID"))
_IDS_ARE = "ids are text, whole numbers or UUIDs"
# Ids that are too old, or too many, are dropped in pieces of about a sixteenth.
_SEGMENTS = 16
# Each attempt may fail because cleanup deleted the parts before they were read.
_LOADS_MAX = 5
# The log's entry for an application that it does not record.
_NONE = (-1, 0)


def check_window(id_window_ms: int, timing: Timing, *, table: str) -> None:
    """Raise InvalidOption unless the log records transactions for longer than the window."""
    if id_window_ms >= timing.txn_retention_ms:
        raise InvalidOption(
            f"{table}: id_window_ms is {id_window_ms}, but the log records transactions only for "
            f"{duration_text(timing.txn_retention_ms)} (the table's txn_retention_ms). Set a shorter window."
        )


@dataclass(slots=True)
class _Segment:
    """A table of digests, and the times (unix ms) between which they were committed."""

    name: str
    oldest_ms: int
    newest_ms: int
    rows: int


class Ids:
    """The ids of one column that were committed to a table within a window. Only one thread may use it.

    `application` and `sequence` are the transaction of the next commit with ids.
    """

    def __init__(self, handle: Handle, column: str, *, window_ms: int, ids_max: int) -> None:
        """Read the ids from the table. Raises InvalidOption, CorruptLog and the store's errors."""
        self._handle = handle
        self._column = column
        self._window_ms = window_ms
        self._ids_max = ids_max
        self.application = f"ids of {column!r}"
        self.sequence = 0
        #: The log's last entry for the application: its sequence and commit time (unix ms).
        self._last = _NONE
        self._loaded = False
        #: The log files that were read, and their parts that are younger than the settled time.
        self._files: frozenset[str] = frozenset()
        self._seen: dict[str, int] = {}
        self._settled_ms = 0
        self._segments: list[_Segment] = []
        self._named = 0
        self._warned = False
        self._con = connect_reader(handle.location)
        self._check_spec()
        self.refresh()

    @property
    def count(self) -> int:
        """The number of ids that are remembered."""
        return sum(s.rows for s in self._segments)

    def close(self) -> None:
        """Free the memory of the ids."""
        self._con.close()

    def _check_spec(self) -> None:
        """Raise InvalidOption for a table that loses ids, or that cannot decide which writer was first."""
        spec, column = self._handle.spec, self._column
        if self._handle.fencing == "none":
            raise InvalidOption(
                f"{self._handle.table}: id_column needs a store that refuses to overwrite an object, and the table is "
                "open with fencing='none'. Use another store, or write without id_column."
            )
        loses = spec.merge_query or (isinstance(spec.merging, Aggregating) and column not in spec.merging.by)
        if not (loses or spec.insert_query):
            return
        reason = "its merges may drop rows, and their ids with them" if loses else "its insert_query makes other rows"
        raise InvalidOption(
            f"{self._handle.table}: id_column is '{column}', and ids are looked up in the table, but {reason}. Write "
            "the rows with ids to a separate table, or write without id_column."
        )

    def _type(self) -> str | None:
        """Return the column's type in the table, if it has one. Raises InvalidOption for a type that is not of ids."""
        columns = self._handle.columns
        type_ = columns.get(self._column)
        if type_ is None and (other := next((c for c in columns if c.casefold() == self._column.casefold()), None)):
            raise InvalidOption(
                f"{self._handle.table}: id_column is '{self._column}', and the column is '{other}'. Use that name."
            )
        if type_ is not None and parse_type(type_).name not in _TYPES:
            raise InvalidOption(f"{self._handle.table}: id_column '{self._column}' is {type_}; {_IDS_ARE}.")
        return type_

    # ------------------------------------------------------------------------------------ what others committed

    def refresh(self) -> None:
        """Read the log: learn the ids of other writers' commits, forget expired ids, and choose the sequence.

        Raises the errors of reading the log and parts. Then it may be called again.
        """
        now_ms = self._handle.clock.now_ms()
        self._expire(now_ms)
        for _ in range(_LOADS_MAX):
            state = self._handle.read(fresh=True)
            check_window(self._window_ms, self._handle.spec.timing, table=self._handle.table)  # it may have changed
            last = state.txn.get(self.application, _NONE)
            try:
                self._learn(state, last, now_ms)
                break
            except SnapshotExpired:  # the parts were merged and cleaned up: read the parts that have the rows now
                self._loaded = False
        else:
            raise SnapshotExpired(
                f"{self._handle.table}: parts were cleaned up while their ids were read, {_LOADS_MAX} times in a row. "
                "Ensure that no cleanup runs with a very short grace_ms, then retry.",
                horizon_ms=state.horizon_ms,
            )
        self._evict()
        self.sequence = max(last[0] + 1, self.sequence if self._last == last else 0)
        if self.sequence > SEQUENCE_MAX:
            raise InvalidOption(
                f"{self._handle.table}: the log has no sequence left for '{self.application}': another program uses "
                "the name of that transaction for its own. Use another id_column."
            )
        self._last = last
        self._files = frozenset(state.effective)
        self._settled_ms = now_ms - self._handle.timing.late_publication_ms
        self._seen = {k: t for k, t in self._seen.items() if t > self._settled_ms}

    def lost(self) -> None:
        """Skip the sequence, which another writer took, even if the log does not record it."""
        self.sequence += 1

    def _learn(self, state: TableState, last: tuple[int, int], now_ms: int) -> None:
        forgotten = state.horizon_ms > self._settled_ms or any(
            f.file.newest_foreign_ms > self._settled_ms for f in state.effective.values()
        )
        # The time is compared too: a forgotten application begins again, and may reach the same sequence.
        if not self._loaded or last[0] < self._last[0] or (last != self._last and forgotten):
            self._load(state, now_ms)
        elif last != self._last:
            self._read(self._new(state))

    def _new(self, state: TableState) -> list[Marker]:
        """Return the parts with new rows since the last refresh."""
        new_parts: dict[str, Marker] = {}
        for key, stored in state.effective.items():
            if key in self._files:
                continue
            for marker in stored.file.markers:
                own = marker.created_ms == stored.file.t_ms  # else another log file had it, which may have been read
                if not marker.moved and marker.key not in self._seen and (own or marker.created_ms > self._settled_ms):
                    new_parts[marker.key] = marker
        return list(new_parts.values())

    def _load(self, state: TableState, now_ms: int) -> None:
        """Read all ids again from the parts of the window, the youngest first. A merged part counts as young."""
        self._loaded = False
        for segment in list(self._segments):
            self._drop(segment)
        self._seen = {}
        since_ms = now_ms - self._window_ms - 2 * self._handle.timing.max_skew_ms
        young = sorted((m for m in state.live if m.created_ms >= since_ms), key=lambda m: -m.created_ms)
        span_ms = max(1, self._window_ms // _SEGMENTS)
        groups: dict[int, list[Marker]] = {}
        for marker in young:
            groups.setdefault(marker.created_ms // span_ms, []).append(marker)
        for markers in groups.values():
            if self.count >= self._ids_max:
                self._warn()
                break
            self._read(markers)
        self._segments.sort(key=lambda s: s.newest_ms)
        self._loaded = True

    def _read(self, markers: Sequence[Marker]) -> None:
        """Learn the ids of parts. Raises SnapshotExpired if a part was deleted, and the store's errors."""
        type_ = self._type()
        if markers and type_ is not None:
            parts = [self._handle.part(m) for m in markers]
            renew_access(self._con, self._handle.location)
            try:
                rows = read_as(self._handle, parts, {self._column: type_}, files=False)
                text = f"SELECT CAST({quote_name(self._column)} AS VARCHAR) AS id FROM ({rows})"
                self._add(
                    f"SELECT DISTINCT md5_number(id) FROM ({text}) WHERE id <> ''", [m.created_ms for m in markers]
                )
            except (duckdb.Error, ObjectNotFound) as error:
                now_ms = self._handle.clock.now_ms()
                raise translate_read_error(self._handle, parts, error, as_of_ms=now_ms) from None
        self._seen.update((m.key, m.created_ms) for m in markers)

    # ------------------------------------------------------------------------------------ rows of a batch

    def repeated(self, submissions: Sequence[Submission]) -> set[int]:
        """Return the positions of rows whose id is remembered, or occurs in an earlier row.

        Positions count through all submissions, which must be of one kind. Raises InvalidBatch for an invalid id.
        """
        self._con.execute("CREATE OR REPLACE TEMP TABLE fresh (n BIGINT, digest UHUGEINT)")
        ids = self._values(submissions)
        if ids is None:
            return set()
        type_ = self._type()
        # Two spellings of one value of the column's type are the same id.
        as_stored = "id" if type_ in (None, "VARCHAR") else f"coalesce(CAST(TRY_CAST(id AS {type_}) AS VARCHAR), id)"
        texts = f"SELECT n, {as_stored} AS id FROM (SELECT n, CAST(id AS VARCHAR) AS id FROM batch) WHERE id <> ''"
        self._con.register("batch", pa.table({"n": pa.array(range(len(ids)), pa.int64()), "id": ids}))
        self._con.execute(f"CREATE OR REPLACE TEMP TABLE incoming AS SELECT n, md5_number(id) AS digest FROM ({texts})")
        self._con.unregister("batch")
        committed = " UNION ALL ".join(
            f"SELECT digest FROM {table}" for table in ("fresh", *(s.name for s in self._segments))
        )
        self._con.execute(
            "INSERT INTO fresh SELECT min(n), digest FROM incoming "
            f"ANTI JOIN ({committed}) USING (digest) GROUP BY digest"
        )
        return {n for (n,) in self._con.execute("SELECT n FROM incoming ANTI JOIN fresh USING (n)").fetchall()}

    def _values(self, submissions: Sequence[Submission]) -> pa.Array | pa.ChunkedArray | None:
        """Return one id per row of submissions of one kind, of a type that DuckDB casts to text; None: no column."""
        tables = [s.rows for s in submissions if isinstance(s.rows, pa.Table)]
        if not tables:
            rows = chain.from_iterable(s.rows for s in submissions)
            return self._texts(row.get(self._column) if isinstance(row, Mapping) else None for row in rows)
        if self._column not in tables[0].column_names:
            return None
        values = pa.concat_tables([t.select([self._column]) for t in tables]).column(0)
        type_ = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
        if not (_is_text(type_) or pa.types.is_integer(type_) or pa.types.is_null(type_) or type_ == pa.uuid()):
            raise InvalidBatch(f"{self._handle.table}: column '{self._column}' is {type_}, and {_IDS_ARE}.")
        return values

    def all_have_ids(self, submission: Submission) -> bool:
        """Whether all rows have an id, so that they can be sent again safely."""
        ids = self._values([submission])
        if ids is None or ids.null_count:
            return False
        if pa.types.is_dictionary(ids.type):
            ids = ids.cast(ids.type.value_type)
        return not (_is_text(ids.type) and pc.any(pc.equal(ids, "")).as_py())

    def _texts(self, values: Iterable[object]) -> pa.Array:
        texts = []
        for number, value in enumerate(values):
            if value is None or type(value) is str:
                texts.append(value)
            elif isinstance(value, (int, str, UUID)) and not isinstance(value, bool):
                texts.append(str(value))
            else:
                kind = f"row {number} has a {type(value).__name__} as '{self._column}'"
                raise InvalidBatch(f"{self._handle.table}: {kind}, and {_IDS_ARE}.")
        try:
            return pa.array(texts, pa.string())
        except (UnicodeEncodeError, pa.ArrowException):
            raise InvalidBatch(f"{self._handle.table}: an id in column '{self._column}' is no valid text.") from None

    def committed(self, commit: Commit) -> None:
        """Remember the ids of the rows that were looked up last, except repeated ones, as committed."""
        at_ms = commit.created_ms or self._handle.clock.now_ms()
        self._add("SELECT digest FROM fresh", [at_ms])
        self._seen.update((p.key, p.created_ms) for p in commit.parts)
        self._last, self.sequence = (self.sequence, at_ms), self.sequence + 1

    # ------------------------------------------------------------------------------------ segments

    def _add(self, digests: str, times_ms: Sequence[int]) -> None:
        """Remember the digests that a query returns, of commits of these times (unix ms)."""
        oldest_ms, newest_ms = min(times_ms), max(times_ms)
        last = self._segments[-1] if self._segments and self._loaded else None
        if last is None or newest_ms - last.oldest_ms > self._window_ms // _SEGMENTS or self._is_full(last):
            self._named += 1
            last = _Segment(f"segment_{self._named}", oldest_ms, newest_ms, 0)
            self._con.execute(f"CREATE TABLE {last.name} (digest UHUGEINT)")
            self._segments.append(last)
        [(rows,)] = self._con.execute(f"INSERT INTO {last.name} {digests}").fetchall()
        last.rows += rows
        last.oldest_ms, last.newest_ms = min(last.oldest_ms, oldest_ms), max(last.newest_ms, newest_ms)

    def _is_full(self, segment: _Segment) -> bool:
        return segment.rows > self._ids_max // _SEGMENTS

    def _expire(self, now_ms: int) -> None:
        """Forget ids that were committed before the window. The clocks of writers may differ by twice the skew."""
        since_ms = now_ms - self._window_ms - 2 * self._handle.timing.max_skew_ms
        for segment in [s for s in self._segments if s.newest_ms < since_ms]:
            self._drop(segment)

    def _evict(self) -> None:
        while self.count > self._ids_max and len(self._segments) > 1:
            self._warn()
            self._drop(self._segments[0])

    def _drop(self, segment: _Segment) -> None:
        self._con.execute(f"DROP TABLE {segment.name}")
        self._segments.remove(segment)

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "%s: there are more than %d ids of the last %d ms in column '%s', so the oldest are forgotten. A row "
                "that is sent again that late is accepted again. Set a larger ids_max or a shorter id_window_ms.",
                self._handle.table, self._ids_max, self._window_ms, self._column,
            )  # fmt: skip


def _is_text(type_: pa.DataType) -> bool:
    return any(kind(type_) for kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))
