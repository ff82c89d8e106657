"""The verdict, text and metadata of each check of a table, and all checks as Dagster runs them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

dg = pytest.importorskip("dagster")

import icedb
from icedb.errors import InvalidOption, StoreUnavailable, UnsupportedType
from icedb.format.timing import DAY_MS, HOUR_MS
from icedb.testing import ClockedStore, FaultyStore, ManualClock, Request, create_table, open_table
from icedb.transaction.open_table import open_sibling, quarantine_name
from icedb_dagster import (
    FreshnessCheck,
    HorizonCheck,
    IceDBIOManager,
    IceDBResource,
    LogDepthCheck,
    ObjectsCheck,
    QuarantineCheck,
    SchemaCheck,
    SmallPartsCheck,
    TableChecks,
    build_table_checks,
    build_table_definitions,
    observable_table,
    table_spec,
)
from icedb_dagster.checks.check_context import CheckContext, Verdict
from icedb_dagster.checks.definitions import judge
from tests.support.object_stores.counting_proxy import CountingProxy

pytestmark = pytest.mark.dagster

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
KINDS = {
    "objects": ObjectsCheck,
    "small_parts": SmallPartsCheck,
    "log_depth": LogDepthCheck,
    "schema": SchemaCheck,
    "quarantine": QuarantineCheck,
    "freshness": FreshnessCheck,
    "horizon": HorizonCheck,
}


@pytest.fixture
def table(clocked: ClockedStore, clock: ManualClock) -> icedb.Table:
    """Return a table by day, sorted by time."""
    return create_table(clocked, clock, partition_by=["d"], sort_by=["ts"])


def verdict(table: icedb.Table, name: str, *, thresholds: icedb.Thresholds | None = None, **settings: Any) -> Verdict:
    """Run a check on a table."""
    context = CheckContext(table, thresholds or icedb.Thresholds(), name="events")
    return judge(context, name, KINDS[name](**settings))


def failing(table: icedb.Table, name: str, *texts: str, **settings: Any) -> Verdict:
    """Return the negative verdict of a check, whose description must contain these texts."""
    negative = verdict(table, name, **settings)
    assert not negative.passed, name
    assert [text for text in texts if text not in negative.description] == []
    return negative


def passing(table: icedb.Table, name: str, *texts: str, **settings: Any) -> Verdict:
    """Return the positive verdict of a check, whose description must contain these texts."""
    positive = verdict(table, name, **settings)
    assert positive.passed, positive.description
    assert [text for text in texts if text not in positive.description] == []
    return positive


def metadata(verdict: Verdict) -> dict[str, Any]:
    return {name: value.value for name, value in verdict.metadata.items()}


def insert(table: icedb.Table, clock: ManualClock, parts: int = 1, *, d: str = "2027-01-15", **more: Any) -> None:
    """Insert parts of one row at the clock's time, a millisecond apart."""
    for _ in range(parts):
        clock.advance(1)
        ts = datetime.fromtimestamp(clock.now_ms() / 1000, tz=UTC).replace(tzinfo=None)
        table.insert([{"d": d, "ts": ts, "n": 1, **more}])


# ------------------------------------------------------------------------------------------ objects


def test_missing_and_foreign_objects_fail(table: icedb.Table, clock: ManualClock, clocked: ClockedStore) -> None:
    insert(table, clock, 3)
    sound = passing(table, "objects")
    assert sound.description.startswith("Nothing is missing: 3 live parts")

    stray = table.handle.keys.part("d=2027-01-15", "b" * 32)
    clocked.create(stray, b"left by a crashed write")
    clock.advance(2 * DAY_MS)
    orphan = passing(table, "objects", stray)
    assert metadata(orphan)["orphans"] == 1

    foreign = f"{table.handle.keys.data_prefix.removesuffix('_data/')}<b>notes</b>.txt"
    clocked.create(foreign, b"x")
    result = failing(table, "objects", foreign, "icedb verify")
    assert "\\<b>notes" in metadata(result)["problems"], "names of objects are escaped"
    passing(table, "objects", foreign="allow")

    lost = table.snapshot().parts[0].key
    clocked.delete([lost])
    missing = failing(table, "objects", lost, "restore the object", foreign="allow")
    assert (metadata(missing)["errors"], metadata(missing)["warnings"]) == (1, 2)


