"""Merge small parts into larger ones, partition by partition, and commit once.

Planning is pure: inputs are live parts smaller than `part_bytes_max`; a group closes when it passes that size,
so an output stays below twice it, and a part alone is never rewritten. The rows of a group are read, sorted and
written again by DuckDB. When other commits landed meanwhile, the groups whose inputs are all still live are
committed without rewriting a byte; the others are dropped, and the next merge finds what they left.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Literal

import duckdb

from icedb.commit import Commit, nothing_to_commit
from icedb.engine import connect_reader, quote_name, quote_text
from icedb.errors import InvalidOption, InvariantViolated
from icedb.exclusive import exclusive
from icedb.format.records import Marker
from icedb.format.rewrite import Draft, draft
from icedb.format.snapshot import LogState
from icedb.handle import Handle, Part
from icedb.parts import copy_statement, discard, put_part
from icedb.scan import explain, read_parquet
from icedb.schema import describe
from icedb.statistics import encode_statistics, figures_sql, statistics_columns
from icedb.store import ObjectNotFound

__all__ = ["MergeGroup", "MergePlan", "MergeReport", "Order", "merge", "plan_merge"]

Order = Literal["newest", "oldest"]

# Large enough that a scan is bound by bandwidth, small enough to be rewritten in a second.
PART_BYTES_MAX = 128 * 1024 * 1024
# One call's share: a merge holds the table's lock, and what remains is for the next call.
INPUT_PARTS_MAX = 10_000
INPUT_BYTES_MAX = 16 * 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class MergeGroup:
    """Parts of one partition that become one part."""

    partition: str
    inputs: tuple[Part, ...]

    @property
    def bytes(self) -> int:
        """Bytes of the inputs."""
        return sum(p.bytes for p in self.inputs)


@dataclass(frozen=True, slots=True)
class MergePlan:
    """What one call merges, and how many groups did not fit into its budget."""

    groups: tuple[MergeGroup, ...]
    remaining: int


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What a merge did. `dropped_groups` lost an input to another commit meanwhile."""

    commit: Commit
    merged_parts: int
    new_parts: int
    rows: int
    dropped_groups: int
    remaining: int


def plan_merge(
    parts: Iterable[Part],
    *,
    part_bytes_max: int = PART_BYTES_MAX,
    order: Order = "oldest",
    input_parts_max: int = INPUT_PARTS_MAX,
    input_bytes_max: int = INPUT_BYTES_MAX,
) -> MergePlan:
    """Which live parts to merge. Pure. `order` says whose groups come first when the budget does not reach."""
    small = sorted((p for p in parts if p.bytes < part_bytes_max), key=lambda p: (p.partition, p.created_ms, p.key))
    groups = [
        MergeGroup(partition, tuple(group))
        for partition, of_partition in groupby(small, key=lambda p: p.partition)
        for group in _closed_groups(of_partition, part_bytes_max, max(2, input_parts_max))
    ]
    groups.sort(key=lambda g: (max(p.created_ms for p in g.inputs), g.partition), reverse=order == "newest")
    taken = 0
    n_parts = n_bytes = 0
    for group in groups:
        n_parts += len(group.inputs)
        n_bytes += group.bytes
        if taken and (n_parts > input_parts_max or n_bytes > input_bytes_max):
            break
        taken += 1
    return MergePlan(tuple(groups[:taken]), len(groups) - taken)


def _closed_groups(parts: Iterable[Part], part_bytes_max: int, parts_max: int) -> list[list[Part]]:
    groups: list[list[Part]] = [[]]
    size = 0
    for part in parts:
        groups[-1].append(part)
        size += part.bytes
        if size > part_bytes_max or len(groups[-1]) == parts_max:
            groups.append([])
            size = 0
    return [g for g in groups if len(g) > 1]


def merge(
    handle: Handle,
    *,
    order: Order = "oldest",
    part_bytes_max: int = PART_BYTES_MAX,
    input_parts_max: int = INPUT_PARTS_MAX,
    input_bytes_max: int = INPUT_BYTES_MAX,
) -> MergeReport:
    """Merge small parts of all partitions, up to the budget, in one exclusive commit.

    Raises InvalidOption, MissingPart, CommitContended, CommitUncertain and the store's errors.
    """
    if order not in ("newest", "oldest"):
        raise InvalidOption(f"{handle.table}: order is '{order}'; give 'newest' or 'oldest'.")
    handle.check_writable()
    state = handle.read()
    plan = plan_merge(
        map(handle.part, state.live),
        part_bytes_max=part_bytes_max,
        order=order,
        input_parts_max=input_parts_max,
        input_bytes_max=input_bytes_max,
    )
    if not plan.groups:
        return MergeReport(nothing_to_commit(handle), 0, 0, 0, 0, plan.remaining)
    operation = _Merge(*_write_groups(handle, plan.groups, state.schema))
    commit = exclusive(handle, operation)
    kept = operation.groups
    return MergeReport(
        commit=commit,
        merged_parts=sum(len(g.inputs) for g in kept),
        new_parts=len(kept),
        rows=sum(m.rows or 0 for m in operation.markers.values()) if commit.committed else 0,
        dropped_groups=len(plan.groups) - len(kept),
        remaining=plan.remaining,
    )


