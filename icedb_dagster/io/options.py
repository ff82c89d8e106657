"""Options of an asset's table: the IO manager's fields, overridden by the asset's metadata.

    @dg.asset(partitions_def=days, metadata={"partition_expr": "day", "sort_by": ["user_id"], "icedb/mode": "append"})

Every field is `icedb/<field>` in the metadata, or the bare name, as in other IO managers of Dagster. A setting of those
that has no counterpart here is rejected, and the error names what to use. All options are checked before a table is
created and before a row is read.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast, get_args

import dagster as dg
import msgspec

from icedb.errors import InvalidOption
from icedb.format.table_spec import Aggregating, Dedup, Merging, Replacing, SchemaMode
from icedb.operations.upsert.upsert import WhenMatched
from icedb.operations.write.spark_frames import Distribution
from icedb.sources.batch import OnConflict
from icedb.sql.partition_expressions import parse_partition_by
from icedb.writer.spec_options import SpecOptions
from icedb_dagster.partitioning.partitions import ONLY, dimensions

__all__ = [
    "AssetOptions",
    "Mode",
    "OnEmpty",
    "UpsertOptions",
    "has_partition_expr",
    "input_options",
    "on_dropped",
    "partition_columns",
]

Mode = Literal["append", "overwrite", "upsert"]
OnEmpty = Literal["auto", "raise", "clear"]
OnDropped = Literal["raise", "empty"]

_PREFIX = "icedb/"

#: Options that only metadata may have, because they apply to one table.
_OF_ASSETS = ("partition_expr", "schema", "merging")
_OF_TABLES = ("partition_by", "sort_by", "compression", "row_group_rows", "bloom_filters", "required", "schema_policy")
#: Options of a single output, in the metadata of `dg.Output` or `dg.MaterializeResult`.
_OF_OUTPUTS = (
    "mode", "schema_mode", "on_conflict", "on_empty", "preview_rows", "partitions_max", "memory_bytes", "distribution",
    "on", "when_matched", "delete_where", "order_by",
)  # fmt: skip
#: Options that need the mode `upsert`.
_OF_UPSERTS = ("on", "when_matched", "delete_where", "order_by")
_OPTIONS = (*_OF_OUTPUTS, *_OF_TABLES, *_OF_ASSETS)

_OF_INPUTS = ("columns", "where", "on_dropped")

_KEY = "the asset's key: `key_prefix` and `name` are the table's address below the root"
#: Settings of other IO managers (dagster-deltalake, -iceberg, -duckdb), and what to use here.
_ELSEWHERE = {
    "columns": "the input of the downstream asset: dg.AssetIn(metadata={'columns': [...]})",
    "overwrite_schema": "'icedb/schema_mode': 'overwrite'",
    "partition_spec_update_mode": "Table.alter(partition_by=...)",
    "root_name": _KEY,
    "schema_update_mode": "'icedb/schema_policy': new columns are added unless it is 'declared'",
    "upsert_options": "'icedb/mode': 'upsert', with the key columns in 'icedb/on'",
    "write_mode": "'icedb/mode'",
}

# The similarity from which a name counts as a misspelled option; 1 is equal.
_ALIKE = 0.7

Choice = TypeVar("Choice", bound=str)


@dataclass(frozen=True, slots=True)
class AssetOptions:
    """The options of a write of an output, and of the creation of a missing table.

    `columns` has the partition column of each dimension of the asset's partitions. It is empty for an asset without
    them.
    """

    mode: Mode
    schema_mode: SchemaMode
    on_conflict: OnConflict
    on_empty: OnEmpty
    preview_rows: int
    partitions_max: int
    memory_bytes: int | None
    distribution: Distribution
    columns: Mapping[str, str]
    create: SpecOptions
    #: None in the other modes.
    upsert: "UpsertOptions | None"

    @classmethod
    def of(
        cls,
        defaults: Mapping[str, Any],
        metadata: Mapping[str, Any],
        partitions: dg.PartitionsDefinition | None,
        *,
        table: str,
        of_output: Mapping[str, Any] | None = None,
    ) -> "AssetOptions":
        """Return the options of an asset with this metadata and these partitions.

        `of_output`: the metadata of one output, which can override the options of a write. Raises InvalidOption,
        InvalidPartitionExpression.
        """
        _reject_misspelled(metadata, table)
        _reject_settings_of_others(metadata, table)
        of_asset = {**defaults, **_metadata_options(metadata, table)}
        values = {**of_asset, **_output_options(of_output or {}, table)}
        expressions = {} if partitions is None else _partition_expressions(values, partitions, table)
        create = _create_options(values, list(expressions.values()), table)
        columns = _names(expressions, table)
        _check_columns(columns, create["partition_by"] or (), table)
        options = cls(
            mode=_choice(values, "mode", get_args(Mode), table),
            schema_mode=cast("SchemaMode", _choice(values, "schema_mode", get_args(SchemaMode), table)),
            on_conflict=cast("OnConflict", _choice(values, "on_conflict", get_args(OnConflict), table)),
            on_empty=_on_empty(values, table, is_partitioned=bool(expressions)),
            preview_rows=_number(values, "preview_rows", 0, table),
            partitions_max=_number(values, "partitions_max", 1, table),
            memory_bytes=None if values["memory_bytes"] is None else _number(values, "memory_bytes", 1, table),
            distribution=_choice(values, "distribution", get_args(Distribution), table),
            columns=columns,
            create=create,
            upsert=_upsert_options(values, create, table, of_asset["mode"]),
        )
        if options.schema_mode == "overwrite" and (expressions or options.mode != "overwrite"):
            kind = "the asset is partitioned" if expressions else f"the mode is '{options.mode}'"
            raise InvalidOption(
                f"{table}: schema_mode is 'overwrite', which replaces the columns of the whole table, but {kind}. Use "
                "'merge', and drop columns with Table.alter(drop_columns=[...])."
            )
        if options.on_empty == "clear" and options.on_conflict == "quarantine":
            raise InvalidOption(
                f"{table}: on_empty is 'clear' and on_conflict is 'quarantine': an output in which no row fits would "
                "empty the table. Set only one of them."
            )
        return options


@dataclass(frozen=True, slots=True)
class UpsertOptions:
    """The options of an upsert, as for `icedb.Table.upsert`."""

    on: tuple[str, ...]
    when_matched: WhenMatched
    delete_where: str | None
    order_by: tuple[str, ...]


def _upsert_options(
    values: Mapping[str, Any], create: SpecOptions, table: str, asset_mode: str
) -> UpsertOptions | None:
    """Return the options of the mode `upsert`. Raises InvalidOption for a combination with others that cannot work.

    A single output of an asset that upserts may have another mode.
    """
    if values["mode"] != "upsert":
        for name in _OF_UPSERTS:
            if name in values and asset_mode != "upsert":
                raise InvalidOption(
                    f"{table}: the asset's metadata has '{name}', which needs the mode 'upsert', but the mode is "
                    f"{values['mode']!r}. Set 'icedb/mode': 'upsert'."
                )
        return None
    if not values.get("on"):
        raise InvalidOption(
            f"{table}: the mode is 'upsert', but the metadata has no 'icedb/on'. Name the columns that identify a row: "
            "'icedb/on': ['id']."
        )
    if "merging" in create:
        raise InvalidOption(f"{table}: 'merging' combines rows by key in merges, so the mode cannot be 'upsert'.")
    if values["on_conflict"] == "quarantine":
        raise InvalidOption(f"{table}: on_conflict is 'quarantine', but the mode 'upsert' takes 'raise' or 'cast'.")
    texts = {name: [values[name]] if isinstance(values.get(name), str) else values.get(name, ())
             for name in ("on", "order_by")}  # fmt: skip
    delete_where = values.get("delete_where")
    if delete_where is not None and not isinstance(delete_where, str):
        raise InvalidOption(f"{table}: delete_where is {delete_where!r}; give a DuckDB condition as text.")
    when_matched = _choice({"when_matched": "update", **values}, "when_matched", get_args(WhenMatched), table)
    return UpsertOptions(
        _texts(texts, "on", table), cast("WhenMatched", when_matched), delete_where, _texts(texts, "order_by", table)
    )


def partition_columns(
    metadata: Mapping[str, Any], partitions: dg.PartitionsDefinition, *, table: str
) -> dict[str, str]:
    """Return the partition column of each dimension, from the asset's `partition_expr`.

    Raises InvalidOption if it is missing or does not fit the dimensions, and InvalidPartitionExpression.
    """
    return _names(_partition_expressions(_metadata_options(metadata, table), partitions, table), table)


def has_partition_expr(metadata: Mapping[str, Any]) -> bool:
    """Return whether an asset's metadata has a `partition_expr`."""
    return not metadata.keys().isdisjoint(("partition_expr", f"{_PREFIX}partition_expr"))


