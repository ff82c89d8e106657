"""The IO manager on a real instance: every kind of input and output, and tables of every partitioning."""

import json
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

dg = pytest.importorskip("dagster")

import icedb
from icedb.errors import (
    EmptyBatch,
    InvalidArgument,
    InvalidBatch,
    InvalidOption,
    InvalidPartitionExpression,
    SchemaConflict,
    StoreUnavailable,
    TableNotFound,
    UnknownColumn,
)
from icedb_dagster import IceDBIOManager, IceDBResource
from icedb_dagster.io import inputs, outputs
from tests.support.dagster.dagster_instance import ONE, TWO, AssetRun, returning, rows, run_script

pytestmark = pytest.mark.dagster
pytest_plugins = ["tests.support.dagster.dagster_instance"]
on_postgres = pytest.mark.parametrize("instance", ["postgres_instance"], indirect=True)

NUMBERS = pa.table({"n": [3, 1, 2], "word": ["c", "a", None]})
SORTED = [(1, "a"), (2, None), (3, "c")]


@pytest.fixture(scope="module")
def in_memory() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def instance(request: pytest.FixtureRequest) -> dg.DagsterInstance:
    """In memory by default, where events take half the time."""
    chosen: dg.DagsterInstance = request.getfixturevalue(getattr(request, "param", "in_memory"))
    return chosen


def metadata_of(result: dg.ExecuteInProcessResult, asset: str) -> dict[str, Any]:
    """Return the metadata of an asset's only materialization in a run."""
    [event] = result.asset_materializations_for_node(asset)
    return {key: value.value for key, value in event.metadata.items()}


def log_files(table: icedb.Table) -> set[str]:
    return {o.key for o in table.handle.store.list(table.handle.keys.log_prefix)}


#: Reads the rows of an input, by its type.
READ: dict[Any, Callable[[Any], pa.Table]] = {
    pa.Table: lambda table: table,
    pa.RecordBatchReader: lambda reader: reader.read_all(),
    ds.Dataset: lambda dataset: dataset.to_table(),
    pd.DataFrame: lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
    pl.DataFrame: lambda frame: frame.to_arrow(),
    pl.LazyFrame: lambda frame: frame.collect().to_arrow(),
    duckdb.DuckDBPyRelation: lambda relation: relation.to_arrow_table(),
    icedb.Snapshot: lambda snapshot: snapshot.to_arrow(),
    list: pa.Table.from_pylist,
}


def taking(key: str, annotation: Any, upstream: Any, take: Callable[[Any], Any], **options: Any) -> Any:
    """Return an asset that passes its input, with this annotation and these options, to a function."""

    @dg.asset(key=key, ins={"loaded": dg.AssetIn(upstream, **options)})
    def asset(loaded: annotation) -> None:  # type: ignore[valid-type]
        take(loaded)

    return asset


# ------------------------------------------------------------------------------------------ outputs and inputs


@on_postgres
def test_every_kind_of_output_is_stored(run: AssetRun) -> None:
    batches = NUMBERS.to_batches(max_chunksize=2)
    makers: dict[str, Callable[[], Any]] = {
        "table": lambda: NUMBERS,
        "batch": lambda: NUMBERS.combine_chunks().to_batches()[0],
        "reader": lambda: pa.RecordBatchReader.from_batches(NUMBERS.schema, iter(batches)),
        "dataset": lambda: ds.dataset(NUMBERS),
        "pandas": lambda: NUMBERS.to_pandas(),
        "polars": lambda: pl.from_arrow(NUMBERS),
        "lazy": lambda: pl.from_arrow(NUMBERS).lazy(),
        "relation": lambda: duckdb.connect().from_arrow(NUMBERS),
        "dicts": NUMBERS.to_pylist,
        "snapshot": lambda: run.lake.table("table").snapshot(),
    }
    metadata = {"partition_by": ["n % 2 AS parity"], "sort_by": ["n"]}
    first = returning("table", NUMBERS, metadata)
    others = [returning(key, make, metadata, deps=["table"]) for key, make in makers.items() if key != "table"]
    assert run(first, *others).success
    for key in makers:
        table = run.lake.table(key)
        assert table.query("SELECT n, word FROM t ORDER BY n").fetchall() == SORTED, key
        assert table.schema() == {"n": "BIGINT", "word": "VARCHAR"}, key
        assert (table.spec.partition_by, table.spec.sort_by) == (("n % 2 AS parity",), ("n",))
        assert table.snapshot().partitions() == ["parity=0", "parity=1"]


def test_every_kind_of_input_is_loaded(run: AssetRun) -> None:
    received: list[Any] = []
    annotations = {**{kind: kind for kind in READ}, Any: pa.Table, list[dict[str, Any]]: list}
    takers = [taking(f"taking_{n}", annotation, run.name, received.append) for n, annotation in enumerate(annotations)]
    assert run(returning(run.name, NUMBERS, {"partition_by": ["n % 2 AS parity"]}), *takers).success
    kinds = [next(kind for kind in READ if isinstance(loaded, kind)) for loaded in received]
    assert sorted(map(str, kinds)) == sorted(map(str, annotations.values()))
    expected = [{"n": n, "word": word, "parity": n % 2} for n, word in SORTED]
    for kind, loaded in zip(kinds, received, strict=True):
        assert sorted(READ[kind](loaded).to_pylist(), key=lambda row: row["n"]) == expected, kind


