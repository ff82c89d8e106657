"""The table of tests about verbs. Tests that need another one define it."""

from __future__ import annotations

from pathlib import Path

import pytest

from icedb import Table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Return a table with two partitions of one row each."""
    table = Table.create(tmp_path / "table", partition_by=["k"], storage_options={"fsync": "false"})
    table.insert([{"k": k, "n": k} for k in range(2)])
    return table
