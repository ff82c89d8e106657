"""The metadata of a table in the UI: figures, a preview, a chart, and Spark's progress."""

import base64
import io
import json
import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

dg = pytest.importorskip("dagster")

import icedb
from icedb.operations.health.size_chart import FINE, TO_MERGE, PartSizes, draw
from icedb_dagster import IceDBResource, build_table_definitions, spark_progress, table_spec
from icedb_dagster.metadata.size_chart import markdown_picture
from icedb_dagster.metadata.table_metadata import PREVIEW_COLUMNS_MAX, materialization_metadata
from tests.support.dagster.dagster_instance import AssetRun, returning, run_script
from tests.support.object_stores.counting_proxy import CountingProxy

pytestmark = pytest.mark.dagster
pytest_plugins = ["tests.support.dagster.dagster_instance"]

MB = 1024 * 1024


def shown(snapshot: icedb.Snapshot, **options: Any) -> dict[str, Any]:
    return {key: value.value for key, value in materialization_metadata(snapshot, **options).items()}


def cells(preview: str) -> list[list[str]]:
    """Return the rows of a Markdown table, without the line below the header."""
    lines = [line.strip("| ").split(" | ") for line in preview.splitlines() if line.startswith("|")]
    return [lines[0], *lines[2:]]


@pytest.fixture
def table(tmp_path: Path) -> icedb.Table:
    return icedb.Table.create(tmp_path / "table", partition_by=["day"], sort_by=["n"], required=["n"])


@pytest.mark.sampled(days=3)
def test_a_materialization_has_the_metadata_of_the_table(run: AssetRun) -> None:
    days = pa.table({"n": [1, 2, 3], "day": ["monday", "tuesday", "tuesday"]})
    definition = {"partition_expr": "day", "sort_by": ["n"]}
    partitions = dg.StaticPartitionsDefinition(["monday", "tuesday"])
    whole = returning(run.name, days, {"partition_by": ["day"]})
    run(whole)
    tuesday = returning(run.name, days.slice(1), definition, partitions_def=partitions)
    run(tuesday, partition_key="tuesday")

    event = run.instance.get_latest_materialization_event(dg.AssetKey(run.name))
    assert event is not None
    assert event.asset_materialization is not None
    values = {key: value.value for key, value in event.asset_materialization.metadata.items()}
    snapshot = run.table().snapshot()
    expected = {
        "dagster/row_count": 3,
        "dagster/partition_row_count": 2,
        "dagster/uri": snapshot.table,
        "dagster/storage_kind": "icedb",
        "dagster/size_bytes": snapshot.bytes,
        "icedb/bytes": snapshot.bytes,
        "icedb/live_parts": 2,
        "icedb/partitions": 2,
        "icedb/log_files": snapshot.log_files,
        "icedb/snapshot_id": snapshot.id,
    }
    assert {key: values[key] for key in expected} == expected
    assert snapshot.as_of_ms - 600_000 < values["icedb/snapshot_time"] * 1000 <= snapshot.as_of_ms
    assert cells(values["icedb/preview"]) == [["n", "day"], ["2", "tuesday"], ["3", "tuesday"]]
    assert values["icedb/part_sizes"].startswith("![2 live parts in 2 partitions, ")
    columns = {c.name: c for c in values["dagster/column_schema"].columns}
    assert {name: c.type for name, c in columns.items()} == {"n": "BIGINT", "day": "VARCHAR"}
    tags = event.asset_materialization.tags or {}
    assert tags["dagster/data_version"] == snapshot.id


def test_the_column_schema_marks_required_and_partition_columns(tmp_path: Path) -> None:
    table = icedb.Table.create(tmp_path / "t", partition_by=["n % 2 AS odd"], required=["n"])
    table.insert([{"n": 1, "word": "a"}])
    columns = shown(table.snapshot())["dagster/column_schema"].columns
    described = [(c.name, c.type, c.constraints.nullable, c.description) for c in columns]
    assert described == [
        ("n", "BIGINT", False, None),
        ("word", "VARCHAR", True, None),
        ("odd", "BIGINT", True, "partition column"),
    ]


@pytest.mark.sampled(days=3)
def test_rows_of_a_partition_are_counted_from_the_log_or_unknown(table: icedb.Table) -> None:
    table.insert([{"n": n, "day": "monday" if n % 3 else "tuesday"} for n in range(6)])
    assert shown(table.snapshot(), partitions="day = 'monday'")["dagster/partition_row_count"] == 4
    assert "dagster/partition_row_count" not in shown(table.snapshot())
    table.alter(partition_by=["n % 2 AS odd"])
    values = shown(table.snapshot(), partitions="odd = 1")
    assert values["icedb/partition_row_count"].startswith("unknown without reading")
    assert values["icedb/preview"] == "no rows"  # older parts may belong to other partitions
    table.insert([{"n": 9, "day": "sunday"}])
    assert cells(shown(table.snapshot(), partitions="odd = 1")["icedb/preview"])[1:] == [["9", "sunday", "1"]]


