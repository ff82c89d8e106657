"""The columns of parts, from their footers."""

from __future__ import annotations

from icedb import Table
from icedb.reader.part_footers import part_columns, parts_with_columns
from tests.support.object_stores.stores import Place


def test_columns_of_any_name_are_found_in_the_parts_that_contain_them(local: Place) -> None:
    table = Table.create(local.uri)
    table.insert([{"a{b}": 1, "S": {"x": [1]}, "a": 2}])
    table.insert([{"a": 3}])
    parts = {len(part_columns(table.handle, [p], table.snapshot().schema)[p.key]): p for p in table.snapshot().parts}
    assert part_columns(table.handle, list(parts.values()), ["a{b}", "s", "x", "A"]) == {
        parts[3].key: {"a{b}", "s", "A"},
        parts[1].key: {"A"},
    }
    for column, expected in {"a{b}": [3], "s": [3], "a": [1, 3], "x": [], "{}": []}.items():
        assert parts_with_columns(table.handle, [parts[1], parts[3]], [column]) == [parts[n] for n in expected]
    assert parts_with_columns(table.handle, list(parts.values()), []) == []