def test_a_damaged_log_fails_each_check(table: icedb.Table, clock: ManualClock, clocked: ClockedStore) -> None:
    insert(table, clock)
    key = next(iter(table.handle.read().files))
    body = clocked.get(key).body
    clocked.delete([key])
    clocked.create(key, body[:-7])
    again = open_table(clocked, clock)
    needed = {"freshness": {"max_age": DAY}, "horizon": {"max_age": DAY}}
    for name in KINDS:
        settings = needed.get(name, {})
        broken = verdict(again, name, **settings)
        assert not broken.passed, name
        assert key in broken.description, name
    store = FaultyStore(clocked)
    deaf = open_table(store, clock)
    store.before = _no_answer
    for name in ("objects", "log_depth", "quarantine"):
        with pytest.raises(StoreUnavailable):
            verdict(deaf, name)


def _no_answer(request: Request) -> None:
    raise StoreUnavailable(f"no answer to {request}")


# ------------------------------------------------------------------------------------------ small parts, log depth


def test_small_parts_fail_above_the_threshold_or_the_ratio(table: icedb.Table, clock: ManualClock) -> None:
    few = icedb.Thresholds(hot_parts=12, cold_parts=8)
    insert(table, clock, 11)
    passing(table, "small_parts", thresholds=few)
    insert(table, clock)
    hot = failing(
        table,
        "small_parts",
        "the partition 'd=2027-01-15' has 12 small parts and should have less than 12.",
        "Start the job events_merge_newest or the job events_merge_oldest",
        thresholds=few,
    )
    assert metadata(hot)["worst partitions"].splitlines()[2] == "| d=2027-01-15 | 12 | 12 | hot |"
    assert metadata(hot)["part sizes"].startswith("![12 live parts")
    clock.advance(2 * HOUR_MS)
    assert "should have less than 8." in verdict(table, "small_parts", thresholds=few).description

    many = failing(table, "small_parts", "12 of 12 live parts (100%)", "less than 90%", ratio_max=0.9, parts_min=12)
    assert metadata(many)["small-part ratio"] == 1.0
    passing(table, "small_parts", ratio_max=0.9, parts_min=13, thresholds=icedb.Thresholds(cold_parts=13))
    table.merge()
    merged = passing(table, "small_parts", ratio_max=0.01, parts_min=0, thresholds=few)
    assert metadata(merged)["small parts"] == 0
    assert "part sizes" not in merged.metadata


def test_log_depth_fails_until_the_log_is_merged(table: icedb.Table, clock: ManualClock) -> None:
    few = icedb.Thresholds(log_files=10)
    insert(table, clock, 9)
    passing(table, "log_depth", thresholds=few)
    insert(table, clock)
    deep = failing(
        table, "log_depth", "reads 10 log files; it should be less than 10", "the job events_merge_log", thresholds=few
    )
    assert metadata(deep)["log files to merge"] == 10
    clock.advance(1000)
    table.merge_log()
    passing(table, "log_depth", thresholds=few)


# ------------------------------------------------------------------------------------------ schema


@pytest.mark.parametrize(
    ("columns", "additional", "difference"),
    [
        ({"ts": "TIMESTAMP", "N": "BIGINT", "d": "TEXT"}, "fail", None),
        ({"ts": "DATETIME", "n": "INT8"}, "allow", None),
        (pa.schema([("n", pa.int64())]), "allow", None),
        ({"n": "BIGINT", "ts": "TIMESTAMP"}, "fail", "| d | additional | *null* | VARCHAR |"),
        ({"n": "INTEGER"}, "allow", "| n | of another type | INTEGER | BIGINT |"),
        ({"n": "BIGINT", "email": "VARCHAR"}, "allow", "| email | missing | VARCHAR | *null* |"),
    ],
)
def test_columns_are_compared_with_the_declared_ones(
    table: icedb.Table, clock: ManualClock, columns: Any, additional: str, difference: str | None
) -> None:
    insert(table, clock)
    result = verdict(table, "schema", columns=columns, additional=additional)
    assert result.passed == (difference is None)
    if difference is not None:
        assert metadata(result)["differences"].splitlines()[2:] == [difference]
        assert f"'{difference.split()[1]}' is {difference.split(' | ')[1]}" in result.description


