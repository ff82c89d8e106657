"""A user's actions in Dagster's UI, in this order. The displayed values are compared with the tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.dagster.dagster_platform import until
from tests.ui.conftest import Pictures
from tests.ui.example_platform import DAYS, ExamplePlatform

# For all tests together and the start of the platform: Spark, Postgres, three servers.
pytestmark = pytest.mark.timeout(900)

TABLES = {"events", "events_quarantine", "page_views", "sessions", "daily_metrics"}
SENSOR = "events_maintenance_sensor"
SCHEDULE = "events_verify_schedule"


@pytest.fixture(autouse=True)
def _folder_for_what_a_failure_leaves(tmp_path: Path) -> None:
    """Set the folder for the picture of a failure."""


def test_a_merge_is_launched_by_a_click_and_succeeds(page: Page, platform: ExamplePlatform, pictures: Pictures) -> None:
    before = platform.table("events").snapshot()
    page.goto("/locations/web_analytics/jobs/events_merge_oldest/playground")
    expect(page.get_by_text("No errors")).to_be_visible()
    page.get_by_role("button", name="Launch Run").click()
    page.wait_for_url("**/runs/*")
    expect(page.get_by_text("Success", exact=True).first).to_be_visible()
    expect(page.get_by_text("RUN_SUCCESS")).to_be_visible()
    run = platform.instance.get_run_by_id(page.url.rpartition("/")[2])
    assert run is not None
    assert run.status is dg.DagsterRunStatus.SUCCESS
    after = platform.table("events").snapshot()
    assert len(after.parts) < len(before.parts)
    assert after.rows == before.rows
    pictures.take("merge", page, (66, 0, 912, 790))


def test_an_asset_is_materialized_by_a_click(page: Page, platform: ExamplePlatform) -> None:
    page.goto("/assets/daily_metrics")
    expect(page.get_by_text("Never materialized")).to_be_visible()
    page.get_by_role("button", name="Materialize…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("All", exact=True).click()
    expect(dialog.get_by_text(f"{DAYS} partitions", exact=True)).to_be_visible()
    dialog.get_by_role("button", name="Launch backfill").click()
    expect(dialog).to_have_count(0)
    reload_until(page, page.get_by_text("icedb/part_sizes"))
    assert platform.instance.get_latest_materialization_event(dg.AssetKey("daily_metrics")) is not None
    assert platform.table("daily_metrics").query("SELECT count(DISTINCT day) FROM t").fetchone() == (DAYS,)


def test_the_page_of_an_asset_shows_its_table(page: Page, platform: ExamplePlatform, pictures: Pictures) -> None:
    table = platform.table("daily_metrics").snapshot()
    page.goto("/assets/daily_metrics")
    columns = shown(page, "Columns")
    for name, column_type in {"tenant": "VARCHAR", "visitors": "BIGINT", "bounce_rate": "DOUBLE"}.items():
        expect(columns.get_by_role("row").filter(has_text=name)).to_contain_text(column_type)
    expect(page.get_by_text(str(table.rows), exact=True).first).to_be_visible()
    assert table.rows == 3 * DAYS
    expect(row(page, "icedb/live_parts")).to_contain_text(str(len(table.parts)))
    expect(row(page, "icedb/preview")).to_contain_text("aurora-fashion")
    page.set_viewport_size({"width": 1440, "height": 900})  # else the badges lie over each other
    pictures.take("asset", page, (70, 105, 1020, 840))
    page.set_viewport_size({"width": 1280, "height": 800})


def test_the_events_of_an_asset_are_its_materializations(
    page: Page, platform: ExamplePlatform, pictures: Pictures
) -> None:
    """Assets downstream and a check of the table have read it, which is no event of this asset."""
    page.goto("/assets/daily_metrics?view=events")
    expect(page.get_by_text("Materialized").first).to_be_visible()
    records = platform.instance.fetch_observations(dg.AssetKey("daily_metrics"), limit=100).records
    observations = [record.asset_observation for record in records]
    assert all(observation is not None and observation.data_version for observation in observations)
    pictures.take("events", page, (372, 160, 1280, 800))


def test_the_partitions_of_an_asset_have_a_status(page: Page, platform: ExamplePlatform, pictures: Pictures) -> None:
    page.goto("/assets/daily_metrics?view=partitions")
    expect(page.get_by_text("Materialized").first).to_be_visible()
    expect(page.get_by_text(f"{DAYS}").first).to_be_visible()
    pictures.take("partitions", page, (66, 105, 1016, 660))


def test_the_chart_of_part_sizes_has_a_text(page: Page, platform: ExamplePlatform, pictures: Pictures) -> None:
    parts = len(platform.table("daily_metrics").snapshot().parts)
    page.goto("/assets/daily_metrics")
    picture = opened_picture(page, "icedb/part_sizes")
    assert f"{parts} live parts in {DAYS} partitions" in (picture.get_attribute("alt") or "")
    pictures.take("part-sizes", page.get_by_role("dialog"))


def test_the_dashboard_is_materialized_by_a_click(page: Page, platform: ExamplePlatform, pictures: Pictures) -> None:
    page.goto("/assets/dashboard")
    before = platform.instance.get_runs_count()
    page.get_by_role("button", name="Materialize").first.click()
    until(lambda: platform.instance.get_runs_count() > before, "run of the dashboard")
    reload_until(page, row(page, "in words"))
    [sessions] = platform.table("daily_metrics").query("SELECT sum(sessions)::BIGINT FROM t").fetchall()
    page.set_viewport_size({"width": 1840, "height": 1220})  # as wide as the picture
    picture = opened_picture(page, "dashboard")
    assert f"{sessions[0]:,} sessions" in (picture.get_attribute("alt") or "")
    pictures.take("dashboard", page.get_by_role("dialog"), (20, 40, 945, 655))
    page.set_viewport_size({"width": 1280, "height": 800})


def test_a_failed_check_is_red(page: Page, platform: ExamplePlatform, pictures: Pictures) -> None:
    page.goto("/assets/events?view=checks&checkDetail=objects")
    page.get_by_role("button", name="Execute all").click()  # a materialization runs no check of the table's health
    expect(check(page, "objects", "Succeeded")).to_be_visible()
    platform.put("events/_data/tenant=aurora-fashion/day=2026-09-07/copy-of-a-spreadsheet.csv", b"a,b\n")
    page.get_by_role("button", name="Execute all").click()
    expect(check(page, "objects", "Failed")).to_be_visible()
    expect(page.get_by_text("copy-of-a-spreadsheet.csv").first).to_be_visible()
    for other in ("log_depth", "quarantine", "schema", "small_parts"):
        expect(check(page, other, "Succeeded")).to_be_visible()
    expect(page.get_by_text("In Progress")).to_have_count(0)
    badge = page.get_by_text("Failed", exact=True).last
    red, green, blue = map(int, re.findall(r"\d+", badge.evaluate("e => getComputedStyle(e).color"))[:3])
    assert red > 1.5 * max(green, blue)
    pictures.take("check", page, (372, 105, 1280, 720))


def test_a_schedule_is_switched_on_by_a_click(page: Page, platform: ExamplePlatform) -> None:
    page.goto(f"/locations/web_analytics/schedules/{SCHEDULE}")
    switch_on(page)
    until(lambda: SCHEDULE in platform.switched_on(), "schedule that is on")


def test_a_sensor_is_switched_on_by_a_click_and_runs(page: Page, platform: ExamplePlatform, pictures: Pictures) -> None:
    page.goto(f"/locations/web_analytics/sensors/{SENSOR}")
    switch_on(page)
    until(lambda: SENSOR in platform.switched_on(), "sensor that is on")
    expect(page.get_by_text(re.compile(r"\d+ runs? requested")).first).to_be_visible()  # of its first tick
    pictures.take("sensor", page, (66, 0, 1016, 415))


def test_the_graph_has_each_table_with_its_kinds_and_lineage(page: Page, pictures: Pictures) -> None:
    page.set_viewport_size({"width": 1440, "height": 720})
    page.goto("/asset-groups")
    for name in TABLES | {"dashboard"}:
        expect(page.get_by_text(name, exact=True).last).to_be_visible()
    for kind, count in {"icedb": len(TABLES), "Parquet": len(TABLES), "Spark": 1, "DuckDB": 1, "matplotlib": 1}.items():
        expect(page.get_by_text(kind, exact=True)).to_have_count(count)
    expect(page.locator("path[marker-end]")).to_have_count(7)  # the lineage
    expect(page.get_by_text("5 / 6 Passed")).to_be_visible()
    pictures.take("lineage", page, (420, 160, 1390, 625))


def shown(page: Page, title: str) -> Locator:
    """Return a table below a heading of an asset's page."""
    return page.locator("table").filter(has_text=f"{title[:-1]} name")


