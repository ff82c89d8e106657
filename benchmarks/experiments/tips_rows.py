"""Experiments with the rows of a batch: whole numbers among fractions, nested values, the number of rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from benchmarks.experiments.lab import Lab, counted, timed
from benchmarks.harness.figures import Finding
from icedb import Table
from icedb.errors import SchemaConflict

__all__ = ["batches", "floats", "nested"]

Rows = list[dict[str, object]]

# Nine of ten prices are whole, as in many shops.
WHOLE_OF_TEN = 9
PRICES_BATCH_ROWS = (1, 5, 20, 100)
PRICES_TABLES = 25
PRICES_BATCHES = 6
# The numbers of different fields over all kinds of events, and the number of fields of an event.
FIELDS = (10, 100, 500)
FIELDS_OF_EVENT = 5
NESTED_BATCH_ROWS = 20
NESTED_BATCHES = 30
# The events of a large batch.
NESTED_ROWS = 5_000
BATCH_ROWS = (10, 100, 1_000, 10_000)


# ------------------------------------------------------------------------------------------ floats


def floats(lab: Lab) -> list[Finding]:
    """Count the rejected batches of prices in JSON, where 1.0 is written 1."""
    senders: Mapping[str, tuple[Callable[[float], float], Mapping[str, str]]] = {
        "as JSON has them": (_as_json, {}),
        "float() of each": (float, {}),
        "column declared DOUBLE": (_as_json, {"price": "DOUBLE"}),
    }
    findings = []
    for title, (send, schema) in senders.items():
        refused = {}
        for size in PRICES_BATCH_ROWS:
            lab.on_step(f"floats: {title}, batches of {size}")
            runs = [
                _refused(lab.table(f"prices-{title}-{size}-{n}", schema=schema), _prices(n, size, send))
                for n in range(PRICES_TABLES)
            ]
            refused[str(size)] = 100 * sum(runs) / (PRICES_TABLES * PRICES_BATCHES)
        findings.append(counted("floats", title, "% of batches refused", refused))
    return findings


def _as_json(value: float) -> float:
    """Convert a whole number to an integer, like a language with one type of numbers."""
    return int(value) if value == int(value) else value


def _prices(seed: int, size: int, send: Callable[[float], float]) -> Iterator[Rows]:
    for batch in range(PRICES_BATCHES):
        numbers = [_chance(seed, batch, n) for n in range(size)]
        yield [{"item": n % 7, "price": send(n % 50 + (0.0 if n % 10 < WHOLE_OF_TEN else 0.5))} for n in numbers]


def _refused(table: Table, batches: Iterator[Rows]) -> int:
    """Return the number of rejected batches."""
    refused = 0
    for rows in batches:
        try:
            table.insert(rows)
        except SchemaConflict:
            refused += 1
    return refused


def _chance(*numbers: int) -> int:
    """Return a hash of the numbers that is equal on every machine."""
    mixed = 0x9E3779B97F4A7C15
    for number in numbers:
        mixed = ((mixed ^ number) * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) % 2**64
        mixed ^= mixed >> 29
    return mixed >> 8


# ------------------------------------------------------------------------------------------ nested values


def nested(lab: Lab) -> list[Finding]:
    """Insert properties of events as nested objects and as JSON text, by the number of different fields."""
    shapes: Mapping[str, Callable[[dict[str, object]], object]] = {"nested objects": dict, "text of JSON": json.dumps}
    refused: dict[str, dict[str, float]] = {title: {} for title in shapes}
    took: dict[str, dict[str, Sequence[float]]] = {title: {} for title in shapes}
    stored: dict[str, dict[str, float]] = {title: {} for title in shapes}
    for fields in FIELDS:
        works, large = {}, {}
        for title, shape in shapes.items():
            small = lab.table(f"nested-{title}-{fields}")
            runs = (_events(fields, n * NESTED_BATCH_ROWS, NESTED_BATCH_ROWS, shape) for n in range(NESTED_BATCHES))
            refused[title][str(fields)] = 100 * _refused(small, runs) / NESTED_BATCHES
            large[title] = lab.table(f"nested-large-{title}-{fields}")
            works[title] = partial(_insert, large[title], _events(fields, 0, NESTED_ROWS, shape))
        [processor, _] = lab.turns("nested", f"{fields} fields", works)
        for title in shapes:
            took[title][str(fields)] = [ms * 1000 / NESTED_ROWS for ms in processor.way(title).values]
            parts = large[title].snapshot().parts
            stored[title][str(fields)] = sum(part.bytes for part in parts) / len(parts) / NESTED_ROWS
    return [
        *(counted("nested", title, "% of batches refused", values) for title, values in refused.items()),
        *(timed("nested", title, "processor µs to insert an event", values) for title, values in took.items()),
        *(counted("nested", title, "bytes stored of an event", values) for title, values in stored.items()),
    ]


def _events(fields: int, first: int, size: int, shape: Callable[[dict[str, object]], object]) -> Rows:
    """Return events of several kinds with different fields."""
    kinds = fields // FIELDS_OF_EVENT
    made: Rows = []
    for n in range(first, first + size):
        kind = _chance(n) % kinds
        properties = {f"f{kind}_{i}": _chance(n, i) % 1000 for i in range(FIELDS_OF_EVENT)}
        made.append({"n": n, "kind": kind, "properties": shape(dict(properties))})
    return made


def _insert(table: Table, rows: Rows | pa.Table) -> object:
    return table.insert(rows).rows


# ------------------------------------------------------------------------------------------ batches


def batches(lab: Lab) -> list[Finding]:
    """Insert the same rows in small and in large batches: requests to S3, bytes stored, processor time."""
    rows = lab.events.slice(0, min(len(lab.events), max(BATCH_ROWS)))
    sizes = [size for size in BATCH_ROWS if size <= len(rows)]
    requests, stored, works = {}, {}, {}
    for size in sizes:
        lab.on_step(f"batches of {size} rows")
        lab.store.create(f"batches-{size}", sort_by=["user_id", "ts"])
        table = lab.store.open(f"batches-{size}")
        requests[str(size)] = lab.store.requests(partial(_in_batches, table, rows, size))
        local = lab.table(f"batches-{size}", sort_by=["user_id", "ts"])
        _in_batches(local, rows, size)
        stored[str(size)] = sum(f.stat().st_size for f in Path(local.uri).rglob("*.*")) / len(rows)
        timed_table = lab.table(f"batches-timed-{size}", sort_by=["user_id", "ts"])
        works[str(size)] = partial(_insert, timed_table, rows.slice(0, size))
    [processor, _] = lab.turns("batches", "inserting", works, same_answers=False)
    per_row = {way.name: [ms * 1000 / int(way.name) for ms in way.values] for way in processor.ways}
    return [
        counted("batches", f"{len(rows):,} rows", "requests to S3", requests),
        counted("batches", "stored, log included", "bytes a row", stored),
        timed("batches", "inserting", "processor µs a row", per_row),
    ]


def _in_batches(table: Table, rows: pa.Table, size: int) -> None:
    for first in range(0, len(rows), size):
        table.insert(rows.slice(first, size))