def test_declared_columns_are_compared_by_default(
    table: icedb.Table, clock: ManualClock, clocked: ClockedStore
) -> None:
    insert(table, clock)
    failing(table, "schema", "declares no columns", "Table.alter")
    table.alter(schema={"n": "BIGINT", "later": "DATE"})
    assert verdict(table, "schema").passed, "a declared column without values exists"
    again = open_table(clocked, clock)  # it has the first spec
    assert verdict(again, "schema").description == "All 2 declared columns are as declared."
    assert "'d' is additional" in verdict(table, "schema", additional="fail").description


def test_a_computed_partition_column_may_be_declared(clocked: ClockedStore, clock: ManualClock) -> None:
    table = create_table(clocked, clock, partition_by=["CAST(ts AS DATE) AS day"])
    table.insert([{"ts": datetime(2027, 1, 15)}])
    passing(table, "schema", columns={"ts": "TIMESTAMP", "day": "DATE"}, additional="fail")
    passing(table, "schema", columns={"ts": "TIMESTAMP"}, additional="fail")
    assert "'day' is of another type" in verdict(table, "schema", columns={"day": "VARCHAR"}).description


# ------------------------------------------------------------------------------------------ quarantine


def misfits(table: icedb.Table, clock: ManualClock, *values: str) -> None:
    clock.advance(1)
    ts = datetime.fromtimestamp(clock.now_ms() / 1000, tz=UTC).replace(tzinfo=None)
    table.insert([{"d": "2027-01-15", "ts": ts, "n": value} for value in values], on_conflict="quarantine")


def test_recent_quarantined_rows_are_counted(table: icedb.Table, clock: ManualClock, clocked: ClockedStore) -> None:
    insert(table, clock)
    passing(table, "quarantine", "the table has no quarantine")
    misfits(table, clock, "x", "<img src=x>")
    clock.advance(20 * HOUR_MS)
    misfits(table, clock, "y", "z", "[link](http://example.com)")
    result = failing(table, "quarantine", "5 rows did not fit in the last 1 d")
    assert (metadata(result)["recent rows"], metadata(result)["total rows"]) == (5, 5)
    assert "\\[link\\]" in metadata(result)["reasons"]
    assert "(http" in metadata(result)["reasons"]
    passing(table, "quarantine", rows_max=5)

    clock.advance(5 * HOUR_MS)  # the first two are older than a day now
    assert metadata(verdict(table, "quarantine"))["recent rows"] == 3
    aside = icedb.Table(open_sibling(table.handle, quarantine_name(table.handle)))
    aside.merge()
    assert len(aside.snapshot().parts) == 1
    assert metadata(verdict(table, "quarantine"))["recent rows"] == 3, "a part with older rows is opened"
    old = passing(table, "quarantine", window=HOUR)
    assert metadata(old) == {"recent rows": 0, "total rows": 5, "window": "1 h", "quarantine": aside.uri}


@pytest.mark.sampled(days=3)
def test_a_merge_of_the_quarantine_hides_no_rows(table: icedb.Table, clock: ManualClock, clocked: ClockedStore) -> None:
    insert(table, clock)
    misfits(table, clock, "x", "y")
    misfits(table, clock, "z")
    aside = icedb.Table(open_sibling(table.handle, quarantine_name(table.handle)))
    merges = []

    def merge_before_a_part_is_read(request: Request) -> None:
        if "quarantine/_data" in request.keys[0] and not merges:
            merges.append(aside.merge())

    store = FaultyStore(clocked)
    looking = open_table(store, clock)
    store.before = merge_before_a_part_is_read
    result = verdict(looking, "quarantine")
    assert len(aside.snapshot().parts) == 1, "the merge ran during the check"
    assert not result.passed
    assert metadata(result)["recent rows"] == 3


# ------------------------------------------------------------------------------------------ freshness