def test_the_preview_of_an_empty_table_is_empty(table: icedb.Table) -> None:
    values = shown(table.snapshot(), partitions="day = 'monday'")
    assert values["icedb/preview"] == "no rows"
    assert values["icedb/part_sizes"].startswith("0 live parts")
    assert values["dagster/row_count"] == 0


@pytest.mark.sampled(days=3)
def test_a_preview_shows_some_of_the_newest_rows(table: icedb.Table) -> None:
    table.insert([{"n": n, "day": "monday"} for n in range(100)])
    table.insert([{"n": n, "day": day} for day in ("sunday", "monday") for n in range(200, 210)])
    snapshot = table.snapshot()
    assert [row[0] for row in cells(shown(snapshot, partitions="day = 'monday'")["icedb/preview"])[1:]] == [
        "200", "201", "202", "203", "204"
    ]  # fmt: skip
    assert len(cells(shown(snapshot, preview_rows=7)["icedb/preview"])) == 8
    assert "icedb/preview" not in shown(snapshot, preview_rows=0)


def test_a_preview_escapes_and_shortens_values(tmp_path: Path) -> None:
    table = icedb.Table.create(tmp_path / "t")
    odd = "a|b\n[link](http://x) ![p](data:x) <b>&amp;</b> `c` *d* _e_\x00\x1b"
    row = {
        "text_": odd,
        "long": "x" * 10_000,
        "bytes": b"\x00\xff" * 500,
        "list": [1, None],
        "time": datetime(2026, 1, 2, 3, 4, 5),
        "nothing": None,
    }
    table.insert(pa.Table.from_pylist([row], pa.schema([*pa.table({k: [v] for k, v in row.items() if v}).schema,
                                                         pa.field("nothing", pa.int32())])))  # fmt: skip
    [names, values] = cells(shown(table.snapshot())["icedb/preview"])
    described = dict(zip(names, values, strict=True))
    assert described == {
        "text\\_": r"a\|b \[link\](http://x) !\[p\](data:x) \<b>\&amp;\</b> \`c\` \*d\* \_e\_",
        "long": "x" * 60 + "…",
        "bytes": "1000 bytes",
        "list": r"\[1, NULL\]",
        "time": "2026-01-02 03:04:05",
        "nothing": "*null*",
    }


@pytest.mark.sampled(days=3)
def test_a_preview_of_many_columns_counts_the_omitted_ones(tmp_path: Path) -> None:
    table = icedb.Table.create(tmp_path / "t")
    table.insert([{f"column_{n:02}": n for n in range(PREVIEW_COLUMNS_MAX + 5)}])
    preview = shown(table.snapshot())["icedb/preview"]
    assert [len(line) for line in cells(preview)] == [PREVIEW_COLUMNS_MAX] * 2
    assert preview.endswith("\n\nand 5 more columns")


def test_unavailable_metadata_is_a_line_and_no_error(table: icedb.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.insert([{"n": 1, "day": "monday"}])
    snapshot = table.snapshot()
    for part in Path(table.uri).rglob("*.parquet"):
        part.unlink()
    for module in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, module, None)
    values = shown(snapshot, partitions="no_such_column = 1")
    assert values["dagster/row_count"] == 1
    assert "no_such_column" in values["icedb/partition_row_count"]
    assert values["icedb/part_sizes"].startswith("not available: There is no matplotlib here.")
    assert shown(snapshot)["icedb/preview"].startswith("not available")


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_the_requests_of_the_metadata(s3_server: Any, s3: Any, storage_options: dict[str, str]) -> None:
    with CountingProxy(s3_server.endpoint).running() as proxy:
        options = storage_options | {"AWS_ENDPOINT_URL": proxy.endpoint}
        table = icedb.Table.create(s3.uri, partition_by=["n % 50 AS p"], storage_options=options)
        for _ in range(2):
            table.insert([{"n": n, "text": str(n)} for n in range(100)])
        snapshot = table.snapshot()
        proxy.reset()
        shown(snapshot, partitions="p < 10", preview_rows=0)
        assert proxy.counts == {}
        shown(snapshot, partitions="p < 10")
        assert proxy.counts == {"HEAD": 2, "GET": 1}


def parts(sizes: dict[str, list[int]]) -> list[icedb.Part]:
    return [
        icedb.Part(f"{name}/{n}", f"/{name}/{n}", name, size, 1, n)
        for name, of_partition in sizes.items()
        for n, size in enumerate(of_partition)
    ]


