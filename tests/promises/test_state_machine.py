"""After any sequence of operations a table has the rows of a dict, now and at every readable time.

The table uses DuckDB and Parquet, in a store whose clock the test sets. Operations run one after the other:
tests/testing/test_simulation.py has concurrent ones.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from icedb import Table
from icedb.errors import SnapshotExpired
from icedb.format.timing import HOUR_MS, MINUTE_MS
from icedb.testing import ClockedStore, ManualClock, check_sound, create_table, open_table

#: n -> k: each row has a number of its own and lies in partition k.
Rows = dict[int, int]
PARTITIONS = st.integers(0, 2)


class TableMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.store = ClockedStore(self.clock)
        self.table: Table = create_table(self.store, self.clock, partition_by=["k"], sort_by=["n"])
        self.rows: Rows = {}
        self.added = 0
        self.batches: list[tuple[list[dict[str, int]], int]] = []
        #: What was there at some times, oldest first; and what pins promise.
        self.history: list[tuple[int, Rows]] = []
        self.pins: dict[str, tuple[int, Rows]] = {}

    def new_rows(self, *partitions: int) -> list[dict[str, int]]:
        self.added += len(partitions)
        return [{"k": k, "n": self.added - n} for n, k in enumerate(partitions)]

    def note(self, rows: list[dict[str, int]]) -> None:
        self.rows = self.rows | {row["n"]: row["k"] for row in rows}

    @initialize()
    def first_rows(self) -> None:
        self.append([0, 1])

    # ------------------------------------------------------------------------------------ verbs

    @rule(partitions=st.lists(PARTITIONS, min_size=1, max_size=4))
    def append(self, partitions: list[int]) -> None:
        rows = self.new_rows(*partitions)
        assert self.table.insert(rows).rows == len(rows)
        self.note(rows)

    @rule(partition=PARTITIONS)
    def append_once(self, partition: int) -> None:
        rows = self.new_rows(partition)
        self.batches.append((rows, len(self.batches)))
        assert not self.table.insert(rows, txn=("stream", len(self.batches) - 1)).repeated
        self.note(rows)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def append_again(self, data: st.DataObject) -> None:
        rows, sequence = data.draw(st.sampled_from(self.batches))
        assert self.table.insert(rows, txn=("stream", sequence)).repeated

    @rule(partition=PARTITIONS, column=st.sampled_from("abc"))
    def append_with_a_column(self, partition: int, column: str) -> None:
        rows = self.new_rows(partition)
        self.table.insert([{**row, column: 1} for row in rows])
        self.note(rows)

    @rule(partition=PARTITIONS)
    def overwrite_a_partition(self, partition: int) -> None:
        rows = self.new_rows(partition)
        self.table.overwrite(rows, partitions=[f"k={partition}"])
        self.rows = {n: k for n, k in self.rows.items() if k != partition}
        self.note(rows)

    @rule(partition=PARTITIONS)
    def drop(self, partition: int) -> None:
        self.table.drop_partitions(f"k = {partition}")
        self.rows = {n: k for n, k in self.rows.items() if k != partition}

    @rule(rest=st.integers(0, 2))
    def delete(self, rest: int) -> None:
        gone = [n for n in self.rows if n % 3 == rest]
        assert self.table.delete(f"n % 3 = {rest}").deleted_rows == len(gone)
        self.rows = {n: k for n, k in self.rows.items() if n not in gone}

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), rest=st.integers(0, 2))
    def rewrite_a_partition(self, data: st.DataObject, rest: int) -> None:
        partition = data.draw(st.sampled_from(sorted(set(self.rows.values()))))
        self.table.rewrite_partition(f"k={partition}", f"SELECT * FROM t WHERE n % 3 <> {rest}")
        self.rows = {n: k for n, k in self.rows.items() if k != partition or n % 3 != rest}

    # ------------------------------------------------------------------------------------ maintenance

    @rule()
    def merge(self) -> None:
        self.table.merge()

    @rule()
    def merge_the_log(self) -> None:
        self.table.merge_log()

    @rule()
    def alter(self) -> None:
        self.table.alter(row_group_rows=2_048 * (1 + self.added))

    @rule()
    def clean_up(self) -> None:
        self.table.cleanup()

    @rule()
    def delete_orphans(self) -> None:
        assert self.table.delete_orphans().deleted_parts == ()

    @rule(minutes=st.sampled_from([1, 10, 59, 61, 300, 3_000]))
    def time_passes(self, minutes: int) -> None:
        self.clock.advance(minutes * MINUTE_MS)

    @rule()
    def another_program_goes_on(self) -> None:
        self.table = open_table(self.store, self.clock)

    # ------------------------------------------------------------------------------------ the past

    @precondition(lambda self: self.history)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        at_ms, rows = data.draw(st.sampled_from(self.history))
        try:
            self.table.restore(at_ms, allow_empty=True)
        except SnapshotExpired:
            assert self.clock.now_ms() - at_ms > HOUR_MS
        else:
            self.rows = rows

    @rule()
    def pin(self) -> None:
        name = f"pin{len(self.history)}-{self.clock.now_ms()}"
        self.table.pin(name, self.clock.now_ms(), expires=timedelta(days=30))
        self.pins[name] = (self.clock.now_ms(), self.rows)

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.pins)))
        assert self.table.unpin(name)
        del self.pins[name]

    # ------------------------------------------------------------------------------------ what must hold

    @invariant()
    def the_rows_are_those_of_the_dict(self) -> None:
        assert self.read() == self.rows
        check_sound(self.store)
        self.history.append((self.clock.now_ms(), self.rows))
        # Exclusive commits of one millisecond get rising times: the next verb's is later than what is remembered.
        self.clock.advance(100)

    @invariant()
    def the_past_is_what_it_was(self) -> None:
        for at_ms, rows in self.history[-8::3]:
            try:
                assert self.read(at_ms) == rows
            except SnapshotExpired:
                assert self.clock.now_ms() - at_ms > HOUR_MS

    @invariant()
    def pinned_times_can_be_read(self) -> None:
        for at_ms, rows in self.pins.values():
            assert self.read(at_ms) == rows

    def read(self, at_ms: int | None = None) -> Rows:
        if not self.table.snapshot(at_ms).parts:
            return {}
        all_rows = self.table.query("SELECT n, k FROM t", as_of=at_ms).fetchall()
        assert len({n for n, _ in all_rows}) == len(all_rows), "rows twice"
        return dict(all_rows)


class _LongMachine(TableMachine):
    """The same machine with more examples and steps."""


def _settings(examples: int) -> settings:
    return settings(
        max_examples=examples, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
    )


TestTableMachine = pytest.mark.simulation(TableMachine.TestCase)
TestTableMachine.settings = _settings(3)
TestTableMachineForLong = pytest.mark.slow(seconds=60)(_LongMachine.TestCase)
TestTableMachineForLong.settings = _settings(60)