def test_a_table_without_new_rows_is_stale(table: icedb.Table, clock: ManualClock) -> None:
    failing(table, "freshness", "has never had a row", max_age=DAY)
    insert(table, clock, 2)
    came_ms = clock.now_ms()
    clock.set(came_ms + DAY_MS)
    fresh = passing(table, "freshness", max_age=DAY)
    assert metadata(fresh)["age (seconds)"] == 86_400
    assert metadata(fresh)["newest rows"] == came_ms / 1000
    table.merge()  # adds no rows
    clock.advance(1)
    failing(
        table,
        "freshness",
        "is over 1 d old, and it should be at most 1 d",
        "Check that the program that fills the table still runs.",
        max_age=DAY,
    )
    # The markers of the rows are forgotten, so rows may have arrived up to the horizon: the age is uncertain.
    clock.advance(2 * HOUR_MS)
    table.cleanup()
    clock.advance(1)
    assert table.handle.read(fresh=True).horizon_ms > came_ms
    passing(table, "freshness", max_age=DAY)


@pytest.mark.parametrize("sorted_by_it", [True, False], ids=["in-the-log", "in-the-parts"])
@pytest.mark.parametrize(
    ("type_", "timezone", "age_h"),
    [("TIMESTAMP", "UTC", 10), ("TIMESTAMP", "Asia/Tokyo", 19), ("TIMESTAMPTZ", "Asia/Tokyo", 10), ("DATE", "UTC", 3)],
)
def test_the_age_of_a_column_is_that_of_its_greatest_value(
    clocked: ClockedStore, clock: ManualClock, sorted_by_it: bool, type_: str, timezone: str, age_h: int
) -> None:
    clock.set(int(datetime(2027, 1, 16, 3, tzinfo=UTC).timestamp() * 1000))
    table = create_table(clocked, clock, sort_by=["at"] if sorted_by_it else [])
    for hour in (17, 16):
        clock.advance(1)
        at: Any = datetime(2027, 1, 15, hour)
        at = at.date() if type_ == "DATE" else at.replace(tzinfo=UTC) if type_ == "TIMESTAMPTZ" else at
        table.insert([{"at": at, "n": 1}, {"at": None, "n": 2}])
    settings = {"column": "AT", "timezone": timezone}
    fresh = passing(table, "freshness", max_age=age_h * HOUR + MINUTE, **settings)
    assert metadata(fresh)["age (seconds)"] // 3600 == age_h
    assert "the greatest 'AT' is" in fresh.description
    failing(table, "freshness", f"is over {age_h} h old", max_age=age_h * HOUR - MINUTE, **settings)


def test_the_age_of_a_column_opens_few_parts(table: icedb.Table, clock: ManualClock, clocked: ClockedStore) -> None:
    insert(table, clock, 5, at=datetime(2027, 1, 1))
    clock.advance(3 * HOUR_MS)
    insert(table, clock, 1, at=datetime(2027, 1, 1))
    newest = max(table.snapshot().parts, key=lambda part: part.created_ms)
    store = FaultyStore(clocked)
    passing(open_table(store, clock), "freshness", column="ts", max_age=HOUR)
    assert _opened(store) == []
    stale = verdict(open_table(store, clock), "freshness", column="at", max_age=HOUR)
    assert _opened(store) == [newest.key], "parts that were written earlier are not read"
    assert not stale.passed
    assert "2027-01-01" in stale.description
    clock.advance(2 * HOUR_MS)
    failing(open_table(clocked, clock), "freshness", "no value of 'at' was written since", column="at", max_age=HOUR)


def _opened(store: FaultyStore) -> list[str]:
    """Return the parts of which bytes were read."""
    return [key for request in store.requests if request.kind == "get" for key in request.keys if "_data/" in key]


def test_a_future_value_does_not_keep_a_table_fresh(table: icedb.Table, clock: ManualClock) -> None:
    insert(table, clock)
    table.insert([{"d": "x", "ts": datetime(9999, 12, 31), "n": 1}])
    clock.advance(3 * HOUR_MS)
    failing(table, "freshness", "is over 3 h old", column="ts", max_age=HOUR)
    assert "'n', which is BIGINT" in verdict(table, "freshness", column="n", max_age=HOUR).description
    assert "no such column" in verdict(table, "freshness", column="no", max_age=HOUR).description


