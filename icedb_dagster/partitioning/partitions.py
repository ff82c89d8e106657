"""Map Dagster partitions of an asset to Hive partitions of its table, as a DuckDB predicate.

A partition of the table belongs to a Dagster partition by the value of its partition column. The column's type
decides how values are compared:

    TIMESTAMP WITH TIME ZONE    an instant within the time window
    DATE, TIMESTAMP             a wall time, in the definition's time zone, within the window
    VARCHAR                     the partition key itself, or a date or time within the window
    integers                    the key as a number

Keys that are not times are compared as text. `icedb_dagster.partitioning.time_windows` handles time windows, and hours
that occur twice.

This module reads neither tables nor the clock. A partition that cannot be mapped is an error, because a missing
predicate would select the whole table.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import dagster as dg

from icedb.errors import InvalidOption
from icedb.sql.connections import quote_name, quote_text
from icedb_dagster.partitioning.time_windows import Edge, TimeWindows, Window, is_one_of, joined

__all__ = ["ONLY", "Selection", "dimensions", "select_partitions"]

#: The dimension's name in a definition with one dimension.
ONLY = ""


class _ColumnValues(Protocol):
    """Values of one partition column."""

    def predicate(self, column: str, type_: str, *, table: str) -> str:
        """Return SQL that is true for these values. Raises InvalidOption."""

    def edges(self) -> tuple[Edge, ...]:
        """Return where the values begin and end, if they are times."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Selected partitions of an asset. Each box is a product: one set of values for each of its columns."""

    table: str
    keys: tuple[str, ...]
    boxes: tuple[tuple[tuple[str, _ColumnValues], ...], ...]
    #: The definition of the partitions, and the partition column of each of its dimensions.
    definition: dg.PartitionsDefinition
    dimension_columns: Mapping[str, str]

    @property
    def columns(self) -> list[str]:
        """The partition columns of the selection."""
        return list(dict.fromkeys(column for box in self.boxes for column, _ in box))

    @property
    def edges(self) -> dict[str, tuple[Edge, ...]]:
        """The beginnings and ends of the partitions, for each column of times."""
        edges: dict[str, dict[Edge, None]] = {}
        for column, values in (pair for box in self.boxes for pair in box):
            edges.setdefault(column, {}).update(dict.fromkeys(values.edges()))
        return {column: tuple(of_column) for column, of_column in edges.items() if of_column}

    def only(self, key: str) -> "Selection":
        """Return the selection of one of the partitions."""
        return select_partitions(self.definition, [key], self.dimension_columns, table=self.table)

    def check(self, names: Iterable[str]) -> None:
        """Raise InvalidOption unless the table is partitioned by all columns of the selection."""
        partition_by = list(names)
        folded = {name.casefold() for name in partition_by}
        if lacking := [c for c in self.columns if c.casefold() not in folded]:
            raise InvalidOption(
                f"{self.table}: the asset's partition_expr names the partition column '{lacking[0]}', but the table "
                f"is partitioned by {partition_by or 'nothing'}. Correct partition_expr, or change the table with "
                "alter(partition_by=...) and rewrite its rows."
            )

    def predicate(self, types: Mapping[str, str]) -> str:
        """Return the DuckDB predicate over partition columns of these types; `false` for an empty selection.

        Raises InvalidOption if the table lacks a column, or if a type cannot distinguish the partitions.
        """
        self.check(types)
        columns = {name.casefold(): (name, type_) for name, type_ in types.items()}
        boxes = [
            joined(" AND ", [values.predicate(*columns[c.casefold()], table=self.table) for c, values in box])
            for box in self.boxes
        ]
        return joined(" OR ", boxes or ["false"])


def dimensions(definition: dg.PartitionsDefinition) -> dict[str, dg.PartitionsDefinition]:
    """Return the dimensions of a definition by name. The only dimension of most definitions is named ''."""
    if isinstance(definition, dg.MultiPartitionsDefinition):
        return {d.name: d.partitions_def for d in definition.partitions_defs}
    return {ONLY: definition}


def select_partitions(
    definition: dg.PartitionsDefinition, keys: Iterable[str], columns: Mapping[str, str], *, table: str
) -> Selection:
    """Select partitions of the definition by key. `columns` has the partition column of each dimension."""
    wanted = list(dict.fromkeys(keys))
    by_name = dimensions(definition)
    names = list(by_name)
    if isinstance(definition, dg.MultiPartitionsDefinition):
        parsed = [definition.get_partition_key_from_str(key).keys_by_dimension for key in wanted]
        tuples = [tuple(key[name] for name in names) for key in parsed]
    else:
        tuples = [(key,) for key in wanted]
    boxes = tuple(
        tuple((columns[name], _values(by_name[name], of_one)) for name, of_one in zip(names, box, strict=True))
        for box in _boxes(tuples)
    )
    return Selection(table, tuple(wanted), boxes, definition, columns)


def _boxes(keys: Sequence[tuple[str, ...]]) -> list[tuple[tuple[str, ...], ...]]:
    """Return a set of multi-dimensional keys as few products of sets, by grouping keys with equal remainders."""
    if not keys:
        return []
    rests: dict[str, list[tuple[str, ...]]] = {}
    for key in keys:
        rests.setdefault(key[0], []).append(key[1:])
    if len(keys[0]) == 1:
        return [(tuple(rests),)]
    firsts: dict[frozenset[tuple[str, ...]], list[str]] = {}
    for first, of_first in rests.items():
        firsts.setdefault(frozenset(of_first), []).append(first)
    return [(tuple(same), *box) for same in firsts.values() for box in _boxes(rests[same[0]])]


def _values(definition: dg.PartitionsDefinition, keys: Sequence[str]) -> _ColumnValues:
    if not isinstance(definition, dg.TimeWindowPartitionsDefinition):
        return _KeyValues(tuple(keys))
    windows = [Window(key, *definition.time_window_for_partition_key(key)) for key in keys]
    return TimeWindows.of(windows, fmt=definition.fmt, timezone=definition.timezone)


@dataclass(frozen=True, slots=True)
class _KeyValues:
    """Values that are partition keys, as text."""

    keys: tuple[str, ...]

    def predicate(self, column: str, type_: str, *, table: str) -> str:
        """Return SQL that is true for these values. Every type can be compared as text."""
        name = quote_name(column)
        return is_one_of(name if type_ == "VARCHAR" else f"CAST({name} AS VARCHAR)", map(quote_text, self.keys))

    def edges(self) -> tuple[Edge, ...]:
        """Return nothing: the keys have no known order."""
        return ()
