"""Assets that are SQL: a DuckDB query over upstream tables, whose rows the IO manager commits."""

# No `from __future__ import annotations` here: Dagster reads the annotations of functions as objects.
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import pyarrow as pa

from icedb.errors import InvalidOption, InvalidQuery
from icedb.reader.scan_sql import translate_read_error
from icedb.sql.connections import (
    ROWS_PER_BATCH,
    attach_s3,
    check_write_memory,
    connect_reader,
    connect_sandbox,
    lock_reader,
    quote_name,
)
from icedb.util.temporary_files import temporary_folder
from icedb_dagster.io.inputs import Rows
from icedb_dagster.metadata.table_metadata import KINDS

__all__ = ["sql_asset"]

_Key = dg.AssetKey | Sequence[str] | str

#: The parameters that a query may use.
_PARAMETERS = ("partition_key", "partition_keys", "partition_start", "partition_end")


def sql_asset(
    key: _Key,
    query: str,
    *,
    inputs: Sequence[_Key] | Mapping[str, _Key | dg.AssetIn] = (),
    memory_bytes: int | None = None,
    **fields: Any,
) -> dg.AssetsDefinition:
    """Return an asset whose rows are the result of a DuckDB query over upstream tables.

    The IO manager loads each input as a view, and commits the rows: partitions, modes and metadata are those of an
    asset that is a function. With a partition mapping, an input has only the rows of the partitions that the run
    depends on. DuckDB reads only the columns and row groups that the query needs, and spills to disk. The query can
    read its inputs only.

    The query may use `$partition_key` (text), `$partition_keys` (a list of texts), and for time partitions
    `$partition_start` and `$partition_end`: the wall times, in the zone of the partitions, between which the run's
    partitions lie. The connection's time zone is UTC.

    Args:
        key: The asset key, in any form that Dagster accepts.
        query: One SELECT.
        inputs: The upstream assets, by the name of their table in the query. Of a list, the name is the last part of
            the key. A `dg.AssetIn` has a partition mapping, or metadata as for the IO manager (`columns`, `where`).
        memory_bytes: The memory of the query before it spills, in bytes. The default is half of the memory.
        **fields: Further arguments of `dg.asset`: `partitions_def`, `metadata`, `io_manager_key`, `deps`, ...

    Raises:
        InvalidOption: The query is not one SELECT, uses an unknown parameter, or needs partitions that the asset lacks.
        InvalidQuery: By a run, if DuckDB rejects the query.

    Example:
        daily = sql_asset(
            "visits_daily",
            "SELECT day, count(*) AS visits FROM visits"
            " WHERE day = $partition_key::DATE GROUP BY day",
            inputs=["visits"],
            partitions_def=days,
            metadata={"partition_expr": "day"},
        )
    """
    asset = dg.AssetKey.from_coercible(key)
    name = asset.to_user_string()
    used = _parameters(query, name, fields.get("partitions_def"))
    memory_bytes = check_write_memory(memory_bytes, table=name)

    def rows_of_query(context: dg.AssetExecutionContext, **rows_of_inputs: Rows) -> pa.RecordBatchReader:
        return _batches(query, rows_of_inputs, _values(context, used), memory_bytes, name)

    made: dg.AssetsDefinition = dg.asset(
        key=asset,
        ins={table: _asset_in(table, upstream, name) for table, upstream in _by_name(inputs, name).items()},
        kinds={*KINDS, "duckdb", "sql", *fields.pop("kinds", ())},
        description=fields.pop("description", None) or f"```sql\n{query.strip()}\n```",
        **fields,
    )(rows_of_query)
    return made


def _by_name(inputs: Sequence[_Key] | Mapping[str, _Key | dg.AssetIn], asset: str) -> dict[str, _Key | dg.AssetIn]:
    if isinstance(inputs, Mapping):
        return dict(inputs)
    if isinstance(inputs, str):
        raise InvalidOption(f"the asset {asset}: inputs is the text {inputs!r}. Give a list: inputs=[{inputs!r}].")
    by_name: dict[str, _Key | dg.AssetIn] = {}
    for upstream in inputs:
        name = dg.AssetKey.from_coercible(upstream).path[-1]
        if name in by_name:
            raise InvalidOption(
                f"the asset {asset}: two inputs are named {name!r}. Give a mapping from other names to the keys."
            )
        by_name[name] = upstream
    return by_name


