"""What each check of a table finds, says and counts; and all of them as Dagster runs them."""

# No `from __future__ import annotations` here: Dagster reads the annotations of functions as objects.
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

dg = pytest.importorskip("dagster")

# ruff: noqa: E402 - without the extra there is nothing to import
import icedb
from icedb.errors import InvalidOption, StoreUnavailable, UnsupportedType
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

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
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
    """A table by day, sorted by time."""
    return create_table(clocked, clock, partition_by=["d"], sort_by=["ts"])


def verdict(table: icedb.Table, name: str, *, thresholds: icedb.Thresholds | None = None, **settings: Any) -> Verdict:
    """What a check says of a table that was just opened."""
    look = CheckContext(table, thresholds or icedb.Thresholds(), name="events")
    return judge(look, name, KINDS[name](**settings))


def told(given: Verdict) -> dict[str, Any]:
    return {name: value.value for name, value in given.metadata.items()}


def insert(table: icedb.Table, clock: ManualClock, parts: int = 1, *, d: str = "2027-01-15", **more: Any) -> None:
    """So many parts of one row, at the clock's time, a millisecond apart."""
    for _ in range(parts):
        clock.advance(1)
        ts = datetime.fromtimestamp(clock.now_ms() / 1000, tz=UTC).replace(tzinfo=None)
        table.insert([{"d": d, "ts": ts, "n": 1, **more}])


# ------------------------------------------------------------------------------------------ objects


def test_a_missing_part_and_a_foreign_object_fail_and_an_orphan_is_only_told(
    table: icedb.Table, clock: ManualClock, clocked: ClockedStore
) -> None:
    insert(table, clock, 3)
    sound = verdict(table, "objects")
    assert sound.passed
    assert sound.description.startswith("Nothing is missing: 3 live parts")

    stray = table.handle.keys.part("d=2027-01-15", "b" * 32)
    clocked.create(stray, b"left by a crashed write")
    clock.advance(2 * DAY_MS)
    orphan = verdict(table, "objects")
    assert orphan.passed
    assert stray in orphan.description
    assert told(orphan)["orphans"] == 1

    foreign = f"{table.handle.keys.data_prefix.removesuffix('_data/')}<b>notes</b>.txt"
    clocked.create(foreign, b"x")
    found = verdict(table, "objects")
    assert not found.passed
    assert foreign in found.description
    assert "icedb verify" in found.description
    assert "\\<b>notes" in told(found)["problems"], "the name of an object is no HTML"
    assert verdict(table, "objects", foreign="allow").passed

    lost = table.snapshot().parts[0].key
    clocked.delete([lost])
    missing = verdict(table, "objects", foreign="allow")
    assert not missing.passed
    assert lost in missing.description
    assert "restore the object" in missing.description
    assert (told(missing)["errors"], told(missing)["warnings"]) == (1, 2)


def test_a_log_that_cannot_be_read_fails_each_check_and_a_store_that_does_not_answer_the_run(
    table: icedb.Table, clock: ManualClock, clocked: ClockedStore
) -> None:
    insert(table, clock)
    key = next(iter(table.handle.read().files))
    body = clocked.get(key).body
    clocked.delete([key])
    clocked.create(key, body[:-7])
    again = open_table(clocked, clock)
    needed = {"freshness": {"max_age": timedelta(days=1)}, "horizon": {"max_age": timedelta(days=1)}}
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


def test_small_parts_fail_beyond_a_partition_s_threshold_by_its_heat_and_beyond_the_ratio(
    table: icedb.Table, clock: ManualClock
) -> None:
    few = icedb.Thresholds(hot_parts=12, cold_parts=8)
    insert(table, clock, 11)
    assert verdict(table, "small_parts", thresholds=few).passed
    insert(table, clock)
    hot = verdict(table, "small_parts", thresholds=few)
    assert not hot.passed
    assert "the partition 'd=2027-01-15' has 12 small parts and should have less than 12." in hot.description
    assert "Start the job events_merge_newest or the job events_merge_oldest" in hot.description
    assert told(hot)["worst partitions"].splitlines()[2] == "| d=2027-01-15 | 12 | 12 | hot |"
    assert told(hot)["part sizes"].startswith("![12 live parts")
    clock.advance(2 * HOUR_MS)
    assert "should have less than 8." in verdict(table, "small_parts", thresholds=few).description

    many = verdict(table, "small_parts", ratio_max=0.9, parts_min=12)
    assert not many.passed
    assert "12 of 12 live parts (100%)" in many.description
    assert "less than 90%" in many.description
    assert told(many)["small-part ratio"] == 1.0
    assert verdict(table, "small_parts", ratio_max=0.9, parts_min=13, thresholds=icedb.Thresholds(cold_parts=13)).passed
    table.merge()
    merged = verdict(table, "small_parts", ratio_max=0.01, parts_min=0, thresholds=few)
    assert merged.passed
    assert told(merged)["small parts"] == 0
    assert "part sizes" not in merged.metadata


