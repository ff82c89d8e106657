"""Which Hive partitions of a table are some Dagster partitions of its asset: a DuckDB predicate.

A partition of the table belongs to a Dagster partition by the value of its partition column, as the column's type says:

    TIMESTAMP WITH TIME ZONE    an instant within the time window
    DATE, TIMESTAMP             a wall time, of the definition's timezone, within the window
    VARCHAR                     the partition key itself, or a date or time that lies within the window
    integers                    the key as a number

Keys that are no times are compared as text. Windows of time, and the hours that come twice:
`icedb_dagster.partitioning.time_windows`.

Nothing here touches a table or reads a clock. What cannot be mapped is an error: a predicate that is missing would
stand for the whole table.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import dagster as dg

from icedb.errors import InvalidOption
from icedb.sql.connections import quote_name, quote_text
from icedb_dagster.partitioning.time_windows import Edge, TimeWindows, Window, is_one_of, joined

__all__ = ["Selection", "dimensions", "select_partitions"]

#: The name of the only dimension of a definition that has no others.
ONLY = ""


class _ColumnValues(Protocol):
    """Values of one partition column."""

    def predicate(self, column: str, type_: str, *, table: str) -> str:
        """SQL that is true for them. Raises InvalidOption."""

    def edges(self) -> tuple[Edge, ...]:
        """Where they begin and end, if they are times."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Some partitions of an asset. Each box is a product: a set of values for each of its columns."""

    table: str
    keys: tuple[str, ...]
    boxes: tuple[tuple[tuple[str, _ColumnValues], ...], ...]

    @property
    def columns(self) -> list[str]:
        """The partition columns that it is about."""
        return list(dict.fromkeys(column for box in self.boxes for column, _ in box))

    @property
    def edges(self) -> dict[str, tuple[Edge, ...]]:
        """Where they begin and end, for each column that is about time."""
        found: dict[str, dict[Edge, None]] = {}
        for column, values in (pair for box in self.boxes for pair in box):
            found.setdefault(column, {}).update(dict.fromkeys(values.edges()))
        return {column: tuple(edges) for column, edges in found.items() if edges}

    def check(self, names: Iterable[str]) -> None:
        """Raise InvalidOption unless a table that is partitioned by these columns has all that it is about."""
        known = list(names)
        folded = {name.casefold() for name in known}
        if lacking := [c for c in self.columns if c.casefold() not in folded]:
            raise InvalidOption(
                f"{self.table}: the asset's partition_expr names the partition column '{lacking[0]}', and the table "
                f"is partitioned by {known or 'nothing'}. Correct partition_expr, or change the table with "
                "alter(partition_by=...) and rewrite its rows."
            )

    def predicate(self, types: Mapping[str, str]) -> str:
        """The DuckDB predicate over partition columns of these types; `false` when nothing is selected.

        Raises InvalidOption when the table has no such column, or its type cannot tell the partitions apart.
        """
        self.check(types)
        known = {name.casefold(): (name, type_) for name, type_ in types.items()}
        boxes = [
            joined(" AND ", [values.predicate(*known[c.casefold()], table=self.table) for c, values in box])
            for box in self.boxes
        ]
        return joined(" OR ", boxes or ["false"])


def dimensions(definition: dg.PartitionsDefinition) -> dict[str, dg.PartitionsDefinition]:
    """The dimensions of a definition by name; the only one of most is called ''."""
    if isinstance(definition, dg.MultiPartitionsDefinition):
        return {d.name: d.partitions_def for d in definition.partitions_defs}
    return {ONLY: definition}


def select_partitions(
    definition: dg.PartitionsDefinition, keys: Iterable[str], columns: Mapping[str, str], *, table: str
) -> Selection:
    """Those partitions of the definition; `columns` says which partition column each dimension is about."""
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
    return Selection(table, tuple(wanted), boxes)


def _boxes(keys: Sequence[tuple[str, ...]]) -> list[tuple[tuple[str, ...], ...]]:
    """A set of keys of several dimensions as few products of sets: what has the same rest goes together."""
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
        """Nothing is refused: every type has a text."""
        name = quote_name(column)
        return is_one_of(name if type_ == "VARCHAR" else f"CAST({name} AS VARCHAR)", map(quote_text, self.keys))

    def edges(self) -> tuple[Edge, ...]:
        """None: what these keys stand for is not known."""
        return ()