def _asset_in(table: str, upstream: _Key | dg.AssetIn, asset: str) -> dg.AssetIn:
    if not table.isidentifier():
        raise InvalidOption(
            f"the asset {asset}: the input {table!r} needs a name of letters, digits and _. Give a mapping from "
            "such names to the keys."
        )
    if not isinstance(upstream, dg.AssetIn):
        return dg.AssetIn(key=upstream, dagster_type=Rows)
    rows_type: Any = Rows
    return upstream._replace(dagster_type=rows_type)


def _parameters(query: str, asset: str, partitions: dg.PartitionsDefinition | None) -> frozenset[str]:
    """Return the parameters of the query. Raises InvalidOption."""
    try:
        statements = duckdb.extract_statements(query)
    except duckdb.Error as error:
        raise InvalidOption(f"the asset {asset}: the query is not valid SQL: {error}") from None
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise InvalidOption(f"the asset {asset}: the query is not one SELECT. Its rows are those of the asset.")
    used = frozenset(statements[0].named_parameters)
    if unknown := sorted(used - set(_PARAMETERS)):
        raise InvalidOption(
            f"the asset {asset}: the query uses ${unknown[0]}, which is no parameter. Use "
            f"{', '.join(f'${name}' for name in _PARAMETERS)}."
        )
    if used and partitions is None:
        raise InvalidOption(f"the asset {asset}: the query uses ${min(used)}, and the asset has no partitions_def.")
    of_time = sorted(used & {"partition_start", "partition_end"})
    if of_time and not isinstance(partitions, dg.TimeWindowPartitionsDefinition):
        raise InvalidOption(
            f"the asset {asset}: the query uses ${of_time[0]}, and the asset's partitions are no time windows. Use "
            "$partition_key."
        )
    return used


def _values(context: dg.AssetExecutionContext, used: frozenset[str]) -> dict[str, Any]:
    """Return the values of the parameters in this run."""
    values: dict[str, Callable[[], Any]] = {
        "partition_key": lambda: context.partition_key,  # Dagster's error states that the run has several
        "partition_keys": lambda: [*context.partition_keys],
        # A window is in the zone of the partitions.
        "partition_start": lambda: context.partition_time_window.start.replace(tzinfo=None),
        "partition_end": lambda: context.partition_time_window.end.replace(tzinfo=None),
    }
    return {name: values[name]() for name in used}


def _batches(
    query: str, inputs: Mapping[str, Rows], values: Mapping[str, Any], memory_bytes: int, asset: str
) -> pa.RecordBatchReader:
    """Return the rows, which are computed as they are read."""
    steps = _run(query, inputs, values, memory_bytes, asset)
    schema = next(steps)
    return pa.RecordBatchReader.from_batches(schema, steps)


def _run(
    query: str, inputs: Mapping[str, Rows], values: Mapping[str, Any], memory_bytes: int, asset: str
) -> Iterator[Any]:
    """Yield the schema of the rows, and then the rows in batches."""
    with temporary_folder("sql") as folder, closing(_connect(inputs.values(), folder, memory_bytes)) as con:
        try:
            for name, rows in inputs.items():
                con.execute(f"CREATE VIEW {quote_name(name)} AS {rows.sql()}")
            if inputs:  # without, it is locked already
                chosen = [rows.chosen for rows in inputs.values()]
                lock_reader(con, [path for of in chosen for path in of.handle.part_paths.readable(of.parts)])
            reader = con.execute(query, dict(values) or None).to_arrow_reader(ROWS_PER_BATCH)
            yield reader.schema
            yield from reader
        except duckdb.Error as error:
            raise _translated(error, inputs.values(), asset) from None


def _connect(inputs: Iterable[Rows], folder: Path, memory_bytes: int) -> duckdb.DuckDBPyConnection:
    """Connect to a DuckDB that can read the tables and spills into a folder."""
    locations = [rows.snapshot.handle.location for rows in inputs]
    remote = [location for location in locations if location.scheme == "s3"]
    if not locations:
        return connect_sandbox(folder, memory_bytes=memory_bytes)
    con = connect_reader((remote or locations)[0], memory_bytes=memory_bytes, folder=folder)
    for other in remote[1:]:
        attach_s3(con, other)
    con.execute("SET arrow_lossless_conversion = true")  # Arrow output keeps types such as UUID
    return con


def _translated(error: duckdb.Error, inputs: Iterable[Rows], asset: str) -> Exception:
    """Return the error of a part that is gone, or else InvalidQuery."""
    for rows in inputs:
        of = rows.snapshot
        translated = translate_read_error(of.handle, rows.chosen.parts, error, as_of_ms=of.as_of_ms)
        if not isinstance(translated, InvalidQuery):
            return translated
    return InvalidQuery(f"the asset {asset}: {error}")
