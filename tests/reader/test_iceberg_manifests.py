"""Manifests, which are encoded by columns, equal those that another library encodes part by part."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import fastavro
import msgspec
import pytest
from fastavro import schemaless_writer
from pyiceberg import conversions
from pyiceberg import types as iceberg_types

from icedb.reader.iceberg.data_files import DataFiles
from icedb.reader.iceberg.iceberg_types import file_types, path_types
from icedb.reader.iceberg.layout import IcebergLayout, PartitionField
from icedb.reader.iceberg.manifests import Manifest, build_manifests
from icedb.sql.field_ids import field_id
from icedb.storage.parts import Part

#: Column -> its type, bounds as in the log, and each bound as a Python value of Iceberg; None: it has no bound.
COLUMNS: dict[str, tuple[str, dict[Any, Any]]] = {
    "ok": ("BOOLEAN", {False: False, True: True}),
    "i": ("INTEGER", {0: 0, -5: -5, 2**31 - 1: 2**31 - 1, 2**40: None}),
    "n": ("BIGINT", {0: 0, -1: -1, 2**63 - 1: 2**63 - 1}),
    "f": ("FLOAT", {"0.5": 0.5, "inf": None, "nan": None, "1e300": None}),
    "x": ("DOUBLE", {"-3.25": -3.25, "no number": None}),
    "v": ("VARCHAR", {"": "", "Zürich": "Zürich", "x" * 64: "x" * 64}),
    "day": ("DATE", {"1969-12-31": -1, "infinity": None, "no date": None}),
    "at": ("TIMESTAMP", {"1970-01-01 00:00:00.000001": 1, "2026-11-21 00:00:00": 1795219200000000}),
    "tz": ("TIMESTAMP WITH TIME ZONE", {"1970-01-01 01:00:00+01": 0}),
    "nested": ("STRUCT(a INTEGER)", {1: None}),
}
ICEBERG = {
    "ok": iceberg_types.BooleanType(),
    "i": iceberg_types.IntegerType(),
    "n": iceberg_types.LongType(),
    "f": iceberg_types.FloatType(),
    "x": iceberg_types.DoubleType(),
    "v": iceberg_types.StringType(),
    "day": iceberg_types.DateType(),
    "at": iceberg_types.TimestampType(),
    "tz": iceberg_types.TimestamptzType(),
}
#: Partition column -> its type, and each text in a path as Avro's value.
PARTITIONS: dict[str, tuple[str, dict[str | None, Any]]] = {
    "p_day": ("DATE", {"1970-01-02": 1, None: None}),
    "p_n": ("BIGINT", {"-70000000000": -70000000000, "3": 3, None: None}),
    "p_city": ("VARCHAR", {"a/b": "a/b", "": "", None: None}),
    "p_q": ("DECIMAL(4,2)", {"12.80": Decimal("12.80"), "-1.25": Decimal("-1.25"), None: None}),
    "p_late": ("BOOLEAN", {"true": True, "false": False}),
}


def layout(*, partitioned: bool) -> IcebergLayout:
    columns = {name: type_ for name, (type_, _) in COLUMNS.items()}
    of_paths = {name: type_ for name, (type_, _) in PARTITIONS.items()} if partitioned else {}
    fields = [
        PartitionField(name, of_paths[name], type_, field_id("", name, type_), 1000 + n)
        for n, (name, type_) in enumerate(path_types(of_paths, table="t").items())
    ]
    return IcebergLayout(columns, file_types(columns, table="t"), fields)


def random_parts(count: int, draw: random.Random) -> tuple[list[Part], list[dict[str, str | None]]]:
    parts, values = [], []
    for _ in range(count):
        bounds = {
            name: [
                *(draw.choices(list(texts), k=2) if draw.random() < 0.9 else (None, None)),
                draw.choice([0, 3, 5000]),
            ]
            for name, (_, texts) in COLUMNS.items()
            if draw.random() < 0.8
        }
        stats = msgspec.Raw(json.dumps(bounds).encode()) if draw.random() < 0.9 else msgspec.UNSET
        key, rows = f"t/_data/{draw.getrandbits(128):032x}.parquet", draw.choice([None, 0, draw.randrange(10**7)])
        created_ms = 1_700_000_000_000 + draw.randrange(50)
        parts.append(Part(key, f"/lake/{key}", "", draw.randrange(10**9), rows, created_ms, stats=stats))
        values.append({name: draw.choice(list(texts)) for name, (_, texts) in PARTITIONS.items()})
    return sorted(parts, key=lambda part: part.key), values


def reference(layout: IcebergLayout, part: Part, values: Mapping[str, str | None], rows: int) -> dict[str, Any]:
    """Return the entry of a part as fastavro takes it."""
    bounds = {} if isinstance(part.stats, msgspec.UnsetType) else json.loads(bytes(part.stats))
    recorded = {name: of_part for name, of_part in bounds.items() if name in ICEBERG}
    encoded: list[list[dict[str, Any]]] = [[], [], [], []]
    for name in (c for c in layout.columns if c in recorded):
        id_, (low, high, nulls) = field_id(name), recorded[name]
        encoded[0].append({"key": id_, "value": rows})
        encoded[1].append({"key": id_, "value": nulls})
        for pairs, bound in ((encoded[2], low), (encoded[3], high)):
            value = None if bound is None else COLUMNS[name][1][bound]
            if value is not None:
                pairs.append({"key": id_, "value": conversions.to_bytes(ICEBERG[name], value)})
    maps = ("value_counts", "null_value_counts", "lower_bounds", "upper_bounds")
    return {
        "status": 0,
        "snapshot_id": part.created_ms << 21,
        "sequence_number": part.created_ms,
        "file_sequence_number": part.created_ms,
        "data_file": {
            "content": 0,
            "file_path": part.path,
            "file_format": "PARQUET",
            "partition": {f"p{f.id}": PARTITIONS[f.name][1][values[f.name]] for f in layout.partition_fields},
            "record_count": rows,
            "file_size_in_bytes": part.bytes,
            **{name: pairs or None for name, pairs in zip(maps, encoded, strict=True)},
        },
    }


def blocks_of(manifests: Sequence[Manifest]) -> tuple[Any, bytes]:
    """Return the schema of manifests, and their encoded entries without compression."""
    schema, encoded = None, b""
    for manifest in manifests:
        with io.BytesIO(manifest.body) as file:
            schema = fastavro.reader(file).writer_schema
            file.seek(0)
            encoded += b"".join(block.bytes_.getvalue() for block in fastavro.block_reader(file))
    return schema, encoded


@pytest.mark.parametrize("partitioned", [True, False])
def test_manifests_equal_those_of_another_encoder(monkeypatch: pytest.MonkeyPatch, partitioned: bool) -> None:
    monkeypatch.setattr("icedb.reader.iceberg.manifests._PARTS", 64)
    of_table, (parts, values) = layout(partitioned=partitioned), random_parts(500, random.Random(7))
    rows = {p.key: 7 for p in parts if p.rows is None}
    manifests = build_manifests(of_table, DataFiles.of(parts, rows), values, table="t")
    assert len(manifests) > 2
    assert sum(m.files for m in manifests) == len(parts)
    schema, encoded = blocks_of(manifests)
    ours = io.BytesIO()
    for part, of_part in sorted(zip(parts, values, strict=True), key=lambda one: (one[0].created_ms, one[0].key)):
        schemaless_writer(ours, schema, reference(of_table, part, of_part, rows.get(part.key, part.rows or 0)))
    assert encoded == ours.getvalue()
    assert sum(m.rows for m in manifests) == sum(7 if p.rows is None else p.rows for p in parts)


def test_superseded_parts_have_no_bounds_that_are_texts() -> None:
    of_table = layout(partitioned=False)
    stats = msgspec.Raw(b'{"n":[1,2,0],"v":["a","b",0],"day":[null,null,4]}')
    for tombstoned_ms, columns in ((None, {"n", "v", "day"}), (9, {"n", "day"})):
        part = Part("t/_data/a.parquet", "/lake/a", "", 1, 4, 8, tombstoned_ms, stats)
        schema, encoded = blocks_of(build_manifests(of_table, DataFiles.of([part], {}), [{}], table="t"))
        entry: Any = fastavro.schemaless_reader(io.BytesIO(encoded), schema, None)
        assert {pair["key"] for pair in entry["data_file"]["null_value_counts"]} == {field_id(c) for c in columns}