def test_log_depth_fails_from_the_threshold_on_and_passes_after_a_merge_of_the_log(
    table: icedb.Table, clock: ManualClock
) -> None:
    few = icedb.Thresholds(log_files=10)
    insert(table, clock, 9)
    assert verdict(table, "log_depth", thresholds=few).passed
    insert(table, clock)
    deep = verdict(table, "log_depth", thresholds=few)
    assert not deep.passed
    assert "reads 10 log files; it should be less than 10" in deep.description
    assert "the job events_merge_log" in deep.description
    assert told(deep)["log files to merge"] == 10
    clock.advance(1000)
    table.merge_log()
    assert verdict(table, "log_depth", thresholds=few).passed


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
def test_columns_are_compared_with_those_that_were_declared(
    table: icedb.Table, clock: ManualClock, columns: Any, additional: str, difference: str | None
) -> None:
    insert(table, clock)
    found = verdict(table, "schema", columns=columns, additional=additional)
    assert found.passed == (difference is None)
    if difference is not None:
        assert told(found)["differences"].splitlines()[2:] == [difference]
        assert f"'{difference.split()[1]}' is {difference.split(' | ')[1]}" in found.description


def test_without_columns_those_that_the_table_declares_are_compared(
    table: icedb.Table, clock: ManualClock, clocked: ClockedStore
) -> None:
    insert(table, clock)
    nothing = verdict(table, "schema")
    assert not nothing.passed
    assert "declares no columns" in nothing.description
    assert "Table.alter" in nothing.description
    table.alter(schema={"n": "BIGINT", "later": "DATE"})
    assert verdict(table, "schema").passed, "a declared column that no batch has brought yet is there"
    again = open_table(clocked, clock)  # it knows the spec that the table was created with
    assert verdict(again, "schema").description == "All 2 declared columns are as declared."
    assert "'d' is additional" in verdict(table, "schema", additional="fail").description


def test_a_partition_column_that_is_computed_may_be_declared_and_need_not_be(
    clocked: ClockedStore, clock: ManualClock
) -> None:
    table = create_table(clocked, clock, partition_by=["CAST(ts AS DATE) AS day"])
    table.insert([{"ts": datetime(2027, 1, 15)}])
    assert verdict(table, "schema", columns={"ts": "TIMESTAMP", "day": "DATE"}, additional="fail").passed
    assert verdict(table, "schema", columns={"ts": "TIMESTAMP"}, additional="fail").passed
    assert "'day' is of another type" in verdict(table, "schema", columns={"day": "VARCHAR"}).description


# ------------------------------------------------------------------------------------------ quarantine


def misfits(table: icedb.Table, clock: ManualClock, *values: str) -> None:
    clock.advance(1)
    ts = datetime.fromtimestamp(clock.now_ms() / 1000, tz=UTC).replace(tzinfo=None)
    table.insert([{"d": "2027-01-15", "ts": ts, "n": value} for value in values], on_conflict="quarantine")