@pytest.mark.sampled(days=3)
def test_lazy_inputs_read_no_rows_before_their_use(run: AssetRun) -> None:
    failures = {}

    def without_parts(loaded: Any) -> None:
        data = Path(run.lake.uri(run.name)) / "_data"
        shutil.move(data, data.with_name("hidden"))
        kind = next(kind for kind in READ if isinstance(loaded, kind))
        try:
            READ[kind](loaded)
        except Exception as error:
            failures[kind] = type(error).__name__
        finally:
            shutil.move(data.with_name("hidden"), data)

    lazy = {
        pa.RecordBatchReader: "IOException",
        ds.Dataset: "FileNotFoundError",
        pl.LazyFrame: "FileNotFoundError",
        duckdb.DuckDBPyRelation: "IOException",
    }
    takers = [taking(f"lazy_{n}", annotation, run.name, without_parts) for n, annotation in enumerate(lazy)]
    assert run(returning(run.name, NUMBERS), *takers).success
    assert failures == lazy


def test_an_input_has_the_columns_and_rows_of_its_metadata(run: AssetRun) -> None:
    numbers = returning(run.name, NUMBERS, {"partition_by": ["n % 2 AS parity"]})
    received: list[Any] = []
    cases: list[tuple[Any, dict[str, Any], list[dict[str, Any]]]] = [
        (pa.Table, {"columns": ["word", "n"], "where": "n > 1 AND parity = 1"}, [{"word": "c", "n": 3}]),
        (ds.Dataset, {"columns": ["n"], "where": "parity = 1"}, [{"n": 3}, {"n": 1}]),
        (pl.LazyFrame, {"columns": ["parity"], "where": dg.MetadataValue.text("parity = 0")}, [{"parity": 0}]),
    ]
    for number, (annotation, metadata, expected) in enumerate(cases):
        taker = taking(f"taking_{number}", annotation, run.name, received.append, metadata=metadata)
        assert run(numbers, taker).success
        assert READ[annotation](received.pop()).to_pylist() == expected
    refused: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        (pa.Table, {"columns": ["m"]}, UnknownColumn, r"names 'm', but the table has \['n', 'word', 'parity'\]"),
        (pa.Table, {"columns": "n"}, InvalidOption, "give a list of names"),
        (pa.Table, {"where": "(SELECT 1) = 1"}, InvalidOption, "'where' is '.*', which holds a subquery"),
        (ds.Dataset, {"where": "parity = 1 AND n > 1"}, InvalidOption, r"condition '\(n > 1\)'.*Filter the Dataset"),
        (icedb.Snapshot, {"columns": ["n"]}, InvalidOption, "always has all rows and columns"),
        (set, {}, InvalidOption, "cannot be loaded as .*Annotate it as pyarrow.Table"),
    ]
    for number, (annotation, metadata, error, message) in enumerate(refused):
        taker = taking(f"refused_{number}", annotation, run.name, received.append, metadata=metadata)
        with pytest.raises(error, match=message):
            run(numbers, taker, selection=[taker])
    assert received == []


@pytest.mark.sampled(days=3)
def test_an_input_can_be_read_at_an_earlier_time(run: AssetRun) -> None:
    run(returning(run.name, ONE))
    before = run.table().snapshot()
    received = []

    numbers = returning(run.name, TWO)
    reader = taking("reader", list, run.name, received.append, input_manager_key="io_manager")
    iso = datetime.fromtimestamp(before.as_of_ms / 1000, UTC).isoformat()
    for as_of in (before.as_of_ms, str(before.as_of_ms), iso, None):
        config = {} if as_of is None else {"ops": {"reader": {"inputs": {"loaded": {"as_of": as_of}}}}}
        assert run(numbers, reader, run_config=config).success
    assert received == [[{"n": 1}], [{"n": 1}], [{"n": 1}], [{"n": 2}]]
    config = {"ops": {"reader": {"inputs": {"loaded": {"as_of": "2026-11-21T12:00:00"}}}}}
    with pytest.raises(InvalidOption, match=r"as_of is '2026-11-21T12:00:00'; write a time with its zone"):
        run(numbers, reader, run_config=config, selection=[reader])


@pytest.mark.sampled(days=3)
def test_overwrite_is_the_default_and_one_commit(run: AssetRun) -> None:
    run(returning(run.name, ONE))
    older, before = run.table().snapshot(), log_files(run.table())
    run(returning(run.name, TWO))
    assert run.rows() == [(2,)]
    assert older.to_arrow()["n"].to_pylist() == [1]
    assert len(log_files(run.table()) - before) == 1


@pytest.mark.sampled(days=3)
def test_an_asset_may_write_its_own_table(run: AssetRun) -> None:
    with pytest.raises(TableNotFound):
        run(returning(run.name, None))
    assert not Path(run.lake.uri(run.name)).exists()

    def write() -> None:
        run.lake.table_or_create(run.name).insert(ONE)

    def write_and_say() -> icedb.Snapshot:
        write()
        return run.table().snapshot()

    for number, function in enumerate((write, write_and_say), 1):
        partition = {"partition_key": "2024-03-01"} if number == 1 else {}
        result = run(returning(run.name, function, partitions_def=DAYS), **partition)
        assert run.rows() == [(1,)] * number
        assert metadata_of(result, run.name)["dagster/row_count"] == number
        assert len(log_files(run.table())) == number


