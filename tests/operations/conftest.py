"""The table of most tests of operations."""

from __future__ import annotations

import pytest

from icedb import Table
from icedb.testing import ClockedStore, ManualClock, create_table


@pytest.fixture
def table(clocked: ClockedStore, clock: ManualClock) -> Table:
    """An empty table, partitioned by k and sorted by n, in a store whose clock the test sets."""
    return create_table(clocked, clock, partition_by=["k"], sort_by=["n"])