@pytest.mark.parametrize("sorted_by_it", [True, False], ids=["in-the-log", "in-the-parts"])
def test_a_future_value_is_as_old_as_its_part(clocked: ClockedStore, clock: ManualClock, sorted_by_it: bool) -> None:
    table = create_table(clocked, clock, sort_by=["ts"] if sorted_by_it else [])
    table.insert([{"ts": datetime(9999, 12, 31)}, {"ts": None}])
    came_ms = table.snapshot().parts[0].created_ms
    clock.advance(30 * 60_000)
    table.insert([{"ts": datetime(2026, 1, 1)}])
    clock.advance(15 * 60_000)
    fresh = passing(table, "freshness", column="ts", max_age=HOUR)
    assert metadata(fresh)["newest rows"] == came_ms / 1000
    clock.advance(20 * 60_000)
    stale = verdict(table, "freshness", column="ts", max_age=HOUR)
    assert not stale.passed, "the rows are old, although the last commit is recent"


# ------------------------------------------------------------------------------------------ horizon


def test_the_horizon_check_has_a_minimum_and_a_maximum_age(table: icedb.Table, clock: ManualClock) -> None:
    both = {"min_age": timedelta(hours=12), "max_age": timedelta(hours=48)}
    insert(table, clock, 2)
    passing(table, "horizon", **both)
    table.merge()
    superseded_ms = clock.now_ms()
    clock.set(superseded_ms + 48 * HOUR_MS)
    passing(table, "horizon", **both)
    clock.advance(HOUR_MS + 1000)
    result = failing(table, "horizon", "superseded 2 d 1 h ago are still stored", "the job events_cleanup", **both)
    assert metadata(result)["superseded parts"] == 2

    table.cleanup()
    short = verdict(table, "horizon", min_age=timedelta(days=30), max_age=timedelta(days=31))
    horizon_ms = table.handle.read().horizon_ms
    assert horizon_ms
    assert not short.passed
    assert "min_age requires 30 d" in short.description
    assert metadata(short)["oldest snapshot"] == horizon_ms / 1000
    assert "a longer grace_ms" in short.description
    assert metadata(short)["superseded parts"] == 0


# ------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ObjectsCheck(foreign="ignore"), "ObjectsCheck: foreign must be one of 'fail', 'allow', not 'ignore'"),
        (lambda: LogDepthCheck(severity="error"), "severity must be one of 'ERROR', 'WARN', not 'error'"),
        (lambda: LogDepthCheck(blocking="yes"), "LogDepthCheck: blocking must be True or False"),
        (lambda: SmallPartsCheck(ratio_max=0), "ratio_max of the check small_parts is 0"),
        (lambda: SmallPartsCheck(ratio_max=True), "SmallPartsCheck: ratio_max must be a number, not True"),
        (lambda: SmallPartsCheck(parts_min=-1), "parts_min of the check small_parts is -1"),
        (lambda: SchemaCheck(columns={"a": "INTT"}), "the type of column 'a' is 'INTT'"),
        (lambda: SchemaCheck(columns={}), "of the check schema is empty"),
        (lambda: SchemaCheck(columns={"id": "INT", "ID": "BIGINT"}), "'id' and 'ID', which differ only in case"),
        (lambda: SchemaCheck(columns=["a"]), "must be a dict of column"),
        (lambda: QuarantineCheck(window=24), "QuarantineCheck: window must be a timedelta, not 24"),
        (lambda: QuarantineCheck(rows_max=1.5), "QuarantineCheck: rows_max must be a whole number, not 1.5"),
        (lambda: FreshnessCheck(max_age=timedelta(0)), "max_age of the check freshness"),
        (lambda: FreshnessCheck(max_age=timedelta(1), timezone="Mars/Olympus"), "timezone of the check freshness"),
        (lambda: FreshnessCheck(max_age=timedelta(1), column=""), "column of the check freshness is empty"),
        (lambda: HorizonCheck(), "neither min_age nor max_age"),
        (lambda: HorizonCheck(min_age=timedelta(2), max_age=timedelta(1)), "must be over its min_age"),
        (lambda: TableChecks(objects=SmallPartsCheck()), "objects must be an ObjectsCheck or None"),
        (lambda: TableChecks(objects=None, small_parts=None, log_depth=None, quarantine=None), "every check is None"),
        (lambda: TableChecks(thresholds={}), "thresholds must be a Thresholds, not a dict"),
    ],
)
def test_invalid_settings_of_a_check_are_rejected(make: Any, message: str) -> None:
    with pytest.raises(InvalidOption, match=message.replace("(", r"\(")):
        make()