@pytest.mark.sampled(days=3)
def test_outputs_of_several_assets_and_explicit_results_are_stored(run: AssetRun) -> None:
    """Each output of a multi-asset is a table. Output and MaterializeResult have their own metadata."""

    @dg.multi_asset(
        outs={"left": dg.AssetOut(metadata={"sort_by": ["n"]}), "right": dg.AssetOut(metadata={"icedb/mode": "append"})}
    )
    def both() -> Any:
        yield dg.Output(ONE, output_name="left", metadata={"mine": 1}, data_version=dg.DataVersion("my-own"))
        yield dg.Output(TWO, output_name="right")

    @dg.asset
    def explicit() -> dg.MaterializeResult[pa.Table]:
        return dg.MaterializeResult(value=TWO, metadata={"mine": 2})

    @dg.asset
    def silent(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]
        context.set_data_version(context.asset_key, dg.DataVersion("silent-too"))
        return dg.MaterializeResult(metadata={"mine": 3})

    assert run(both, explicit, silent).success
    assert [rows(run.lake, key) for key in ("left", "right", "explicit")] == [[(1,)], [(2,)], [(2,)]]
    assert run.lake.table("left").spec.sort_by == ("n",)
    versions = {}
    for key in ("left", "right", "explicit", "silent"):
        event = run.instance.get_latest_materialization_event(dg.AssetKey(key))
        assert event is not None
        assert event.asset_materialization is not None
        assert (event.asset_materialization.metadata.get("mine") is None) == (key == "right")
        versions[key] = (event.asset_materialization.tags or {})["dagster/data_version"]
    assert versions == {
        "left": "my-own",
        "right": run.lake.table("right").snapshot().id,
        "explicit": run.lake.table("explicit").snapshot().id,
        "silent": "silent-too",
    }


# ------------------------------------------------------------------------------------------ options


def test_options_of_the_asset_override_those_of_the_io_manager(run: AssetRun) -> None:
    fields = {"mode": "append", "compression": "snappy", "sort_by": ["n"], "row_group_rows": 4096, "preview_rows": 0}
    own = {
        "icedb/mode": dg.MetadataValue.text("overwrite"),
        "icedb/sort_by": [],
        "icedb/partition_by": ["n % 2 AS parity"],
        "icedb/compression": "gzip",
        "icedb/row_group_rows": 8192,
        "icedb/bloom_filters": ["n"],
        "icedb/required": ["n"],
        "icedb/schema": {"n": "BIGINT", "at": "DATE"},
        "icedb/schema_policy": "declared",
        "icedb/merging": {"kind": "dedup", "by": ["n"]},
        "icedb/preview_rows": 1,
        "team": "ours",
    }
    for value in (ONE, TWO):
        result = run(returning("plain", value), returning("special", value, own), io=fields)
    assert (rows(run.lake, "plain"), rows(run.lake, "special", "n")) == ([(1,), (2,)], [(2,)])
    assert "icedb/preview" not in metadata_of(result, "plain")
    assert "| 2 |" in metadata_of(result, "special")["icedb/preview"]
    plain, special = run.lake.table("plain").spec, run.lake.table("special").spec
    assert (plain.compression, plain.sort_by, plain.row_group_rows) == ("snappy", ("n",), 4096)
    assert (special.compression, special.sort_by, special.row_group_rows) == ("gzip", (), 8192)
    assert (plain.bloom_filters, special.bloom_filters) == ((), ("n",))
    assert (special.partition_by, special.required, special.schema_policy) == (("n % 2 AS parity",), ("n",), "declared")
    assert (special.columns, special.merging) == ({"n": "BIGINT", "at": "DATE"}, icedb.Dedup(by=("n",)))


@pytest.mark.parametrize(
    ("value", "metadata", "message"),
    [
        (5, {}, "returned a builtins.int"),
        (["a"], {}, "returned a builtins.list"),
        (ONE, {"icedb/mode": "merge"}, "mode is 'merge'; give 'append' or 'overwrite' or 'upsert'"),
        (ONE, {"icedb/on_empty": "ignore"}, "on_empty is 'ignore'"),
        (ONE, {"icedb/on_conflict": "drop"}, "on_conflict is 'drop'"),
        (ONE, {"icedb/preview_rows": -1}, "preview_rows is -1"),
        (ONE, {"sort_by": "n"}, "'sort_by' is 'n'; give a list of texts"),
        (ONE, {"sort_by": ["n"], "icedb/sort_by": ["n"]}, "has both 'sort_by' and 'icedb/sort_by'"),
        (ONE, {"icedb/bloom_filters": "n"}, "'bloom_filters' is 'n'; give a list of texts"),
        (ONE, {"partition_by": [1]}, "'partition_by' is .*; give a list of texts"),
        (ONE, {"partition_by": ["random() AS r"]}, "different values for one row"),
        (ONE, {"icedb/compresion": "zstd"}, "which is not an option. Did you mean 'icedb/compression'"),
        (ONE, {"icedb/merging": {"kind": "sum"}}, "'icedb/merging' is"),
        (ONE, {"mode": "merge"}, "mode is 'merge'; give 'append' or 'overwrite' or 'upsert'"),
        (ONE, {"mode": "append", "icedb/mode": "append"}, "has both 'mode' and 'icedb/mode'"),
        (ONE, {"write_mode": "append"}, "has 'write_mode', which is not an option. Use 'icedb/mode'"),
        (ONE, {"root_name": "events"}, "has 'root_name', which is not an option. Use the asset's key"),
        (ONE, {"schema": "raw"}, "has 'schema', which is not an option. Use the asset's key"),
        (ONE, {"columns": ["n"]}, "has 'columns', which is not an option. Use the input of the downstream asset"),
        (ONE, {"schema_update_mode": "update"}, "Use 'icedb/schema_policy'"),
        (ONE, {"icedb/on_empty": "clear", "icedb/on_conflict": "quarantine"}, "Set only one of them"),
    ],
)
def test_invalid_outputs_are_rejected_before_a_table_is_created(
    lake: IceDBResource, value: Any, metadata: dict[str, Any], message: str
) -> None:
    """Called as Dagster calls it, without a run."""
    context = dg.build_output_context(asset_key="bad", definition_metadata=metadata)
    with pytest.raises((InvalidBatch, InvalidOption, InvalidPartitionExpression), match=message) as error:
        IceDBIOManager(icedb=lake).handle_output(context, value)
    assert lake.uri("bad") in str(error.value)
    assert not Path(lake.uri("bad")).exists()


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("key", ["mode", "icedb/mode"])
def test_an_asset_or_one_output_chooses_the_mode(run: AssetRun, key: str) -> None:
    @dg.asset(metadata={key: "append"})
    def appended() -> pa.Table:
        return ONE

    @dg.asset
    def chosen() -> dg.Output[pa.Table]:
        return dg.Output(ONE, metadata={key: "append", "icedb/note": "of the run"})

    for _ in range(2):
        result = run(appended, chosen)
    assert [rows(run.lake, name) for name in ("appended", "chosen")] == [[(1,), (1,)]] * 2
    assert metadata_of(result, "chosen")["icedb/mode"] == "append"
    assert metadata_of(result, "chosen")["icedb/note"] == "of the run"


