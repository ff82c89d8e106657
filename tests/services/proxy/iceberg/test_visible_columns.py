"""The columns that a tenant's parts contain are found in few footers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from icedb import Table
from icedb.services.proxy.config.tenants import Scope, VirtualBucket
from icedb.services.proxy.iceberg import visible_columns
from icedb.services.proxy.iceberg.visible_columns import SeenColumns
from tests.support.object_stores.stores import Place


def test_each_footer_is_read_once_however_many_columns_only_others_have(
    local: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: Counter[str] = Counter()
    part_columns = visible_columns.part_columns

    def counted(handle: Any, parts: Any, columns: Any) -> dict[str, set[str]]:
        reads.update(part.key for part in parts)
        return part_columns(handle, parts, columns)

    monkeypatch.setattr(visible_columns, "part_columns", counted)
    table = Table.create(local.uri, partition_by=["u"])
    for n in range(12):
        table.insert([{"u": 1, "n": n}])
    table.insert([{"u": 2, "n": 0, **{f"private_{n}": n for n in range(5)}}])
    table.merge_log()  # one log file now names the parts of both tenants
    bucket = VirtualBucket("events", local.uri, Scope(("u=1",)))
    seen = SeenColumns()
    for _ in range(2):
        assert seen.find(table.handle, table.handle.read(), bucket) == {"u", "n"}
        assert (len(reads), set(reads.values())) == (12, {1})
    table.insert([{"u": 1, "n": 13, "private_3": 1}])
    assert seen.find(table.handle, table.handle.read(), bucket) == {"u", "n", "private_3"}
    assert (len(reads), set(reads.values())) == (13, {1})
    table.drop_partitions("u = 1")
    table.insert([{"u": 1, "n": 14}])
    table.cleanup(grace_ms=0, allow_short_grace=True)
    assert "private_3" not in seen.find(table.handle, table.handle.read(), bucket)