def plain(value: Any) -> Any:
    """Return a metadata value without the MetadataValue that Dagster wraps some values in."""
    return value.value if isinstance(value, dg.MetadataValue) else value


def _reject_misspelled(metadata: Mapping[str, Any], table: str) -> None:
    for key in metadata:
        name = key.removeprefix(_PREFIX)
        if name in (key, *_OPTIONS):
            continue
        if alike := difflib.get_close_matches(name, _OPTIONS, n=1, cutoff=_ALIKE):
            options = ", ".join(_PREFIX + option for option in sorted(_OPTIONS))
            raise InvalidOption(
                f"{table}: the asset's metadata has '{key}', which is not an option. Did you mean "
                f"'{_PREFIX}{alike[0]}'? The "
                f"options are {options}."
            )


def _reject_settings_of_others(metadata: Mapping[str, Any], table: str) -> None:
    elsewhere = {
        name: _ELSEWHERE[plain_name] for name in metadata if (plain_name := name.removeprefix(_PREFIX)) in _ELSEWHERE
    }
    if isinstance(plain(metadata.get("schema")), str):  # a schema of a database, not the table's columns
        elsewhere["schema"] = _KEY
    for name, instead in elsewhere.items():
        raise InvalidOption(f"{table}: the asset's metadata has '{name}', which is not an option. Use {instead}.")