def test_an_output_cannot_choose_options_of_the_asset(lake: IceDBResource) -> None:
    context = dg.build_output_context(asset_key="bad", output_metadata={"icedb/sort_by": ["n"]})
    with pytest.raises(InvalidOption, match="'icedb/sort_by', which is an option of the asset"):
        IceDBIOManager(icedb=lake).handle_output(context, ONE)
    assert not Path(lake.uri("bad")).exists()


@pytest.mark.parametrize("key", ["column", "icedb/column", "filter", "wher", "as_of", "icedb/where_"])
def test_metadata_of_an_input_that_looks_like_an_option_is_rejected(lake: IceDBResource, key: str) -> None:
    lake.table_or_create("events").insert(ONE)
    context = dg.build_input_context(
        asset_key="events", definition_metadata={key: ["n"]}, dagster_type=dg.PythonObjectDagsterType(pa.Table)
    )
    if key == "filter":  # metadata of other tools
        assert IceDBIOManager(icedb=lake).load_input(context).num_rows == 1
        return
    with pytest.raises(InvalidOption, match=f"the input's metadata has '{key}', which is not an option"):
        IceDBIOManager(icedb=lake).load_input(context)


def test_invalid_uses_of_the_io_manager_are_rejected(run: AssetRun) -> None:
    for field in ("mode", "on_conflict", "on_empty"):
        with pytest.raises(InvalidArgument, match=f"IceDBIOManager: {field}: Input should be"):
            IceDBIOManager(icedb=run.lake, **{field: "replace"})

    assert not Path(run.lake.root).exists()


@pytest.mark.sampled(days=3)
def test_conflicts_are_rejected_or_quarantined(run: AssetRun) -> None:
    run(returning(run.name, ONE))
    before = run.table().snapshot().id
    misfits = [{"n": 2}, {"n": "x"}]
    with pytest.raises(SchemaConflict):
        run(returning(run.name, misfits))
    assert run.table().snapshot().id == before
    result = run(returning(run.name, misfits), io={"on_conflict": "quarantine"})
    figures = metadata_of(result, run.name)
    assert (figures["icedb/rows_written"], figures["icedb/rows_quarantined"]) == (1, 1)
    assert (run.rows(), run.lake.table(f"{run.name}_quarantine").snapshot().rows) == ([(2,)], 1)


# ------------------------------------------------------------------------------------------ partitions

DAYS = dg.DailyPartitionsDefinition("2024-03-01", end_date="2024-04-10", timezone="Europe/Berlin")
HOURS = dg.HourlyPartitionsDefinition("2024-10-27-00:00", end_date="2024-10-28-00:00", timezone="Europe/Berlin")
MONTHS = dg.MonthlyPartitionsDefinition("2024-01-01", end_date="2024-06-01", timezone="America/New_York")
SHOPS = dg.StaticPartitionsDefinition(["north", "it's"])
CITIES = dg.DynamicPartitionsDefinition(name="cities")
BACKFILL = {"backfill_policy": dg.BackfillPolicy.single_run()}


def stamped(
    key: Any, definition: Any, metadata: dict[str, Any], make: Callable[[list[str]], Any], **options: Any
) -> Any:
    """Return a partitioned asset that returns `make` of the run's partition keys."""

    @dg.asset(key=key, partitions_def=definition, metadata=metadata, **options)
    def asset(context: dg.AssetExecutionContext) -> Any:
        partitioned = context.has_partition_key or context.has_partition_key_range
        return make([str(k) for k in context.partition_keys] if partitioned else [])

    return asset


def of_keys(**columns: Callable[[str], Any]) -> Callable[[list[str]], pa.Table]:
    return lambda keys: pa.table({name: [make(key) for key in keys] for name, make in columns.items()})


def instants(key: str) -> datetime:
    return HOURS.time_window_for_partition_key(key).start.astimezone(UTC)