def test_a_declared_type_that_parquet_cannot_hold_is_rejected() -> None:
    with pytest.raises(UnsupportedType, match="HUGEINT"):
        SchemaCheck(columns={"n": "HUGEINT"})


# ------------------------------------------------------------------------------------------ as Dagster runs them


@pytest.fixture
def lake(tmp_path: Path) -> IceDBResource:
    return IceDBResource(root=str(tmp_path / "lake"))


def run_job(defs: dg.Definitions, job: str, **options: Any) -> dict[str, dg.AssetCheckEvaluation]:
    """Run a job on a new instance and return the evaluation of each check."""
    with dg.DagsterInstance.ephemeral() as instance:
        run = defs.resolve_job_def(job).execute_in_process(instance=instance, raise_on_error=False, **options)
        assert run.success
        return {evaluation.check_name: evaluation for evaluation in run.get_asset_check_evaluations()}


def checked(lake: IceDBResource, checks: TableChecks | None = None, assets: Sequence[Any] = ()) -> dg.Definitions:
    """Define the table `events` with checks and stopped schedules."""
    return dg.Definitions.merge(
        build_table_definitions("events", checks=checks or TableChecks()),
        dg.Definitions(assets=assets, resources={"icedb": lake, "io_manager": IceDBIOManager(icedb=lake)}),
    )


@dg.asset(key="events", partitions_def=dg.StaticPartitionsDefinition(["a", "b"]), metadata={"partition_expr": "p"})
def filled_here(context: dg.AssetExecutionContext) -> pa.Table:
    return pa.table({"p": [context.partition_key], "n": [1]})


ASSETS = {
    "none": list,
    "materialized": lambda: [filled_here],
    "external": lambda: [table_spec("events")],
    "observable": lambda: [observable_table("events")],
}


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("kind", ASSETS)
def test_assets_of_every_kind_are_checked_by_a_job_of_the_table(lake: IceDBResource, kind: str) -> None:
    lake.table_or_create("events").insert([{"n": 1}])
    severe = LogDepthCheck(severity="ERROR")
    defs = checked(lake, TableChecks(small_parts=None, log_depth=severe), ASSETS[kind]())
    dg.Definitions.validate_loadable(defs)
    results = run_job(defs, "events_checks")
    assert {n: (e.passed, e.severity.value) for n, e in results.items()} == {
        "objects": (True, "ERROR"),
        "log_depth": (True, "ERROR"),
        "quarantine": (True, "WARN"),
    }
    assert all(e.asset_key == dg.AssetKey("events") and e.description for e in results.values())
    schedule = next(s for s in defs.schedules or () if s.name == "events_checks_schedule")
    assert (schedule.cron_schedule, schedule.default_status) == ("23 * * * *", dg.DefaultScheduleStatus.STOPPED)


@pytest.mark.sampled(days=3)
def test_checks_of_a_missing_table_fail(lake: IceDBResource) -> None:
    results = run_job(checked(lake), "events_checks")
    assert set(results) == {"objects", "small_parts", "log_depth", "quarantine"}
    assert all(not e.passed and "there is no table" in (e.description or "") for e in results.values())


