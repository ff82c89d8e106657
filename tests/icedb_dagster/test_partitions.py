"""The partitions of a table that belong to an asset's partitions: by type, in every timezone, and by brute force."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import product
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

dg = pytest.importorskip("dagster")

from icedb.errors import InvalidOption
from icedb.sql.connections import connect_sandbox, quote_text
from icedb.sql.partition_expressions import parse_partition_by
from icedb.sql.predicates import matching
from icedb_dagster.partitioning.alignment import check_alignment
from icedb_dagster.partitioning.partitions import Selection, select_partitions

TIMESTAMPTZ = "TIMESTAMP WITH TIME ZONE"


def select(definition: Any, keys: Iterable[str], columns: dict[str, str] | None = None) -> Selection:
    return select_partitions(definition, keys, columns or {"": "c"}, table="lake/events")


def chosen(definition: Any, keys: Iterable[str], type_: str, values: Sequence[str]) -> list[str]:
    """Which of the values, as texts, belong to these partitions of the asset when the column is of that type."""
    predicate = select(definition, keys).predicate({"c": type_})
    matched = matching([f"c={v}" for v in values], predicate, {"c": type_}, table="lake/events")
    return [path.removeprefix("c=") for path in matched]


BERLIN = {"timezone": "Europe/Berlin"}
HOURS = dg.HourlyPartitionsDefinition("2024-01-01-00:00", end_date="2025-01-01-00:00", **BERLIN)
DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2025-01-01", **BERLIN)
MONTHS = dg.MonthlyPartitionsDefinition("2024-01-01", end_date="2025-01-01", **BERLIN)
YEARS = dg.TimeWindowPartitionsDefinition(cron_schedule="0 0 1 1 *", start="2020", fmt="%Y")
QUARTERS = dg.TimeWindowPartitionsDefinition(
    cron_schedule="*/15 * * * *", start="2024-01-01-00:00", fmt="%Y-%m-%d-%H:%M"
)
NUMBERED = dg.TimeWindowPartitionsDefinition(cron_schedule="0 0 * * *", start="20240101", fmt="%Y%m%d")


@pytest.mark.parametrize(
    ("definition", "key", "type_", "inside", "outside"),
    [
        (DAYS, "2024-07-01", TIMESTAMPTZ, ["2024-06-30 22:00:00+00", "2024-07-01 21:59:59+00"],
         ["2024-06-30 21:59:59+00", "2024-07-01 22:00:00+00"]),
        (DAYS, "2024-07-01", "TIMESTAMP", ["2024-07-01 00:00:00", "2024-07-01 23:59:59.999999"],
         ["2024-06-30 23:59:59", "2024-07-02 00:00:00"]),
        (DAYS, "2024-07-01", "DATE", ["2024-07-01"], ["2024-06-30", "2024-07-02"]),
        (DAYS, "2024-07-01", "VARCHAR", ["2024-07-01", "2024-07-01-23:00", "2024-07-01 05:00:00"],
         ["2024-07-02", "2024-07", "2024", "July", "2024-07-01 22:00:00+00"]),
        (MONTHS, "2024-02-01", "VARCHAR", ["2024-02-01", "2024-02-28", "2024-02"], ["2024-03-01", "2024-01-31"]),
        (MONTHS, "2024-02-01", "DATE", ["2024-02-01", "2024-02-28"], ["2024-01-31", "2024-03-01"]),
        # An hour is not within a quarter of it.
        (QUARTERS, "2024-01-01-12:00", "VARCHAR", ["2024-01-01-12:00", "2024-01-01 12:14:59"],
         ["2024-01-01-12", "2024-01-01", "2024-01-01-12:15"]),
        (HOURS, "2024-01-01-12:00", "VARCHAR", ["2024-01-01-12", "2024-01-01-12:00"], ["2024-01-01"]),
        (YEARS, "2024", "BIGINT", ["2024"], ["2025", "20240"]),
        (NUMBERED, "20240107", "INTEGER", ["20240107"],
         ["20240106"]),
        # A text that is a key is that partition, although it could be read as the day of another.
        (dg.DailyPartitionsDefinition("2024-01-01", fmt="%Y-%d-%m"), "2024-03-01", "VARCHAR", ["2024-03-01"],
         ["2024-01-03"]),
        (dg.DailyPartitionsDefinition("2024-01-01", hour_offset=3), "2024-01-02", "VARCHAR", ["2024-01-02"],
         ["2024-01-03", "2024-01-02-05:00"]),
        (dg.DailyPartitionsDefinition(datetime(2024, 1, 1), fmt="%d %b %Y"), "02 Jan 2024", "VARCHAR", ["02 Jan 2024"],
         ["2024-01-02"]),
        (dg.StaticPartitionsDefinition(["7", "it's"]), "7", "BIGINT", ["7"], ["70"]),
        (dg.StaticPartitionsDefinition(["7", "it's"]), "it's", "VARCHAR", ["it's"], ["its", "7"]),
        (dg.StaticPartitionsDefinition(["2024-01-02"]), "2024-01-02", "DATE", ["2024-01-02"], ["2024-01-03"]),
        (dg.DynamicPartitionsDefinition(name="shops"), "north", "VARCHAR", ["north"], ["North", "south"]),
    ],
)  # fmt: skip
def test_columns_are_compared_by_type(
    definition: Any, key: str, type_: str, inside: list[str], outside: list[str]
) -> None:
    null = "__HIVE_DEFAULT_PARTITION__"
    assert chosen(definition, [key], type_, [*inside, *outside, null]) == sorted(inside)


SPRING = ["2024-03-31-01:00", "2024-03-31-03:00"]
AUTUMN = ["2024-10-27-01:00", "2024-10-27-02:00", "2024-10-27-02:00+0100", "2024-10-27-03:00"]


@pytest.mark.sampled(days=3)
def test_hours_of_a_clock_change_are_distinct_instants() -> None:
    assert set(SPRING + AUTUMN) <= set(HOURS.get_partition_keys())
    hours = [datetime(2024, month, day, hour, tzinfo=UTC) for month, day in ((3, 31), (10, 27)) for hour in range(4)]
    values = [f"{hour:%Y-%m-%d %H:%M:%S}+00" for hour in hours]
    by_key = {key: chosen(HOURS, [key], TIMESTAMPTZ, values) for key in SPRING + AUTUMN}
    assert by_key == {
        key: [value]
        for key, value in zip(SPRING + AUTUMN, [*values[:2], "2024-10-26 23:00:00+00", *values[4:7]], strict=True)
        if value in values
    } | {AUTUMN[0]: []}


def test_wall_times_of_a_clock_change() -> None:
    values = [f"2024-03-31 0{hour}:30:00" for hour in range(5)]
    # No clock showed 02:30. A writer of that time means the hour after.
    assert chosen(HOURS, SPRING[:1], "TIMESTAMP", values) == [values[1]]
    assert chosen(HOURS, SPRING[1:], "TIMESTAMP", values) == values[2:4]
    values = [f"2024-10-27 0{hour}:30:00" for hour in range(5)]
    assert chosen(HOURS, AUTUMN, "TIMESTAMP", values) == values[1:4]
    assert chosen(HOURS, AUTUMN[1:3], "TIMESTAMP", values) == values[2:3]
    for keys in (AUTUMN[:2], AUTUMN[1:2], AUTUMN[2:3], AUTUMN[2:]):
        for type_ in ("TIMESTAMP", "VARCHAR"):  # `strftime` writes both hours as the key of the first
            with pytest.raises(InvalidOption, match=rf"occurs twice in .* is {type_}.*TIMESTAMP WITH TIME ZONE"):
                select(HOURS, keys).predicate({"c": type_})
    texts = [*AUTUMN, "2024-10-27 02:30:00"]
    assert chosen(HOURS, AUTUMN[1:3], "VARCHAR", texts) == sorted([*AUTUMN[1:3], "2024-10-27 02:30:00"])
    assert [chosen(HOURS, [key], "VARCHAR", texts) for key in AUTUMN[::3]] == [[key] for key in AUTUMN[::3]]


def test_a_day_that_begins_at_one_o_clock_is_a_date() -> None:
    beirut = dg.DailyPartitionsDefinition("2022-03-01", timezone="Asia/Beirut", end_date="2022-04-01")
    window = beirut.time_window_for_partition_key("2022-03-27")
    assert window.start.astimezone(UTC).astimezone(ZoneInfo("Asia/Beirut")).hour == 1
    assert chosen(beirut, ["2022-03-27"], "DATE", ["2022-03-26", "2022-03-27", "2022-03-28"]) == ["2022-03-27"]
    assert chosen(beirut, ["2022-03-26"], "TIMESTAMP", ["2022-03-26 23:00:00", "2022-03-27 00:00:00"]) == [
        "2022-03-26 23:00:00"
    ]


@pytest.mark.parametrize(
    ("definition", "key", "type_", "message"),
    [
        (HOURS, "2024-07-01-03:00", "DATE", "does not begin and end at midnight"),
        (DAYS, "2024-07-01", "BIGINT", "is not a whole number"),
        (DAYS, "2024-07-01", "DOUBLE", "is DOUBLE, but the asset's partitions are time windows"),
    ],
)
def test_a_column_without_the_partition_is_rejected(definition: Any, key: str, type_: str, message: str) -> None:
    with pytest.raises(InvalidOption, match=rf"lake/events: .*{message}.*partition_expr"):
        select(definition, [key]).predicate({"c": type_})


def test_an_unknown_partition_column_is_rejected() -> None:
    with pytest.raises(InvalidOption, match=r"partition_expr names the partition column 'c', but the table .*\['d'\]"):
        select(DAYS, ["2024-07-01"]).predicate({"d": "DATE"})
    assert select(DAYS, ["2024-07-01"]).predicate({"C": "DATE"}).startswith('"C" >= ')


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(
    ("definition", "keys", "expression", "type_"),
    [
        (DAYS, ["2024-02-01"], "date_trunc('month', ts)", "TIMESTAMP"),
        (DAYS, ["2024-02-29"], "CAST(date_trunc('month', \"Ts\") AS DATE)", "TIMESTAMP"),
        (DAYS, ["2024-01-31", "2024-02-01"], "strftime(ts, '%Y-%m')", "DATE"),
        (DAYS, ["2024-07-01"], "CASE WHEN ts IS NULL THEN 1 END", "DATE"),
        (DAYS, ["2024-07-01"], "date_trunc('day', ts)", TIMESTAMPTZ),  # in UTC
        (HOURS, ["2024-07-01-00:00"], "CAST(ts AS DATE)", "TIMESTAMP"),
        (QUARTERS, ["2024-07-01-00:00"], "strftime(ts, '%Y-%m-%d-%H:00')", TIMESTAMPTZ),
    ],
)
def test_larger_table_partitions_are_rejected(definition: Any, keys: list[str], expression: str, type_: str) -> None:
    parsed = parse_partition_by([f"{expression} AS C"], table="lake/events")
    with pytest.raises(InvalidOption, match=rf"{keys[-1]}' begins or ends .*column 'c' is '.*finer expression"):
        check_alignment(select(definition, keys), parsed, {"TS": type_})
    check_alignment(select(definition, keys), parsed, {})  # a table without rows


IN_BERLIN = "ts AT TIME ZONE 'Europe/Berlin'"


@pytest.mark.sampled(cases=4, days=3)
@pytest.mark.parametrize(
    ("definition", "expression", "type_"),
    [
        (DAYS, "CAST(ts AS DATE)", "TIMESTAMP"),
        (DAYS, f"CAST({IN_BERLIN} AS DATE)", TIMESTAMPTZ),
        (DAYS, "CAST(ts AT TIME ZONE 'UTC' AT TIME ZONE 'Europe/Berlin' AS DATE)", "TIMESTAMP"),  # the column is in UTC
        (MONTHS, "strftime(ts, '%Y-%m')", "DATE"),
        (MONTHS, "CAST(ts AS DATE)", "TIMESTAMP"),
        (HOURS, "date_trunc('hour', ts)", TIMESTAMPTZ),
        (HOURS, "ts", "TIMESTAMP"),
        (YEARS, "year(ts)", "TIMESTAMP"),
        (dg.DailyPartitionsDefinition("2022-01-01", timezone="Asia/Beirut", end_date="2023-01-01"),
         "CAST(ts AT TIME ZONE 'Asia/Beirut' AS DATE)", TIMESTAMPTZ),
        (dg.DailyPartitionsDefinition("2024-01-01", timezone="America/Havana", end_date="2025-01-01"),
         "CAST(ts AT TIME ZONE 'America/Havana' AS DATE)", TIMESTAMPTZ),
        # Expressions of no column, of two columns, and of a number cannot be checked.
        (DAYS, "1", "TIMESTAMP"), (DAYS, "hash(ts) % 4", "BIGINT"), (DAYS, "coalesce(day, ts)", "DATE"),
    ],
)  # fmt: skip
def test_a_table_may_have_finer_partitions_at_every_hour(definition: Any, expression: str, type_: str) -> None:
    parsed = parse_partition_by([f"{expression} AS c"], table="lake/events")
    keys = definition.get_partition_keys()
    for chosen_keys in (keys, keys[::2], keys[1::2]):  # a stretch of one partition has both its edges looked at
        check_alignment(select(definition, chosen_keys), parsed, {"ts": type_})


def test_asset_partitions_that_fill_a_table_partition_are_accepted() -> None:
    month = [key for key in DAYS.get_partition_keys() if key.startswith("2024-02")]
    by_month = parse_partition_by(["date_trunc('month', ts) AS c"], table="lake/events")
    check_alignment(select(DAYS, month), by_month, {"ts": "DATE"})


def test_an_empty_selection_is_no_partition() -> None:
    assert select(DAYS, []).predicate({"c": "DATE"}) == "false"


def test_days_without_a_gap_are_one_condition() -> None:
    keys = list(DAYS.get_partition_keys())
    year = select(DAYS, keys).predicate({"c": "DATE"})
    assert year == "\"c\" >= DATE '2024-01-01' AND \"c\" < DATE '2025-01-01'"
    assert select(DAYS, keys[:5] + keys[6:]).predicate({"c": "DATE"}).count(">=") == 2
    # Days that the definition leaves out are none of its partitions.
    weekend = [datetime(2024, 1, 3, tzinfo=UTC)]
    gaps = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-06", exclusions=weekend)
    left = chosen(gaps, gaps.get_partition_keys(), "DATE", [f"2024-01-0{n}" for n in range(1, 8)])
    assert left == ["2024-01-01", "2024-01-02", "2024-01-04", "2024-01-05"]


SHOPS = dg.StaticPartitionsDefinition(["north", "south", "west"])
DAYS_OF_SHOPS = dg.MultiPartitionsDefinition({"day": DAYS, "shop": SHOPS})


@pytest.mark.sampled(days=3)
@pytest.mark.long
@settings(max_examples=40)
@given(st.sets(st.sampled_from([f"2024-01-0{d}|{s}" for d in range(1, 5) for s in ("north", "south", "west")])))
def test_any_set_of_keys_of_two_dimensions_selects_exactly_these(keys: set[str]) -> None:
    selection = select(DAYS_OF_SHOPS, sorted(keys), {"day": "d", "shop": "s"})
    types = {"d": "DATE", "s": "VARCHAR"}
    paths = [f"d=2024-01-0{d}/s={s}" for d in range(1, 6) for s in ("north", "south", "west")]
    matched = matching(paths, selection.predicate(types), types, table="lake/events")
    assert {path.replace("d=", "").replace("/s=", "|") for path in matched} == keys


def test_a_product_of_dimensions_is_one_condition() -> None:
    keys = [f"2024-01-0{d}|{s}" for d, s in product(range(1, 5), ("north", "south"))]
    selection = select(DAYS_OF_SHOPS, keys, {"day": "d", "shop": "s"})
    assert selection.predicate({"d": "DATE", "s": "VARCHAR"}) == (
        "(\"d\" >= DATE '2024-01-01' AND \"d\" < DATE '2024-01-05') AND (\"s\" IN ('north', 'south'))"
    )


ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "America/Havana"]
YEAR = (datetime(2024, 1, 1), datetime(2025, 1, 1))
CHANGES = [datetime(2024, m, d) for m, d in ((3, 10), (3, 31), (4, 7), (10, 6), (10, 27), (11, 3))]


def windows_of(kind: str, zone: str) -> Any:
    start = YEAR[0].strftime("%Y-%m-%d")
    if kind == "hourly":
        return dg.HourlyPartitionsDefinition(f"{start}-00:00", timezone=zone, end_date="2025-01-01-00:00")
    made = {"daily": dg.DailyPartitionsDefinition, "weekly": dg.WeeklyPartitionsDefinition}
    return made.get(kind, dg.MonthlyPartitionsDefinition)(start, timezone=zone, end_date="2025-01-01")


DEFINITIONS = {(k, z): windows_of(k, z) for k in ("hourly", "daily", "weekly", "monthly") for z in ZONES}


@cache
def keys_of(kind: str, zone: str) -> list[str]:
    return list(DEFINITIONS[kind, zone].get_partition_keys())


def values_of(type_: str, instant: datetime, zone: ZoneInfo) -> str:
    wall = instant.astimezone(zone).replace(tzinfo=None)
    formats = {TIMESTAMPTZ: f"{instant:%Y-%m-%d %H:%M:%S}+00", "DATE": f"{wall:%Y-%m-%d}"}
    return formats.get(type_, f"{wall:%Y-%m-%d %H:%M:%S}")


@pytest.mark.sampled(days=6)
@pytest.mark.long
@settings(max_examples=50)
@given(st.data())
def test_windows_select_exactly_the_rows_within_them(data: st.DataObject) -> None:
    """Compare the selected instants with the windows, for each type of the column."""
    kind, zone = data.draw(st.sampled_from(sorted(DEFINITIONS)))
    definition, keys = DEFINITIONS[kind, zone], keys_of(kind, zone)
    near = data.draw(st.sampled_from(CHANGES))
    about = round(len(keys) * (near - YEAR[0]) / (YEAR[1] - YEAR[0])) + data.draw(st.integers(-40, 40))
    at = min(max(about, 0), len(keys) - 1)
    selected = [keys[n] for n in range(at, min(at + data.draw(st.integers(1, 6)), len(keys)))]
    selected = [key for n, key in enumerate(selected) if n == 0 or data.draw(st.booleans())]
    windows = [definition.time_window_for_partition_key(key) for key in selected]
    edges = [t.astimezone(UTC) for w in windows for t in (w.start, w.end)]
    steps = [timedelta(minutes=m) for m in (-90, -61, -60, -31, -30, -1, 0, 1, 29, 30, 59, 60, 90)]
    instants = sorted({edge + step for edge in edges for step in steps})
    expected = {i for i in instants if any(w.start.astimezone(UTC) <= i < w.end.astimezone(UTC) for w in windows)}

    for type_ in (TIMESTAMPTZ, "TIMESTAMP", "VARCHAR", "DATE"):
        if type_ == "DATE" and kind == "hourly":
            continue
        try:
            predicate = select(definition, selected).predicate({"c": type_})
        except InvalidOption:
            assert type_ in ("TIMESTAMP", "VARCHAR"), "instants are never ambiguous, and no day begins in such an hour"
            assert kind == "hourly", "an hour is repeated"
            continue
        assert type_ != "VARCHAR" or predicate.count("try_strptime") == 2 * len(spans(windows))
        candidates = [values_of(type_, i, ZoneInfo(zone)) for i in instants]
        assert {i for i, true in zip(instants, evaluate(predicate, type_, candidates), strict=True) if true} == expected


def spans(windows: Sequence[Any]) -> list[Any]:
    ends = {w.end.astimezone(UTC) for w in windows}
    return [w for w in windows if w.start.astimezone(UTC) not in ends]


def evaluate(predicate: str, type_: str, values: Sequence[str]) -> list[bool]:
    """Evaluate the predicate directly, because paths would be slow for thousands of values."""
    rows = ", ".join(f"({n}, CAST({quote_text(v)} AS {type_}))" for n, v in enumerate(values))
    with connect_sandbox() as con:
        answers = con.execute(f"SELECT {predicate} FROM (VALUES {rows}) AS t(n, c) ORDER BY n").fetchall()
    return [bool(true) for (true,) in answers]