@pytest.mark.sampled(cases=2)
@pytest.mark.parametrize(
    ("definition", "keys", "expression", "make"),
    [
        (SHOPS, ["north", "it's"], "shop", of_keys(shop=str)),
        (CITIES, ["Bonn", "New York"], "city", of_keys(city=str)),
        (DAYS, ["2024-03-30", "2024-03-31"], "CAST(ts AS DATE) AS day",
         of_keys(ts=lambda key: datetime.fromisoformat(f"{key}T23:59:59"))),
        (HOURS, ["2024-10-27-02:00", "2024-10-27-02:00+0100"], "date_trunc('hour', ts) AS hour", of_keys(ts=instants)),
        (MONTHS, ["2024-02-01", "2024-03-01"], "day", of_keys(day=lambda key: f"{key[:8]}28")),
        (
            dg.MultiPartitionsDefinition({"day": DAYS, "shop": SHOPS}), ["2024-03-30|it's", "2024-03-30|north"],
            {"day": "day", "shop": "shop"},
            of_keys(day=lambda key: key.partition("|")[0], shop=lambda key: key.partition("|")[2]),
        ),
    ],
    ids=["static", "dynamic", "daily", "hourly", "monthly", "multi"],
)  # fmt: skip
def test_a_materialization_replaces_only_its_partition(
    run: AssetRun, definition: Any, keys: list[str], expression: Any, make: Callable[[list[str]], pa.Table]
) -> None:
    if definition is CITIES:
        run.instance.add_dynamic_partitions("cities", keys)
    multi = isinstance(definition, dg.MultiPartitionsDefinition)
    version = [0]
    received: list[Any] = []

    def versioned(of: list[str]) -> pa.Table:
        return make(of).append_column("version", pa.array(version * len(of)))

    asset = stamped(run.name, definition, {"partition_expr": expression}, versioned)

    @dg.asset(partitions_def=definition, ins={"upstream": dg.AssetIn(run.name)})
    def same_partition(upstream: list[dict[str, Any]]) -> None:
        received.append([row["version"] for row in upstream])

    for version[0], key in enumerate([*keys, keys[0]], 1):
        partition_key = definition.get_partition_key_from_str(key) if multi else key
        result = run(asset, same_partition, partition_key=partition_key)
        assert metadata_of(result, run.name)["dagster/partition_row_count"] == 1
    assert run.rows("version") == [(2,), (3,)]
    assert received == [[1], [2], [3]]

    everything = taking("everything", list, run.name, received.append)
    assert run(asset, everything, selection=[everything]).success
    assert sorted(row["version"] for row in received[-1]) == [2, 3]


@pytest.mark.sampled(days=3)
def test_a_range_is_one_commit(run: AssetRun) -> None:
    asset = stamped(run.name, DAYS, {"partition_expr": "day"}, of_keys(day=str), **BACKFILL)
    received = []

    @dg.asset(partitions_def=DAYS, ins={"upstream": dg.AssetIn(run.name)}, **BACKFILL)
    def reader(upstream: pa.Table) -> None:
        received.append(upstream["day"].to_pylist())

    def attempt(first: str, last: str) -> dg.ExecuteInProcessResult:
        ends = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
        return run(asset, reader, tags=ends)

    attempt("2024-03-29", "2024-03-31")
    before = log_files(run.table())
    result = attempt("2024-03-31", "2024-04-04")
    assert len(log_files(run.table()) - before) == 1
    assert [len(days) for days in received] == [3, 5]
    assert len(run.rows()) == 7
    events = result.asset_materializations_for_node(run.name)
    assert sorted(str(e.partition) for e in events) == [
        k for k in DAYS.get_partition_keys() if "2024-03-31" <= k <= "2024-04-04"
    ]
    assert [e.metadata["dagster/partition_row_count"].value for e in events] == [1] * 5
    assert events[0].metadata["icedb/rows_written"].value == 5


@pytest.mark.sampled(days=3)
def test_a_downstream_partition_reads_its_mapped_partitions(run: AssetRun) -> None:
    asset = stamped(run.name, DAYS, {"partition_expr": "day"}, of_keys(day=str), **BACKFILL)
    ends = {"dagster/asset_partition_range_start": "2024-03-29", "dagster/asset_partition_range_end": "2024-04-02"}
    run(asset, tags=ends)
    received: dict[str, list[str]] = {}

    def taking(key: str, definition: Any, mapping: Any) -> Any:
        @dg.asset(key=key, partitions_def=definition, ins={"upstream": dg.AssetIn(run.name, partition_mapping=mapping)})
        def take(upstream: list) -> None:  # type: ignore[type-arg]
            received[key] = sorted(row["day"] for row in upstream)

        return take

    berlin = dg.MonthlyPartitionsDefinition("2024-03-01", end_date="2024-05-01", timezone="Europe/Berlin")
    previous = dg.TimeWindowPartitionMapping(start_offset=-1)
    last = dg.LastPartitionMapping()
    month, window = taking("month", berlin, None), taking("window", DAYS, previous)
    newest = taking("newest", None, last)
    run(asset, month, selection=[month], partition_key="2024-03-01")
    run(asset, window, selection=[window], partition_key="2024-03-31")
    run(asset, newest, selection=[newest])
    assert received == {
        "month": ["2024-03-29", "2024-03-30", "2024-03-31"],
        "window": ["2024-03-30", "2024-03-31"],
        "newest": [],
    }


@pytest.mark.sampled(days=3)
def test_an_unpartitioned_asset_reads_all_rows_of_a_partitioned_one(run: AssetRun) -> None:
    """Also late rows, rows without a partition, and rows of a window that has not ended."""
    days = ["2024-02-29", "2024-03-02", "2024-04-10", None]
    metadata = {"partition_expr": "day", "icedb/mode": "append"}
    asset = stamped(run.name, DAYS, metadata, lambda _: pa.table({"day": days}))
    run(asset, partition_key="2024-03-02")
    received: list[list[dict[str, Any]]] = []
    mappings = [None, dg.AllPartitionMapping(), dg.SpecificPartitionsPartitionMapping(["2024-03-02"])]
    takers = [taking(f"all_{n}", list, run.name, received.append, partition_mapping=m) for n, m in enumerate(mappings)]
    for taker in takers:
        run(asset, taker, selection=[taker])
    assert [[row["day"] for row in sorted(rows, key=str)] for rows in received] == [
        sorted(days, key=str), sorted(days, key=str), ["2024-03-02"],
    ]  # fmt: skip


