"""The fields of a handle cannot be assigned, and a handle that is made from another one has its own caches."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from icedb import Table
from icedb.format.table_spec import TableSpec
from icedb.testing import ClockedStore, ManualClock, create_table
from icedb.transaction.table_handle import Handle


@pytest.fixture
def table(clocked: ClockedStore, clock: ManualClock) -> Table:
    table = create_table(clocked, clock)
    table.insert([{"n": 1}])
    return table


@pytest.mark.parametrize("field", [f.name for f in fields(Handle)])
def test_no_field_of_a_handle_can_be_assigned(table: Table, field: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(table.handle, field, None)


def test_a_handle_with_another_spec_shares_the_log_and_caches_separately(table: Table) -> None:
    handle = table.handle
    other = handle.with_spec(TableSpec(sort_by=("n",)))
    assert (handle.spec.sort_by, other.spec.sort_by) == ((), ("n",))
    assert (other.log, other.times, other.part_paths) == (handle.log, handle.times, handle.part_paths)
    other.cache.learn_columns({"later": "BIGINT"})
    other.cache.learn_epoch(7)
    assert handle.known_schema == {"n": "BIGINT"}
    assert other.known_schema == {"n": "BIGINT", "later": "BIGINT"}
    assert handle.cache.newest_epoch < other.cache.newest_epoch == 7


def test_a_tolerant_handle_reads_the_log_and_caches_separately(table: Table) -> None:
    handle, tolerant = table.handle, table.handle.tolerant()
    assert tolerant.log is not handle.log
    assert tolerant.times is handle.times
    tolerant.read()
    tolerant.cache.learn_columns({"later": "BIGINT"})
    assert handle.known_schema == {"n": "BIGINT"}