def test_rows_that_went_to_the_quarantine_lately_are_counted_merged_or_not(
    table: icedb.Table, clock: ManualClock, clocked: ClockedStore
) -> None:
    insert(table, clock)
    none = verdict(table, "quarantine")
    assert none.passed
    assert "the table has no quarantine" in none.description
    misfits(table, clock, "x", "<img src=x>")
    clock.advance(20 * HOUR_MS)
    misfits(table, clock, "y", "z", "[link](http://example.com)")
    found = verdict(table, "quarantine")
    assert not found.passed
    assert "5 rows did not fit in the last 1 d" in found.description
    assert (told(found)["recent rows"], told(found)["total rows"]) == (5, 5)
    assert "\\[link\\]" in told(found)["reasons"]
    assert "(http" in told(found)["reasons"]
    assert verdict(table, "quarantine", rows_max=5).passed

    clock.advance(5 * HOUR_MS)  # the first two are older than a day now
    assert told(verdict(table, "quarantine"))["recent rows"] == 3
    aside = icedb.Table(open_sibling(table.handle, quarantine_name(table.handle)))
    aside.merge()
    assert len(aside.snapshot().parts) == 1
    assert told(verdict(table, "quarantine"))["recent rows"] == 3, "a part that holds older rows too is opened"
    old = verdict(table, "quarantine", window=timedelta(hours=1))
    assert old.passed
    assert told(old) == {
        "recent rows": 0,
        "total rows": 5,
        "window": "1 h",
        "quarantine": aside.uri,
    }


def test_rows_of_a_quarantine_that_is_merged_during_the_look_are_counted_all_the_same(
    table: icedb.Table, clock: ManualClock, clocked: ClockedStore
) -> None:
    insert(table, clock)
    misfits(table, clock, "x", "y")
    misfits(table, clock, "z")
    aside = icedb.Table(open_sibling(table.handle, quarantine_name(table.handle)))
    looks = []

    def merge_before_the_second_look(request: Request) -> None:
        if request.kind == "list" and "quarantine/_log" in request.keys[0]:
            looks.append(request)
            if len(looks) == 2:
                aside.merge()

    store = FaultyStore(clocked)
    looking = open_table(store, clock)
    store.before = merge_before_the_second_look
    found = verdict(looking, "quarantine")
    assert len(aside.snapshot().parts) == 1, "the merge came in between"
    assert not found.passed
    assert told(found)["recent rows"] == 3


# ------------------------------------------------------------------------------------------ freshness


def test_a_table_is_stale_when_it_is_certain_that_no_rows_came(table: icedb.Table, clock: ManualClock) -> None:
    day = timedelta(days=1)
    empty = verdict(table, "freshness", max_age=day)
    assert not empty.passed
    assert "has never had a row" in empty.description
    insert(table, clock, 2)
    came_ms = clock.now_ms()
    clock.set(came_ms + DAY_MS)
    fresh = verdict(table, "freshness", max_age=day)
    assert fresh.passed
    assert told(fresh)["age (seconds)"] == 86_400
    assert told(fresh)["newest rows"] == came_ms / 1000
    table.merge()  # moves rows, and brings none
    clock.advance(1)
    stale = verdict(table, "freshness", max_age=day)
    assert not stale.passed
    assert "is over 1 d old, and it should be at most 1 d" in stale.description
    assert "Check that the program that fills the table still runs." in stale.description
    # When the rows' own markers are forgotten, they may have come up to the horizon: then it is no longer certain.
    clock.advance(2 * HOUR_MS)
    table.cleanup()
    clock.advance(1)
    assert table.handle.read(fresh=True).horizon_ms > came_ms
    assert verdict(table, "freshness", max_age=day).passed