def test_coarser_partitions_accept_only_appends(run: AssetRun) -> None:
    table = run.lake.table_or_create(run.name, partition_by=["CAST(date_trunc('month', ts) AS DATE) AS month"])
    days = [datetime.fromisoformat(f"{key}T12:00:00") for key in DAYS.get_partition_keys()]
    table.insert(pa.table({"ts": days}))
    before = table.snapshot().id
    one = of_keys(ts=lambda key: datetime.fromisoformat(f"{key}T13:00:00"))
    asset = stamped(run.name, DAYS, {"partition_expr": "month"}, one)

    @dg.asset(partitions_def=DAYS, ins={"upstream": dg.AssetIn(run.name)})
    def reader(upstream: pa.Table) -> None:
        raise AssertionError

    for key in ("2024-03-01", "2024-03-02", "2024-03-31"):
        for selected in (asset, reader):
            with pytest.raises(InvalidOption, match=rf"'{key}' .* within a partition .*'month' is '.*date_trunc"):
                run(asset, reader, selection=[selected], partition_key=key)
    assert table.snapshot().id == before
    result = run(asset, partition_key="2024-03-01", io={"mode": "append"})
    assert "dagster/partition_row_count" not in metadata_of(result, run.name)
    assert len(run.rows()) == len(days) + 1


def test_a_self_dependent_asset_begins_empty(run: AssetRun) -> None:
    last = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
    ins = {"loaded": dg.AssetIn(run.name, partition_mapping=last)}

    @dg.asset(key=run.name, partitions_def=DAYS, metadata={"partition_expr": "day"}, ins=ins)
    def total(context: dg.AssetExecutionContext, loaded: list) -> Any:  # type: ignore[type-arg]
        return [{"day": context.partition_key, "n": sum(row["n"] for row in loaded) + 1}]

    with pytest.raises(TableNotFound, match=r"_table\.json"):  # the day before is missing
        run(total, partition_key="2024-03-02")
    for key in ("2024-03-01", "2024-03-02", "2024-03-03"):
        run(total, partition_key=key)
    assert run.rows("n") == [(1,), (2,), (3,)]

    with_a_table = (duckdb.DuckDBPyRelation, icedb.Snapshot)
    for kind in [kind for kind in READ if kind not in with_a_table]:
        loaded = inputs.empty(kind, table=run.name)
        assert isinstance(loaded, kind)
        assert READ[kind](loaded).to_pylist() == []
    for kind in with_a_table:
        with pytest.raises(TableNotFound, match=rf"an empty .*{kind.__name__} cannot be made.*Table\.create"):
            inputs.empty(kind, table=run.name)


@pytest.mark.sampled(days=3)
def test_rows_outside_the_partition_are_rejected(run: AssetRun) -> None:
    days = ["2024-03-02"]
    asset = stamped(run.name, DAYS, {"partition_expr": "day"}, lambda _: pa.table({"day": days}))
    run(asset, partition_key="2024-03-02")
    before = run.table().snapshot().id
    days += ["2024-03-02", "2024-03-03", "2024-03-03"]
    with pytest.raises(InvalidBatch, match=r"2 of 4 rows are outside the partitions .* example in 'day=2024-03-03'"):
        run(asset, partition_key="2024-03-02")
    assert run.table().snapshot().id == before
    # An append accepts late events of any day.
    run(asset, partition_key="2024-03-02", io={"mode": "append"})
    assert len(run.rows()) == 5


@pytest.mark.sampled(days=6)
def test_on_empty_decides_about_empty_outputs(run: AssetRun) -> None:
    nothing = pa.table({"day": pa.array([], pa.string())})
    table = run.lake.table_or_create(run.name, partition_by=["day"])
    table.insert(pa.table({"day": ["2024-03-02", "2024-03-03"]}))
    before = table.snapshot().id

    def attempt(**metadata: str) -> None:
        options = {f"icedb/{option}": value for option, value in metadata.items()}
        asset = stamped(run.name, DAYS, {"partition_expr": "day", **options}, lambda _: nothing)
        assert run(asset, partition_key="2024-03-02").success

    with pytest.raises(EmptyBatch, match=r'"icedb/on_empty": "clear"'):
        attempt(on_empty="raise")
    attempt(mode="append", on_empty="clear")
    assert table.snapshot().id == before
    for _ in range(2):  # the second time, the partition is empty
        attempt()
        assert run.rows() == [("2024-03-03",)]
    clear = {"on_empty": "clear"}
    run(returning(run.name, nothing), returning("never_written", []), returning("whole", ONE), io=clear)
    run(returning("whole", ONE.slice(0, 0)), io=clear)
    assert [run.lake.table(key).snapshot().parts for key in (run.name, "never_written", "whole")] == [(), (), ()]