@pytest.mark.sampled(days=3)
def test_a_materialization_runs_the_checks_of_its_rows_and_a_job_runs_any(lake: IceDBResource) -> None:
    key = dg.AssetKey("events")
    run = {"asset_selection": [key], "partition_key": "a"}
    assert set(run_job(checked(lake, assets=[filled_here]), "__ASSET_JOB", **run)) == {"quarantine"}
    blocking = TableChecks(small_parts=SmallPartsCheck(blocking=True))
    assert set(run_job(checked(lake, blocking, [filled_here]), "__ASSET_JOB", **run)) == {"quarantine", "small_parts"}
    only_health = TableChecks(quarantine=None)
    assert not run_job(checked(lake, only_health, [filled_here]), "__ASSET_JOB", **run)
    always = TableChecks(with_materializations=True)
    results = run_job(checked(lake, always, [filled_here]), "__ASSET_JOB", **run)
    assert len(results) == 4
    assert all(e.passed for e in results.values())
    assert results["objects"].description == "Nothing is missing: 1 live part with the sizes in the log."
    one = build_table_checks("events")
    alone = dg.define_asset_job("alone", selection=dg.AssetSelection.checks(dg.AssetCheckKey(key, "log_depth")))
    resources = {"icedb": lake}
    assert set(run_job(dg.Definitions(asset_checks=[one], jobs=[alone], resources=resources), "alone")) == {"log_depth"}


@pytest.mark.sampled(days=3)
def test_a_failed_blocking_check_skips_downstream_assets(lake: IceDBResource) -> None:
    made = []

    @dg.asset(deps=["events"])
    def downstream() -> None:
        made.append(1)

    for blocking in (True, False):
        wrong = SchemaCheck(columns={"n": "VARCHAR"}, blocking=blocking)
        defs = checked(lake, TableChecks(schema=wrong), [filled_here, downstream])
        selection = [dg.AssetKey("events"), dg.AssetKey("downstream")]
        with dg.DagsterInstance.ephemeral() as instance:
            defs.resolve_job_def("__ASSET_JOB").execute_in_process(
                instance=instance, raise_on_error=False, asset_selection=selection, partition_key="a"
            )
        assert len(made) == (0 if blocking else 1)


def test_an_observation_has_the_snapshot_as_its_data_version(lake: IceDBResource) -> None:
    key = dg.AssetKey("events")
    defs = dg.Definitions(assets=[observable_table(key, description="d")], resources={"icedb": lake})
    with dg.DagsterInstance.ephemeral() as instance:
        job = defs.resolve_job_def("__ASSET_JOB")
        failed = job.execute_in_process(instance=instance, raise_on_error=False, asset_selection=[key])
        error = failed.failure_data_for_node("events_observe")
        assert error is not None
        assert "there is no table" in str(error.error)
        table = lake.table_or_create(key)
        versions = []
        for change in (True, False, True):
            if change:
                table.insert([{"n": 1}])
            assert job.execute_in_process(instance=instance, asset_selection=[key]).success
            event = instance.fetch_observations(key, limit=1).records[0].asset_observation
            assert event is not None
            assert event.metadata["dagster/row_count"].value == table.snapshot().rows
            versions.append(event.data_version)
        assert versions[0] == versions[1] != versions[2] == table.snapshot().id


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_the_requests_of_all_checks_do_not_grow_with_the_parts(s3: Any, s3_server: Any) -> None:
    with CountingProxy(s3_server.endpoint).running() as proxy:
        options = s3.storage_options | {"AWS_ENDPOINT_URL": proxy.endpoint}
        row = {"ts": datetime(2026, 1, 1)}
        checks = TableChecks(
            schema=SchemaCheck(columns={"n": "BIGINT"}),
            freshness=FreshnessCheck(max_age=timedelta(days=9999), column="ts"),
            horizon=HorizonCheck(max_age=DAY),
        )
        counts = []
        for parts in (2, 60):
            uri = f"{s3.uri}/{parts}"
            table = icedb.Table.create(uri, partition_by=["n"], sort_by=["ts"], storage_options=options)
            table.insert([{"n": 0, **row}, {"n": "x", **row}], on_conflict="quarantine")
            table.insert([{"n": n, **row} for n in range(1, parts)])
            proxy.reset()
            look = CheckContext(icedb.Table.open(uri, storage_options=options), icedb.Thresholds(), name="events")
            for name, settings in checks.chosen.items():
                assert judge(look, name, settings).passed == (name != "quarantine")
            assert look.health.live_parts == parts
            counts.append(len(proxy.requests))
        assert counts[0] == counts[1] <= 30
