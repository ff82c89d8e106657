"""The spec of an open table and its times, as of the last read of the log."""

from __future__ import annotations

import msgspec

from icedb.errors import CorruptLog, InvalidRequestError
from icedb.format.keys import Keys
from icedb.format.replay import TableState
from icedb.format.table_spec import TableSpec, decode_spec
from icedb.format.timing import Timing, deletable_until, part_timeout_at, timing_at
from icedb.sql.partition_expressions import PartitionExpression, partition_expressions
from icedb.sql.types import checked_type
from icedb.util.clock import Clock
from icedb.writer.spec_validation import check_stored_spec

__all__ = ["CurrentSpec", "TableTimes", "damaged_spec", "lost_spec"]


class TableTimes:
    """The times of a table, from the newest spec that was read. Threads can share it.

    The handles that were made from one handle share it, and so do their log readers.
    """

    def __init__(self) -> None:
        self._spec: TableSpec | None = None

    @property
    def are_read(self) -> bool:
        """Whether a spec of the table was read. If not, the default times hold."""
        return self._spec is not None

    @property
    def spec(self) -> TableSpec:
        """The spec with the times, as one value for all threads."""
        return self._spec or TableSpec()

    def in_force(self, clock: Clock) -> Timing:
        """Return the times that are in force now; see `timing.timing_at`."""
        spec = self.spec
        return timing_at(spec.timing, spec.earlier_timing, clock.now_ms()) if spec.earlier_timing else spec.timing

    def part_timeout_ms(self, oldest_part_ms: int) -> int:
        """Return the age up to which a part from `oldest_part_ms` may be published; see `timing.part_timeout_at`."""
        spec = self.spec
        return part_timeout_at(spec.timing, spec.earlier_timing, oldest_part_ms)

    def deletable_until_ms(self, now_ms: int) -> int:
        """Return the newest tombstone whose part may be deleted by `now_ms`; see `timing.deletable_until`."""
        spec = self.spec
        return deletable_until(spec.timing, spec.earlier_timing, now_ms)

    def learn(self, spec: TableSpec) -> None:
        """Use the times of this spec, unless those of a newer one are known."""
        newest = self._spec
        if newest is None or (spec.revision >= newest.revision and (spec.id or not newest.id)):
            self._spec = spec


class CurrentSpec:
    """The spec that a handle uses. A newer one that the log records replaces it, unless `is_fixed`.

    Threads can share it.
    """

    def __init__(self, spec: TableSpec, times: TableTimes, keys: Keys, table: str, *, is_fixed: bool) -> None:
        self._is_fixed = is_fixed
        self._spec = _with_checked_types(spec, table)
        self._expressions: tuple[TableSpec, tuple[PartitionExpression, ...]] | None = None
        self._times = times
        self._keys = keys
        self._table = table
        if spec.id or not is_fixed:
            times.learn(spec)

    @property
    def spec(self) -> TableSpec:
        """The spec."""
        return self._spec

    @property
    def expressions(self) -> tuple[PartitionExpression, ...]:
        """The partition expressions of the spec, checked."""
        spec, checked = self._spec, self._expressions
        if checked is None or checked[0] is not spec:
            self._expressions = checked = spec, partition_expressions(spec, table=self._table)
        return checked[1]

    def replaced_by(self, spec: TableSpec) -> CurrentSpec:
        """Return another current spec of the same table."""
        return CurrentSpec(spec, self._times, self._keys, self._table, is_fixed=self._is_fixed)

    def learn(self, recorded: TableSpec) -> None:
        """Use a spec that the log records, unless a newer one is known."""
        if recorded.revision > self._spec.revision and not self._is_fixed:
            self._spec = _with_checked_types(recorded, self._table)
            self._times.learn(recorded)

    def learn_from(self, state: TableState) -> None:
        """Use the spec and the times that a state records. Raises CorruptLog for an invalid spec."""
        if isinstance(state.spec, msgspec.UnsetType):
            return
        recorded = decode_spec(bytes(state.spec), table=self._table, key=self._keys.log_prefix)
        self._times.learn(recorded)
        if self._is_fixed or recorded.revision <= self._spec.revision:
            return
        try:
            check_stored_spec(recorded, table=self._table)
            self.learn(recorded)
        except InvalidRequestError as error:  # another program may have written it
            key = next(k for k, f in state.effective.items() if f.file.spec is state.spec)
            raise damaged_spec(self._table, key, error) from None


def lost_spec(table: str, key: str) -> CorruptLog:
    """Return the error for a write to a table whose `_table.json` is missing."""
    return CorruptLog(
        f"{table}: '{key}' is missing, and the log is of a table that had it. The table can be read, but "
        "not written. Restore the object from a backup, or create it from the log with 'icedb repair-spec' or "
        "Table.repair_spec, then open the table again.",
        key=key,
    )


def damaged_spec(table: str, key: str, error: InvalidRequestError) -> CorruptLog:
    """Return the error for a stored spec that is invalid: this project's programs write none."""
    return CorruptLog(
        f"{table}: the spec in '{key}' is invalid: {error} Restore the object from a backup or an earlier "
        "version of it.",
        key=key,
    )


def _with_checked_types(spec: TableSpec, table: str) -> TableSpec:
    """Return the spec with DuckDB's own type names, because SQL contains them. Raises InvalidOption for other names."""
    columns = {c: checked_type(t, what=f"column '{c}'", table=table) for c, t in spec.columns.items()}
    paths = {c: checked_type(t, what=f"path column '{c}'", table=table) for c, t in spec.path_columns.items()}
    return msgspec.structs.replace(spec, columns=columns, path_columns=paths)