def test_an_unresolved_partition_overwrites_nothing(run: AssetRun) -> None:
    """An unresolved partition never becomes an overwrite of the whole table."""
    batch = pa.table({"shop": ["north"], "day": ["2024-03-01"]})
    run.lake.table_or_create(run.name, partition_by=["shop"]).insert(batch)
    before = run.table().snapshot().id

    def refused(message: str, metadata: dict[str, Any], definition: Any = DAYS, **options: Any) -> None:
        asset = stamped(run.name, definition, metadata, lambda _: batch)
        with pytest.raises((InvalidOption, InvalidPartitionExpression), match=message):
            run(asset, **options)
        assert run.table().snapshot().id == before

    day = {"partition_key": "2024-03-01"}
    both = dg.MultiPartitionsDefinition({"day": DAYS, "shop": SHOPS})
    refused("its metadata 'partition_expr' is None", {}, **day)
    refused(r"column 'day', but the table is partitioned by \['shop'\]", {"partition_expr": "day"}, **day)
    refused("names 'day', but partition_by has", {"partition_expr": "day", "partition_by": ["shop"]}, **day)
    refused("has no name", {"partition_expr": "left(day, 7)"}, **day)
    refused("for each dimension", {"partition_expr": {"day": "day"}}, both, partition_key="2024-03-01|north")
    refused("the run has no partition", {"partition_expr": "shop"})


@pytest.mark.sampled(days=3)
def test_an_ambiguous_hour_accepts_only_appends(run: AssetRun) -> None:
    wall = of_keys(hour=lambda key: datetime.fromisoformat("2024-10-27T02:00:00"))
    asset = stamped(run.name, HOURS, {"partition_expr": "hour"}, wall)
    twice = {"partition_key": "2024-10-27-02:00+0100"}
    for appended in range(2):  # at first, the table has no type for the column
        with pytest.raises(InvalidOption, match="occurs twice in Europe/Berlin"):
            run(asset, **twice)
        assert len(run.table().snapshot().parts) == appended
        result = run(asset, io={"mode": "append"}, **twice)
        assert "dagster/partition_row_count" not in metadata_of(result, run.name)
    assert len(run.rows()) == 2


@pytest.mark.sampled(days=3)
def test_a_table_may_have_finer_partitions(run: AssetRun) -> None:
    metadata = {
        "partition_expr": "strftime(ts, '%Y-%m-%d') AS day",
        "partition_by": ["strftime(ts, '%Y-%m-%d') AS day", "user % 2 AS bucket"],
    }

    def two_days(keys: list[str]) -> list[dict[str, Any]]:
        noons = [datetime.fromisoformat(f"{key[:8]}{day}T12:00:00") for key in keys for day in ("05", "06")]
        return [{"ts": noon, "user": user} for noon in noons for user in range(4)]

    asset = stamped(run.name, MONTHS, metadata, two_days)
    for key in ("2024-02-01", "2024-03-01", "2024-02-01"):
        run(asset, partition_key=key)
    assert run.table().snapshot().rows == 16
    assert len(run.table().snapshot().partitions()) == 8


# ------------------------------------------------------------------------------------------ exactly once