def _metadata_options(metadata: Mapping[str, Any], table: str) -> dict[str, Any]:
    """Return the options in the metadata, by their names without the prefix."""
    bare = [name for name in _OPTIONS if name not in _OF_UPSERTS]  # `on` may be metadata of something else
    twice = [name for name in bare if name in metadata and _PREFIX + name in metadata]
    if twice:
        raise InvalidOption(
            f"{table}: the asset's metadata has both '{twice[0]}' and '{_PREFIX}{twice[0]}'. Remove one of them."
        )
    keys = {name: name if name in bare and name in metadata else _PREFIX + name for name in _OPTIONS}
    return {name: plain(metadata[key]) for name, key in keys.items() if key in metadata}


def _output_options(metadata: Mapping[str, Any], table: str) -> dict[str, Any]:
    """Return the options in the metadata of one output."""
    for name in _OPTIONS:
        if _PREFIX + name in metadata and name not in _OF_OUTPUTS:
            raise InvalidOption(
                f"{table}: the metadata of the output has '{_PREFIX}{name}', which is an option of the asset. Move it "
                "to the metadata of the asset."
            )
    return {name: value for name, value in _metadata_options(metadata, table).items() if name in _OF_OUTPUTS}


def input_options(metadata: Mapping[str, Any], table: str) -> dict[str, Any]:
    """Return the options in the metadata of an input. Raises InvalidOption for a name that looks like an option."""
    options: dict[str, Any] = {}
    for key, value in metadata.items():
        name = key.removeprefix(_PREFIX)
        if name in _OF_INPUTS:
            options[name] = plain(value)
        elif name != key or name == "as_of" or difflib.get_close_matches(name, _OF_INPUTS, n=1, cutoff=_ALIKE):
            as_of = " The time of a read is in the run config of the input: as_of." if name == "as_of" else ""
            raise InvalidOption(
                f"{table}: the input's metadata has '{key}', which is not an option. The options are columns, where "
                f"and on_dropped.{as_of}"
            )
    return options


def on_dropped(metadata: Mapping[str, Any], table: str) -> OnDropped:
    """Return how an input treats partitions whose rows were dropped: `raise` an error, or read them as `empty`."""
    values = {"on_dropped": "raise", **input_options(metadata, table)}
    return cast("OnDropped", _choice(values, "on_dropped", get_args(OnDropped), table))