@pytest.mark.parametrize("sorted_by_it", [True, False], ids=["in-the-log", "in-the-parts"])
@pytest.mark.parametrize(
    ("type_", "timezone", "age_h"),
    [("TIMESTAMP", "UTC", 10), ("TIMESTAMP", "Asia/Tokyo", 19), ("TIMESTAMPTZ", "Asia/Tokyo", 10), ("DATE", "UTC", 3)],
)
def test_the_age_of_a_column_is_that_of_its_greatest_value_in_its_time_zone(
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
    fresh = verdict(table, "freshness", max_age=timedelta(hours=age_h, minutes=1), **settings)
    assert fresh.passed
    assert told(fresh)["age (seconds)"] // 3600 == age_h
    assert "the greatest 'AT' is" in fresh.description
    stale = verdict(table, "freshness", max_age=timedelta(hours=age_h) - timedelta(minutes=1), **settings)
    assert not stale.passed
    assert f"is over {age_h} h old" in stale.description


def test_a_column_s_age_costs_no_part_if_the_log_has_it_and_only_parts_that_can_matter_if_not(
    table: icedb.Table, clock: ManualClock, clocked: ClockedStore
) -> None:
    insert(table, clock, 5, at=datetime(2027, 1, 1))
    clock.advance(3 * HOUR_MS)
    insert(table, clock, 1, at=datetime(2027, 1, 1))
    newest = max(table.snapshot().parts, key=lambda part: part.created_ms)
    store = FaultyStore(clocked)
    assert verdict(open_table(store, clock), "freshness", column="ts", max_age=timedelta(hours=1)).passed
    assert _opened(store) == []
    stale = verdict(open_table(store, clock), "freshness", column="at", max_age=timedelta(hours=1))
    assert _opened(store) == [newest.key], "what was written earlier cannot be newer"
    assert not stale.passed
    assert "2027-01-01" in stale.description
    clock.advance(2 * HOUR_MS)
    unknown = verdict(open_table(clocked, clock), "freshness", column="at", max_age=timedelta(hours=1))
    assert not unknown.passed
    assert "no value of 'at' was written since" in unknown.description


def _opened(store: FaultyStore) -> list[str]:
    """The parts of which something was read."""
    return [key for request in store.requests if request.kind == "get" for key in request.keys if "_data/" in key]


def test_a_value_that_lies_ahead_does_not_keep_a_table_fresh_and_what_is_no_time_is_refused(
    table: icedb.Table, clock: ManualClock
) -> None:
    insert(table, clock)
    table.insert([{"d": "x", "ts": datetime(9999, 12, 31), "n": 1}])
    clock.advance(3 * HOUR_MS)
    stale = verdict(table, "freshness", column="ts", max_age=timedelta(hours=1))
    assert not stale.passed
    assert "is over 3 h old" in stale.description
    assert "'n', which is BIGINT" in verdict(table, "freshness", column="n", max_age=timedelta(hours=1)).description
    assert "no such column" in verdict(table, "freshness", column="no", max_age=timedelta(hours=1)).description


@pytest.mark.parametrize("sorted_by_it", [True, False], ids=["in-the-log", "in-the-parts"])
def test_a_value_that_lies_ahead_is_as_new_as_its_own_part_however_many_old_rows_come_later(
    clocked: ClockedStore, clock: ManualClock, sorted_by_it: bool
) -> None:
    table = create_table(clocked, clock, sort_by=["ts"] if sorted_by_it else [])
    table.insert([{"ts": datetime(9999, 12, 31)}, {"ts": None}])
    came_ms = table.snapshot().parts[0].created_ms
    clock.advance(30 * 60_000)
    table.insert([{"ts": datetime(2026, 1, 1)}])
    clock.advance(15 * 60_000)
    fresh = verdict(table, "freshness", column="ts", max_age=timedelta(hours=1))
    assert fresh.passed
    assert told(fresh)["newest rows"] == came_ms / 1000
    clock.advance(20 * 60_000)
    stale = verdict(table, "freshness", column="ts", max_age=timedelta(hours=1))
    assert not stale.passed, "rows came 35 minutes ago, and these are old"


# ------------------------------------------------------------------------------------------ horizon


def test_the_horizon_is_as_far_back_as_promised_and_deleted_rows_are_gone_in_time(
    table: icedb.Table, clock: ManualClock
) -> None:
    both = {"min_age": timedelta(hours=12), "max_age": timedelta(hours=48)}
    insert(table, clock, 2)
    assert verdict(table, "horizon", **both).passed
    table.merge()
    superseded_ms = clock.now_ms()
    clock.set(superseded_ms + 48 * HOUR_MS)
    assert verdict(table, "horizon", **both).passed
    clock.advance(HOUR_MS + 1000)
    kept = verdict(table, "horizon", **both)
    assert not kept.passed
    assert "superseded 2 d 1 h ago are still stored" in kept.description
    assert "the job events_cleanup" in kept.description
    assert told(kept)["superseded parts"] == 2

    table.cleanup()
    short = verdict(table, "horizon", min_age=timedelta(days=30), max_age=timedelta(days=31))
    horizon_ms = table.handle.read().horizon_ms
    assert horizon_ms
    assert not short.passed
    assert "min_age requires 30 d" in short.description
    assert told(short)["oldest snapshot"] == horizon_ms / 1000
    assert "a longer grace_ms" in short.description
    assert told(short)["superseded parts"] == 0


# ------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("make", "told"),
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
def test_what_makes_no_sense_is_refused_by_name(make: Any, told: str) -> None:
    with pytest.raises(InvalidOption, match=told.replace("(", r"\(")):
        make()


def test_a_declared_type_that_parquet_cannot_hold_is_refused() -> None:
    with pytest.raises(UnsupportedType, match="HUGEINT"):
        SchemaCheck(columns={"n": "HUGEINT"})


# ------------------------------------------------------------------------------------------ as Dagster runs them


@pytest.fixture
def lake(tmp_path: Path) -> IceDBResource:
    return IceDBResource(root=str(tmp_path / "lake"))


def run_job(defs: dg.Definitions, job: str, **options: Any) -> dict[str, dg.AssetCheckEvaluation]:
    """What each check of a run said, on an instance of its own."""
    with dg.DagsterInstance.ephemeral() as instance:
        run = defs.resolve_job_def(job).execute_in_process(instance=instance, raise_on_error=False, **options)
        assert run.success
        return {evaluation.check_name: evaluation for evaluation in run.get_asset_check_evaluations()}


def checked(lake: IceDBResource, checks: TableChecks | None = None, assets: Sequence[Any] = ()) -> dg.Definitions:
    """A table `events` with checks, and nothing that starts by itself."""
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


@pytest.mark.parametrize("kind", ASSETS)
def test_assets_of_every_kind_are_checked_by_a_job_of_the_table(lake: IceDBResource, kind: str) -> None:
    lake.table_or_create("events").insert([{"n": 1}])
    severe = LogDepthCheck(severity="ERROR")
    defs = checked(lake, TableChecks(small_parts=None, log_depth=severe), ASSETS[kind]())
    dg.Definitions.validate_loadable(defs)
    found = run_job(defs, "events_checks")
    assert {n: (e.passed, e.severity.value) for n, e in found.items()} == {
        "objects": (True, "ERROR"),
        "log_depth": (True, "ERROR"),
        "quarantine": (True, "WARN"),
    }
    assert all(e.asset_key == dg.AssetKey("events") and e.description for e in found.values())
    schedule = next(s for s in defs.schedules or () if s.name == "events_checks_schedule")
    assert (schedule.cron_schedule, schedule.default_status) == ("23 * * * *", dg.DefaultScheduleStatus.STOPPED)


def test_checks_of_a_table_that_is_not_there_fail_and_say_so(lake: IceDBResource) -> None:
    found = run_job(checked(lake), "events_checks")
    assert set(found) == {"objects", "small_parts", "log_depth", "quarantine"}
    assert all(not e.passed and "there is no table" in (e.description or "") for e in found.values())


def test_an_asset_that_is_materialized_is_checked_in_the_same_run_and_one_check_may_be_run_alone(
    lake: IceDBResource,
) -> None:
    defs = checked(lake, assets=[filled_here])
    key = dg.AssetKey("events")
    found = run_job(defs, "__ASSET_JOB", asset_selection=[key], partition_key="a")
    assert len(found) == 4
    assert all(e.passed for e in found.values())
    assert found["objects"].description == "Nothing is missing: 1 live part with the sizes in the log."
    one = build_table_checks("events")
    alone = dg.define_asset_job("alone", selection=dg.AssetSelection.checks(dg.AssetCheckKey(key, "log_depth")))
    resources = {"icedb": lake}
    assert set(run_job(dg.Definitions(asset_checks=[one], jobs=[alone], resources=resources), "alone")) == {"log_depth"}


def test_a_blocking_check_that_fails_keeps_assets_downstream_from_being_made(lake: IceDBResource) -> None:
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


def test_an_observation_has_the_snapshot_as_its_data_version_and_needs_a_table(lake: IceDBResource) -> None:
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


@pytest.mark.s3
def test_a_look_costs_a_handful_of_requests_however_many_parts_there_are(s3: Any, s3_server: Any) -> None:
    with CountingProxy(s3_server.endpoint).running() as proxy:
        options = s3.storage_options | {"AWS_ENDPOINT_URL": proxy.endpoint}
        row = {"ts": datetime(2026, 1, 1)}
        checks = TableChecks(
            schema=SchemaCheck(columns={"n": "BIGINT"}),
            freshness=FreshnessCheck(max_age=timedelta(days=9999), column="ts"),
            horizon=HorizonCheck(max_age=timedelta(days=1)),
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