@pytest.mark.sampled(days=3)
@on_postgres
def test_appends_are_exactly_once_across_step_retries(run: AssetRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step fails after the first output's commit, and once after a lost response to a commit."""
    tries: list[int] = []
    append = {"icedb/mode": "append"}

    @dg.multi_asset(
        outs={"first": dg.AssetOut(metadata=append), "second": dg.AssetOut(metadata=append)},
        retry_policy=dg.RetryPolicy(max_retries=3),
    )
    def both() -> Any:
        tries.append(len(tries))
        yield dg.Output([{"n": 1}, {"n": tries[-1] + 100}], output_name="first")
        if len(tries) == 1:
            raise OSError("after the first commit")
        yield dg.Output(pa.RecordBatchReader.from_batches(ONE.schema, iter(ONE.to_batches())), output_name="second")

    insert, lost = icedb.Table.insert, []

    def losing(table: icedb.Table, *args: Any, **options: Any) -> Any:
        commit = insert(table, *args, **options)
        if table.uri.endswith("second") and not lost:
            lost.append(commit)
            raise StoreUnavailable("the answer was lost")
        return commit

    monkeypatch.setattr(icedb.Table, "insert", losing)
    result = run(both)
    assert (len(tries), len(lost)) == (3, 1)
    assert rows(run.lake, "first") == [(1,), (100,)]
    assert rows(run.lake, "second") == [(1,)]
    events = {e.asset_key.path[0]: e.metadata for e in result.asset_materializations_for_node("both")}
    assert {key: event["icedb/repeated"].value for key, event in events.items()} == {"first": True, "second": True}
    assert events["first"]["icedb/rows_written"].value == 0
    assert run(both).success  # a new run adds again
    assert len(rows(run.lake, "first")) == 4


EVENTS = dg.DailyPartitionsDefinition("2024-03-01", end_date="2024-04-01")
#: The lake of the job below, which Dagster constructs for each run, and the partitions whose second asset fails.
JOB_ROOT: list[str] = []
JOB_FAILS: list[str] = []


@dg.asset(partitions_def=EVENTS, metadata={"partition_expr": "day", "icedb/mode": "append"})
def events(context: dg.AssetExecutionContext) -> Any:
    return [{"day": key, "run": context.run_id} for key in context.partition_keys]


@dg.asset(partitions_def=EVENTS, metadata={"partition_expr": "day"})
def after_events(context: dg.AssetExecutionContext, events: pa.Table) -> Any:
    if context.partition_key in JOB_FAILS:
        raise OSError("not yet")
    return events


def events_job() -> dg.JobDefinition:
    job = dg.define_asset_job("events_job", [events, after_events], executor_def=dg.in_process_executor)
    io_manager = IceDBIOManager(icedb=IceDBResource(root=JOB_ROOT[0]))
    defs = dg.Definitions([events, after_events], jobs=[job], resources={"io_manager": io_manager})
    return defs.resolve_job_def("events_job")


@pytest.mark.sampled(days=3)
@on_postgres
def test_appends_are_exactly_once_across_re_execution(instance: dg.DagsterInstance, lake: IceDBResource) -> None:
    JOB_ROOT[:] = [lake.root]
    job = dg.reconstructable(events_job)

    def run(key: str, **options: Any) -> Any:
        with dg.execute_job(job, instance=instance, tags={"dagster/partition": key}, **options) as result:
            return result.run_id, result.success

    JOB_FAILS[:] = ["2024-03-02"]
    runs = {key: run(key) for key in ("2024-03-01", "2024-03-02")}
    assert [success for _, success in runs.values()] == [True, False]
    assert len(rows(lake, "events")) == 2
    failed = runs["2024-03-02"][0]
    # The whole run again, as after an append with an unknown outcome, then from the failure.
    again, success = run("2024-03-02", reexecution_options=dg.ReexecutionOptions(parent_run_id=failed))
    assert not success
    JOB_FAILS.clear()
    last, success = run("2024-03-02", reexecution_options=dg.ReexecutionOptions.from_failure(again, instance))
    assert success
    stored_rows = rows(lake, "events", "day, run")
    assert stored_rows == [("2024-03-01", runs["2024-03-01"][0]), ("2024-03-02", failed)]
    assert rows(lake, "after_events", "day, run") == stored_rows
    stored = instance.get_run_by_id(last)
    assert stored is not None
    assert stored.root_run_id == failed


def test_transaction_names_are_short_and_distinct() -> None:
    names = [
        outputs.transaction(*arguments)[0]
        for arguments in (
            ("run", "step", ()),
            ("run", "other", ()),
            ("again", "step", ()),
            ("run", "step", ("2024-03-01",)),
            ("run", "step", ("2024-03-01", "2024-03-02")),
            ("run", "step", ("2024-03-01", "2024-03-03")),
            ("run", "step", ("x" * 500,)),
        )
    ]
    assert names[3] == "dagster/run/step/2024-03-01"
    assert len(set(names)) == len(names)
    assert all(len(name) < 40 and name.isprintable() for name in names)


# ------------------------------------------------------------------------------------------ Spark


def test_spark_inputs_require_a_session(run: AssetRun, monkeypatch: pytest.MonkeyPatch) -> None:
    pyspark = pytest.importorskip("pyspark.sql")
    # The process may have the session of the tests of Spark, as the active and as the default session.
    monkeypatch.setattr(pyspark.SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(pyspark.SparkSession, "_instantiatedSession", None)
    numbers = returning(run.name, ONE)

    run(numbers)
    wants_spark = taking("wants_spark", pyspark.DataFrame, run.name, print)
    with pytest.raises(InvalidOption, match="PySparkResource"):
        run(numbers, wants_spark, selection=[wants_spark])


@pytest.mark.slow(seconds=60)
@pytest.mark.spark
def test_spark_frames_are_inputs_and_outputs(environment: dict[str, str], lake: IceDBResource, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    run_script("spark/spark_assets.py", lake.root, str(tmp_path / "result.json"))
    report = json.loads((tmp_path / "result.json").read_text())
    assert report["success"] == {"first": True, "again": True, "days": True, "empty": False}
    assert "EmptyBatch" in report["failure"]
    wall = datetime(2024, 1, 2, 3, 4, 5)
    assert rows(lake, "spark_numbers") == [(n, wall, n % 2) for n in range(10)]
    assert lake.table("spark_numbers").spec.sort_by == ("n",)
    assert rows(lake, "spark_squares", "square, wall, parity") == [(n * n, wall, n % 2) for n in range(10)]
    assert rows(lake, "counts", "squares, numbers") == [(10, 10)]
    assert lake.table("spark_nothing").snapshot().parts == ()
    # Two attempts in each of two runs: the step failed after the commit.
    assert rows(lake, "spark_growing") == [(n,) for n in (0, 0, 1, 1, 2, 2)]
    assert report["repeated"] == [True, True]
    # Two days, the first of them twice. Each copy has its own day.
    assert rows(lake, "spark_daily", "strftime(day, '%d'), version") == [("01", 3), ("02", 2)]
    assert rows(lake, "spark_copies", "strftime(day, '%d'), version") == [("01", 1), ("01", 3), ("02", 2)]
    assert lake.table("spark_copies").schema() == {"day": "DATE", "version": "INTEGER"}


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("nothing", [[], pa.table({}), pd.DataFrame()], ids=["list", "Table", "DataFrame"])
def test_the_first_partition_may_be_empty(run: AssetRun, nothing: Any) -> None:
    metadata = {"partition_expr": "day", "sort_by": ["n"]}
    daily = dg.StaticPartitionsDefinition(["monday", "tuesday"])
    assert run(returning(run.name, lambda: nothing, metadata, partitions_def=daily), partition_key="monday").success
    assert run.table().snapshot().parts == ()


@pytest.mark.sampled(days=3)
def test_another_table_s_empty_batch_clears_nothing(run: AssetRun) -> None:
    run(returning(run.name, ONE))
    other = run.lake.table_or_create(f"{run.name}_other")

    def batches() -> Iterator[pa.RecordBatch]:
        other.overwrite([])
        yield from ONE.to_batches()

    reader = pa.RecordBatchReader.from_batches(ONE.schema, batches())
    with pytest.raises(Exception, match="the batch has no rows"):
        run(returning(run.name, lambda: reader, {"icedb/on_empty": "clear"}))
    assert run.rows() == [(1,)]