def _partition_expressions(
    values: Mapping[str, Any], partitions: dg.PartitionsDefinition, table: str
) -> dict[str, str]:
    """Return the partition expression of each dimension."""
    names = list(dimensions(partitions))
    expressions = values.get("partition_expr")
    if names == [ONLY] and isinstance(expressions, str):
        return {ONLY: expressions}
    if names != [ONLY] and isinstance(expressions, Mapping) and sorted(expressions) == sorted(names):
        texts = {name: plain(expressions[name]) for name in names}
        if all(isinstance(text, str) for text in texts.values()):
            return texts
    example = '"day"' if names == [ONLY] else "{" + ", ".join(f'"{name}": "{name}"' for name in names) + "}"
    raise InvalidOption(
        f"{table}: the asset is partitioned, but its metadata 'partition_expr' is {expressions!r}. Name the partition "
        f"column of the table that distinguishes its partitions{'' if names == [ONLY] else ', for each dimension'}: "
        f'metadata={{"partition_expr": {example}}}, or an expression with a name, such as '
        "\"strftime(ts, '%Y-%m-%d') AS day\"."
    )


def _on_empty(values: Mapping[str, Any], table: str, *, is_partitioned: bool) -> OnEmpty:
    on_empty: OnEmpty = _choice(values, "on_empty", get_args(OnEmpty), table)
    if on_empty != "auto":
        return on_empty
    # A quarantine could take all rows, and then the overwrite would delete without a replacement.
    return "clear" if is_partitioned and values["on_conflict"] != "quarantine" else "raise"


def _names(expressions: Mapping[str, str], table: str) -> dict[str, str]:
    return {dimension: parse_partition_by([text], table=table)[0].name for dimension, text in expressions.items()}


def _create_options(values: Mapping[str, Any], expressions: Sequence[str], table: str) -> SpecOptions:
    """Return the options for `Table.create`. Partition expressions take precedence over the IO manager's default."""
    options = SpecOptions(
        partition_by=_texts(values, "partition_by", table),
        sort_by=_texts(values, "sort_by", table),
        required=_texts(values, "required", table),
        compression=values["compression"],
        schema_policy=values["schema_policy"],
        row_group_rows=_number(values, "row_group_rows", 1, table),
        bloom_filters=_texts(values, "bloom_filters", table),
    )
    if expressions and not options["partition_by"]:
        options["partition_by"] = tuple(dict.fromkeys(expressions))
    if "schema" in values:
        options["schema"] = values["schema"]
    if "merging" in values:
        options["merging"] = _merging(values["merging"], table)
    return options


def _check_columns(columns: Mapping[str, str], partition_by: Sequence[str], table: str) -> None:
    names = [e.name for e in parse_partition_by(partition_by, table=table)]
    lacking = [c for c in columns.values() if c.casefold() not in {name.casefold() for name in names}]
    if lacking:
        raise InvalidOption(
            f"{table}: the asset's partition_expr names '{lacking[0]}', but partition_by has {names}. Add it to "
            "partition_by, or remove partition_by: then a new table is partitioned by partition_expr."
        )


def _merging(value: Any, table: str) -> Merging:
    """Return a merging strategy, from an object or JSON: `{"kind": "replacing", "by": ["id"], "version": "at"}`."""
    try:
        return value if isinstance(value, Merging) else msgspec.convert(value, Dedup | Replacing | Aggregating)
    except msgspec.ValidationError as error:
        raise InvalidOption(
            f"{table}: the asset's metadata 'icedb/merging' is {value!r} ({error}). Give icedb.Replacing(...), "
            "icedb.Dedup(...) or icedb.Aggregating(...)."
        ) from None


def _choice(values: Mapping[str, Any], name: str, choices: tuple[Choice, ...], table: str) -> Choice:
    value = values[name]
    if value not in choices:
        raise InvalidOption(f"{table}: {name} is {value!r}; give {' or '.join(map(repr, choices))}.")
    return cast("Choice", value)


def _number(values: Mapping[str, Any], name: str, least: int, table: str) -> int:
    value = values[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidOption(f"{table}: {name} is {value!r}; give a whole number of at least {least}.")
    return value


def _texts(values: Mapping[str, Any], name: str, table: str) -> tuple[str, ...]:
    value = values[name]
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
        raise InvalidOption(f"{table}: the asset's metadata '{name}' is {value!r}; give a list of texts.")
    return tuple(value)