def colours(png: bytes) -> set[str]:
    """Return the colours of areas, without those of edges."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as picture:
        counted = picture.convert("RGB").getcolors(1000) or []
    return {f"#{r:02x}{g:02x}{b:02x}" for count, (r, g, b) in counted if count > 500}


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        (
            {f"day={n:03}": [10_000] * 3 for n in range(365)},
            "1,095 live parts in 365 partitions, 10.9 MB in all; 1,095 are below 128 MiB. A merge would take 1,095 of "
            "them in 365 partitions; the most, 3, are in day=000.",
        ),
        (
            {"a": [5 * MB], "b": [200 * MB, 127 * MB], "c": [MB] * 4 + [128 * MB]},
            "8 live parts in 3 partitions, 486.5 MB in all; 6 are below 128 MiB. A merge would take 4 of them in 1 "
            "partition; the most, 4, are in c.",
        ),
        ({"": [700]}, "1 live part in 1 partition, 700 B in all; 1 is below 128 MiB. There is nothing to merge."),
        (
            {"": [1, 2]},
            "2 live parts in 1 partition, 3 B in all; 2 are below 128 MiB. A merge would take 2 of them in 1 "
            "partition.",
        ),
    ],
)
def test_the_chart_and_its_text_count_the_parts_to_merge(sizes: dict[str, list[int]], text: str) -> None:
    part_sizes = PartSizes.of(parts(sizes))
    assert part_sizes.text == text
    markdown = markdown_picture(part_sizes)
    alternative, _, data = markdown.removeprefix("![").removesuffix(")").partition("](data:image/png;base64,")
    assert alternative.replace("\\", "") == text
    png = base64.b64decode(data)
    assert len(png) < 16_000  # it is stored with every materialization
    assert (TO_MERGE in colours(png)) == ("nothing to merge" not in text)
    assert (FINE in colours(png)) == (len(part_sizes.to_merge) < len(part_sizes.parts))


@pytest.mark.sampled(days=3)
def test_partition_names_are_escaped_in_the_chart() -> None:
    part_sizes = PartSizes.of(parts({"d=$x$]|<i>\n" + "long" * 50: [10, 20], "d=\u65e5\u672c": [10, 20], "e": [0, 0]}))
    assert "\n" not in markdown_picture(part_sizes)
    assert r"\]\|\<i> long" in markdown_picture(part_sizes)


@pytest.mark.sampled(days=3)
def test_charts_can_be_drawn_in_several_threads() -> None:
    all_sizes = [PartSizes.of(parts({"a": [10 * (n + 1)] * (n + 2)})) for n in range(8)]
    alone = [draw(sizes) for sizes in all_sizes]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(draw, all_sizes)) == alone


def test_an_external_table_has_kinds_owners_and_an_address() -> None:
    spec = table_spec(
        ["raw", "events"],
        uri="s3://lake/raw/events",
        partition_by=["day"],
        owners=["team:data", "ann@example.com"],
        kinds={"spark"},
        group_name="raw",
    )
    assert spec.kinds == {"icedb", "parquet", "spark"}
    assert [*spec.owners] == ["team:data", "ann@example.com"]
    assert spec.metadata == {"dagster/uri": "s3://lake/raw/events", "partition_by": ["day"]}
    resources = {"icedb": IceDBResource(root="s3://lake")}
    defs = dg.Definitions.merge(dg.Definitions([spec], resources=resources), build_table_definitions(spec.key))
    node = defs.resolve_asset_graph().get(spec.key)
    assert (node.is_external, node.kinds, node.owners, node.group_name) == (True, spec.kinds, spec.owners, "raw")


@pytest.mark.sampled(days=3)
def test_a_table_spec_defines_a_materialized_asset(run: AssetRun) -> None:
    spec = table_spec(run.name, partition_by=["n % 2 AS odd"], sort_by=["n"], owners=["team:data"])

    @dg.multi_asset(outs={"numbers": dg.AssetOut.from_spec(spec)}, name=run.name)
    def numbers() -> Any:
        return pa.table({"n": [1, 2]})

    run(numbers)
    assert run.table().spec.partition_by == ("n % 2 AS odd",)
    made = numbers.specs_by_key[dg.AssetKey(run.name)]
    assert (made.kinds, made.owners) == ({"icedb", "parquet"}, ["team:data"])


@pytest.mark.slow(seconds=30)
@pytest.mark.spark
def test_a_run_has_the_progress_of_spark(environment: dict[str, str], lake: IceDBResource, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    run_script("spark/spark_progress.py", lake.root, str(tmp_path / "result.json"))
    result = json.loads((tmp_path / "result.json").read_text())
    messages = [text for text in result["messages"] if text.startswith("Spark: ")]
    assert "Spark: stage 0: 0 of 2 tasks done, 2 running" in messages
    assert "Spark: 1 job, 2 tasks done" in messages
    assert len([text for text in messages if " job, " in text]) == 2  # the second is of the IO manager
    assert "INFO DAGScheduler: Job 0 finished" in result["output"]
    assert result["output"].count("INFO SparkContext: Starting job: collect") == 1
    assert lake.table("watched").snapshot().rows == 10


def test_a_spark_connect_session_reports_no_progress(caplog: pytest.LogCaptureFixture) -> None:
    class FakeRun:
        log = logging.getLogger("a run")

    session = pytest.importorskip("pyspark.sql.connect.session").SparkSession
    caplog.set_level("INFO", "a run")
    with spark_progress(FakeRun(), session.__new__(session), every_s=0):  # as it is without a server
        assert caplog.messages == ["Spark: a Spark Connect session provides neither progress nor its log"]
    assert len(caplog.messages) == 1
