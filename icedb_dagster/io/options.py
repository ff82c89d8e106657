"""How the table of one asset is written: the IO manager's fields, and over them what the asset's metadata says.

    @dg.asset(partitions_def=days, metadata={"partition_expr": "day", "sort_by": ["user_id"], "icedb/mode": "append"})

Every field is `icedb/<field>` in the metadata. `partition_expr`, `partition_by` and `sort_by` may stand without the
prefix. Everything is checked here, before there is a table and before a row is read.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, TypeVar, cast, get_args

import dagster as dg
import msgspec

from icedb.errors import InvalidOption
from icedb.format.table_spec import Aggregating, Compression, Dedup, Merging, Replacing, SchemaPolicy
from icedb.sources.batch import OnConflict
from icedb.sql.partition_expressions import parse_partition_by
from icedb.writer.spec_validation import DeclaredSchema
from icedb_dagster.partitioning.partitions import ONLY, dimensions

__all__ = ["AssetOptions", "CreateOptions", "Mode", "OnEmpty", "has_partition_expr", "partition_columns", "plain"]

Mode = Literal["append", "overwrite"]
OnEmpty = Literal["raise", "clear"]

_PREFIX = "icedb/"
#: Options whose names need no prefix. Dagster's own IO managers know `partition_expr`, too.
_PLAIN = ("partition_expr", "partition_by", "sort_by")

#: What stands in metadata alone: it is about one table.
_OF_ASSETS = ("partition_expr", "schema", "merging")
_OF_TABLES = ("partition_by", "sort_by", "compression", "row_group_rows", "required", "schema_policy")
_OPTIONS = ("mode", "on_conflict", "on_empty", "preview_rows", *_OF_TABLES, *_OF_ASSETS)

# How alike two names must be for one to be the other, misspelt; 1 is the same.
_ALIKE = 0.7

Choice = TypeVar("Choice", bound=str)


class CreateOptions(TypedDict, total=False):
    """What a missing table is created with; see `icedb.Table.create`."""

    partition_by: Sequence[str]
    sort_by: Sequence[str]
    compression: Compression
    row_group_rows: int
    schema: DeclaredSchema
    required: Sequence[str]
    schema_policy: SchemaPolicy
    merging: Merging | None


@dataclass(frozen=True, slots=True)
class AssetOptions:
    """What an output does to its table, and how the table is made if it is missing.

    `columns`: the partition column of each dimension of the asset's partitions; empty when it has none.
    """

    mode: Mode
    on_conflict: OnConflict
    on_empty: OnEmpty
    preview_rows: int
    columns: Mapping[str, str]
    create: CreateOptions

    @classmethod
    def of(
        cls,
        defaults: Mapping[str, Any],
        metadata: Mapping[str, Any],
        partitions: dg.PartitionsDefinition | None,
        *,
        table: str,
    ) -> "AssetOptions":
        """The options of an asset with this metadata and these partitions.

        Raises InvalidOption, InvalidPartitionExpression.
        """
        _refuse_misspelt(metadata, table)
        given = {**defaults, **_given(metadata, table)}
        expressions = {} if partitions is None else _partition_expressions(given, partitions, table)
        create = _create_options(given, list(expressions.values()), table)
        columns = _names(expressions, table)
        _check_columns(columns, create.get("partition_by", ()), table)
        options = cls(
            mode=_choice(given, "mode", get_args(Mode), table),
            on_conflict=cast("OnConflict", _choice(given, "on_conflict", get_args(OnConflict), table)),
            on_empty=_choice(given, "on_empty", get_args(OnEmpty), table),
            preview_rows=_number(given, "preview_rows", 0, table),
            columns=columns,
            create=create,
        )
        if options.on_empty == "clear" and options.on_conflict == "quarantine":
            raise InvalidOption(
                f"{table}: on_empty is 'clear' and on_conflict is 'quarantine': an output of nothing but rows that do "
                "not fit would empty the table. Give only one of them."
            )
        return options


def partition_columns(
    metadata: Mapping[str, Any], partitions: dg.PartitionsDefinition, *, table: str
) -> dict[str, str]:
    """The partition column of each dimension, as the asset's `partition_expr` says.

    Raises InvalidOption, InvalidPartitionExpression.
    """
    return _names(_partition_expressions(_given(metadata, table), partitions, table), table)


def has_partition_expr(metadata: Mapping[str, Any]) -> bool:
    """Whether an asset's metadata says which partition column its partitions are about."""
    return not metadata.keys().isdisjoint(("partition_expr", f"{_PREFIX}partition_expr"))


def plain(value: Any) -> Any:
    """Metadata as it was given: Dagster wraps some values in MetadataValue."""
    return value.value if isinstance(value, dg.MetadataValue) else value