def switch_on(page: Page) -> None:
    """Return the switch of a schedule's or a sensor's page."""
    switch = page.get_by_role("checkbox")
    expect(switch).not_to_be_checked()
    page.locator("label").filter(has=switch).click()
    expect(switch).to_be_checked()


def row(page: Page, key: str) -> Locator:
    """Return the row of a key on an asset's page."""
    return page.get_by_role("row").filter(has=page.get_by_text(key, exact=True))


def check(page: Page, name: str, status: str) -> Locator:
    """Return a check with that status in the list at the left."""
    return page.locator("div").filter(has_text=re.compile(rf"^\s*({name}\s*)+{status}\s*$")).first


def reload_until(page: Page, visible: Locator, *, seconds_max: float = 180) -> None:
    """Reload until the element is visible, as a user who waits for a run."""

    def looked() -> bool:
        page.reload()
        page.wait_for_timeout(5000)
        return bool(visible.is_visible())

    until(looked, f"{visible}", seconds_max=seconds_max)


def opened_picture(page: Page, key: str) -> Locator:
    """Return the picture of a key after its dialog has opened and the browser has drawn it."""
    row(page, key).get_by_text("Show Markdown").click()
    picture = page.get_by_role("dialog").locator("img")
    expect(picture).to_be_visible()
    size: Any = picture.evaluate("e => [e.naturalWidth, e.naturalHeight]")
    assert min(size) > 0, size
    assert picture.get_attribute("alt")
    return picture
