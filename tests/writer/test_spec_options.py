"""The options of a spec: None has no effect, and each option sets its field."""

from __future__ import annotations

from typing import Any

import icedb
from icedb.format.table_spec import TableSpec
from icedb.writer.spec_options import SpecOptions, spec_change


def test_an_option_that_is_none_has_no_effect(memory: Any) -> None:
    options: Any = dict.fromkeys(SpecOptions.__annotations__)
    table = icedb.Table.create(memory.uri, **options)
    assert table.spec == TableSpec(id=table.spec.id)
    assert not table.alter(**options).committed


def test_each_option_sets_its_field() -> None:
    options = SpecOptions(
        partition_by=["k AS p"],
        sort_by=["k"],
        compression="gzip",
        row_group_rows=4096,
        bloom_filters=["k"],
        schema={"k": "BIGINT"},
        required=["k"],
        schema_policy="declared",
        path_columns={"d": "DATE"},
        insert_query="SELECT * FROM _rows",
        merge_query="SELECT * FROM source_files",
        merging=icedb.Dedup(("k",)),
        row_id=True,
        timing=icedb.Timing(grace_ms=7_200_000),
    )
    assert options.keys() == SpecOptions.__annotations__.keys()
    spec = spec_change("t", **options)(TableSpec(columns={"v": "DOUBLE"}))
    assert spec == TableSpec(
        partition_by=("k AS p",),
        sort_by=("k",),
        compression="gzip",
        row_group_rows=4096,
        bloom_filters=("k",),
        columns={"v": "DOUBLE", "k": "BIGINT"},
        required=("k",),
        schema_policy="declared",
        path_columns={"d": "DATE"},
        insert_query="SELECT * FROM _rows",
        merge_query="SELECT * FROM source_files",
        merging=icedb.Dedup(("k",)),
        row_id=True,
        timing=icedb.Timing(grace_ms=7_200_000),
    )
    assert spec_change("t", merging="none", insert_query="")(spec).merging is None