def _refuse_misspelt(metadata: Mapping[str, Any], table: str) -> None:
    for key in metadata:
        name = key.removeprefix(_PREFIX)
        if name in (key, *_OPTIONS):
            continue
        if alike := difflib.get_close_matches(name, _OPTIONS, n=1, cutoff=_ALIKE):
            known = ", ".join(_PREFIX + option for option in sorted(_OPTIONS))
            raise InvalidOption(
                f"{table}: the asset's metadata has '{key}', which is no option; is it '{_PREFIX}{alike[0]}'? The "
                f"options are {known}."
            )


def _given(metadata: Mapping[str, Any], table: str) -> dict[str, Any]:
    """The options among the metadata, by their names without prefix."""
    twice = [name for name in _PLAIN if name in metadata and _PREFIX + name in metadata]
    if twice:
        raise InvalidOption(
            f"{table}: the asset's metadata has both '{twice[0]}' and '{_PREFIX}{twice[0]}'. Leave one out."
        )
    keys = {name: name if name in metadata and name in _PLAIN else _PREFIX + name for name in _OPTIONS}
    return {name: plain(metadata[key]) for name, key in keys.items() if key in metadata}


def _partition_expressions(given: Mapping[str, Any], partitions: dg.PartitionsDefinition, table: str) -> dict[str, str]:
    """Dimension -> partition expression."""
    names = list(dimensions(partitions))
    expressions = given.get("partition_expr")
    if names == [ONLY] and isinstance(expressions, str):
        return {ONLY: expressions}
    if names != [ONLY] and isinstance(expressions, Mapping) and sorted(expressions) == sorted(names):
        found = {name: plain(expressions[name]) for name in names}
        if all(isinstance(text, str) for text in found.values()):
            return found
    example = '"day"' if names == [ONLY] else "{" + ", ".join(f'"{name}": "{name}"' for name in names) + "}"
    raise InvalidOption(
        f"{table}: the asset is partitioned, and its metadata 'partition_expr' is {expressions!r}. Say which partition "
        f"column of the table tells its partitions apart{'' if names == [ONLY] else ', for each dimension'}: "
        f'metadata={{"partition_expr": {example}}}, or an expression with a name, such as '
        "\"strftime(ts, '%Y-%m-%d') AS day\"."
    )


def _names(expressions: Mapping[str, str], table: str) -> dict[str, str]:
    return {dimension: parse_partition_by([text], table=table)[0].name for dimension, text in expressions.items()}


def _create_options(given: Mapping[str, Any], expressions: Sequence[str], table: str) -> CreateOptions:
    """What `Table.create` is given. The partition expressions come before a default of the IO manager."""
    options = CreateOptions(
        partition_by=_texts(given, "partition_by", table),
        sort_by=_texts(given, "sort_by", table),
        required=_texts(given, "required", table),
        compression=given["compression"],
        schema_policy=given["schema_policy"],
        row_group_rows=_number(given, "row_group_rows", 1, table),
    )
    if expressions and not options["partition_by"]:
        options["partition_by"] = tuple(dict.fromkeys(expressions))
    if "schema" in given:
        options["schema"] = given["schema"]
    if "merging" in given:
        options["merging"] = _merging(given["merging"], table)
    return options


def _check_columns(columns: Mapping[str, str], partition_by: Sequence[str], table: str) -> None:
    names = [e.name for e in parse_partition_by(partition_by, table=table)]
    lacking = [c for c in columns.values() if c.casefold() not in {name.casefold() for name in names}]
    if lacking:
        raise InvalidOption(
            f"{table}: the asset's partition_expr names '{lacking[0]}', and partition_by has {names}. Add it to "
            "partition_by, or leave partition_by out: a new table is partitioned by partition_expr then."
        )


def _merging(value: Any, table: str) -> Merging:
    """As it is given to `Table.create`, or as JSON: `{"kind": "replacing", "by": ["id"], "version": "at"}`."""
    try:
        return value if isinstance(value, Merging) else msgspec.convert(value, Dedup | Replacing | Aggregating)
    except msgspec.ValidationError as error:
        raise InvalidOption(
            f"{table}: the asset's metadata 'icedb/merging' is {value!r} ({error}). Give icedb.Replacing(...), "
            "icedb.Dedup(...) or icedb.Aggregating(...)."
        ) from None


def _choice(given: Mapping[str, Any], name: str, choices: tuple[Choice, ...], table: str) -> Choice:
    value = given[name]
    if value not in choices:
        raise InvalidOption(f"{table}: {name} is {value!r}; give {' or '.join(map(repr, choices))}.")
    return cast("Choice", value)


def _number(given: Mapping[str, Any], name: str, least: int, table: str) -> int:
    value = given[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidOption(f"{table}: {name} is {value!r}; give a whole number from {least} on.")
    return value


def _texts(given: Mapping[str, Any], name: str, table: str) -> tuple[str, ...]:
    value = given[name]
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
        raise InvalidOption(f"{table}: the asset's metadata '{name}' must be a list of texts, not {value!r}.")
    return tuple(value)