@dataclass(slots=True)
class _Merge:
    """The exclusive commit of a merge: written once, rebased as often as needed."""

    groups: list[MergeGroup]
    markers: dict[MergeGroup, Marker]
    born_ms: int | None
    unused: list[str] = field(default_factory=list)
    reads_everything: bool = False

    @property
    def outputs(self) -> list[str]:
        return [m.key for m in self.markers.values()]

    def build(self, state: LogState, t_ms: int) -> Draft | None:
        for group in [g for g in self.groups if not all(_is_live(state, p.key) for p in g.inputs)]:
            self.groups.remove(group)
            self.unused.append(self.markers.pop(group).key)
        if not self.groups:
            return None
        inputs = [p.key for g in self.groups for p in g.inputs]
        return draft(state, t_ms=t_ms, add=self.markers.values(), tombstone=inputs, replaces=state.replaceable(inputs))


def _is_live(state: LogState, key: str) -> bool:
    marker = state.parts.get(key)
    return marker is not None and marker.tombstoned_ms is None


def _write_groups(
    handle: Handle, groups: Sequence[MergeGroup], schema: Mapping[str, str]
) -> tuple[list[MergeGroup], dict[MergeGroup, Marker], int]:
    """Write each group's part, a few groups at a time; on failure delete what was written."""
    born_ms = handle.clock.now_ms()
    keys = {g: handle.keys.part(g.partition, handle.clock.new_id()) for g in groups}
    folder = Path(tempfile.mkdtemp(prefix="icedb-merge-"))
    con = connect_reader(handle.location)
    try:
        con.execute("SET preserve_insertion_order = true")
        with ThreadPoolExecutor(max(2, os.cpu_count() or 2)) as pool:
            writes = {g: pool.submit(_write_group, handle, con.cursor(), g, keys[g], folder, schema) for g in groups}
            try:
                return list(groups), {g: w.result() for g, w in writes.items()}, born_ms
            except BaseException as error:
                pool.shutdown(cancel_futures=True)
                discard(handle.store, list(keys.values()))
                if isinstance(error, duckdb.Error | ObjectNotFound):
                    inputs = [p for g in groups for p in g.inputs]
                    raise explain(handle, inputs, error, as_of_ms=born_ms) from None
                raise
    finally:
        con.close()
        shutil.rmtree(folder, ignore_errors=True)


def _write_group(
    handle: Handle,
    con: duckdb.DuckDBPyConnection,
    group: MergeGroup,
    key: str,
    folder: Path,
    schema: Mapping[str, str],
) -> Marker:
    path = folder / key.rsplit("/", 1)[1]
    source = read_parquet(handle, group.inputs)
    present = describe(con, f"SELECT * FROM {source}")
    # Cast to the table's types: union_by_name alone would take what the parts happen to have. A column that only the
    # parts know (a program of v3 may write one) is kept as it is.
    columns = {c: t for c, t in schema.items() if c in present}
    columns |= {c: t for c, t in present.items() if c not in schema}
    select = ", ".join(f"CAST({quote_name(c)} AS {t}) AS {quote_name(c)}" for c, t in columns.items())
    order = ", ".join(quote_name(c) for c in handle.spec.sort_by if c in columns)
    query = f"SELECT {select} FROM {source}{' ORDER BY ' + order if order else ''}"
    rows = int(con.execute(copy_statement(query, path, handle.spec)).fetchall()[0][1])
    counts = [p.rows for p in group.inputs]
    if None not in counts and rows != sum(c or 0 for c in counts):
        raise InvariantViolated(
            f"{handle.table}: merging {len(counts)} parts of '{group.partition}' gave {rows} rows instead of "
            f"{sum(c or 0 for c in counts)}. Nothing was published."
        )
    stats = statistics_columns(handle.spec.sort_by, columns)
    figures = _figures(con, stats, path)
    return Marker(key, put_part(handle.store, key, path), 0, rows=rows, stats=encode_statistics(stats, figures, rows))


def _figures(con: duckdb.DuckDBPyConnection, columns: Mapping[str, str], path: Path) -> list[str | None]:
    if not columns:
        return []
    [(figures,)] = con.execute(f"SELECT {figures_sql(columns)} FROM read_parquet({quote_text(str(path))})").fetchall()
    return list(figures)
