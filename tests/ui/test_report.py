"""The page of `icedb report` in a browser, for a table of 3 parts and one of 50,000.

The picture of the large table is written to `docs/images`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

import icedb
from icedb.cli import app
from icedb.format.records import LogFile, Marker
from icedb.format.timing import HOUR_MS
from tests.support.tables.numbered_rows import put_log
from tests.ui.conftest import LocalPage, brightness, publish

Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
#: A desktop, and a phone.
WIDTHS = (1200, 390)
PARTS, LOG_FILES = 50_000, 250
FIRST_DAY = datetime(2026, 11, 1)
TENANTS = (
    "aurora-fashion",
    "borealis",
    "cascade-games",
    "delta-air",
    "ember",
    "fjord-bank",
    "glacier",
    "harbour-media",
)
#: For a machine with other work. An idle one takes a few tenths.
RENDERED_WITHIN_MS = 5_000


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of a table with three parts and a pin."""
    folder = tmp_path_factory.mktemp("small")
    table = icedb.Table.create(
        folder / "events", partition_by=["strftime(ts, '%Y-%m-%d') AS day"], storage_options={"fsync": "false"}
    )
    for n in range(3):
        rows = [{"ts": FIRST_DAY + timedelta(days=n), "user_id": k, "event": "open"} for k in range(10 ** (n + 1))]
        table.insert(rows)
    table.pin("before-the-move")
    return report_of(table, folder)


@pytest.fixture(scope="module")
def large(lake: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the page of a table whose log names 50,000 parts of 2,700 partitions. The parts do not exist."""
    chance = random.Random(7)
    partition_by = ["tenant", "strftime(ts, '%Y-%m-%d') AS day"]
    table = icedb.Table.create("s3://lake/events", partition_by=partition_by, sort_by=["user_id"], storage_options=lake)
    handle = table.handle
    now_ms = handle.clock.now_ms()
    for n in range(LOG_FILES):
        t_ms = now_ms - (LOG_FILES - n) * HOUR_MS - chance.randrange(HOUR_MS // 2)
        markers = [marker(table, f"{n:04}-{k:04}", t_ms, chance) for k in range(PARTS // LOG_FILES)]
        columns = {"ts": "TIMESTAMP", "tenant": "VARCHAR", "user_id": "BIGINT", "event": "VARCHAR"}
        put_log(handle.store, LogFile(t_ms, columns, tuple(markers)), writer=f"w{n}")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in lake.items():
            patch.setenv(name, value)
        yield report_of(table, tmp_path_factory.mktemp("large"))


def marker(table: icedb.Table, name: str, t_ms: int, chance: random.Random) -> Marker:
    tenant = TENANTS[min(int(chance.expovariate(0.4)), len(TENANTS) - 1)]
    age = int(chance.expovariate(1 / 150)) % 365
    day = FIRST_DAY - timedelta(days=age)
    is_merged = age > 40 and tenant != "ember"
    size = int(chance.lognormvariate(19.3 if is_merged else 15, 0.2 if is_merged else 2))
    return Marker(table.handle.keys.part(f"tenant={tenant}/day={day:%Y-%m-%d}", name), size, t_ms, rows=size // 40 + 1)


def report_of(table: icedb.Table, folder: Path) -> Path:
    page = folder / "report.html"
    assert not app(["report", table.uri, "-o", str(page)], standalone_mode=False)
    return page


@pytest.fixture(params=[(scheme, width) for scheme in SCHEMES for width in WIDTHS], ids=str)
def screen(request: pytest.FixtureRequest) -> tuple[Scheme, int]:
    """Return colours and a width."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def small_page(browser: Browser, small: Path) -> Iterator[Page]:
    local = LocalPage(browser, small)
    yield local.page
    local.close()


@pytest.mark.parametrize("which", ["small", "large"])
def test_the_page_fits_each_screen_in_both_colours(
    which: str, screen: tuple[Scheme, int], browser: Browser, request: pytest.FixtureRequest
) -> None:
    scheme, width = screen
    file: Path = request.getfixturevalue(which)
    local = LocalPage(browser, file, color_scheme=scheme, viewport={"width": width, "height": 900})
    page = local.page
    assert page.evaluate("document.documentElement.scrollWidth") == width, "nothing sticks out"
    assert (brightness(page) > 382) == (scheme == "light")
    for heading in ("Maintenance", "Partitions", "Commits over time", "Snapshots and pins", "Schema"):
        expect(page.get_by_role("heading", name=heading)).to_be_visible()
    for text in page.locator("dd, .cells b, td, th, h2, .note, .bar-text").all()[:200]:
        assert contrast(text) >= 4.5, text.text_content()
    timing = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    assert 0 < timing < RENDERED_WITHIN_MS
    local.close()


def contrast(text: Locator) -> float:
    """Return the contrast of a text to its background, as WCAG defines it."""
    ratio: float = text.evaluate("""element => {
        const luminance = (color) => {
            const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3).map((value) => {
                const c = value / 255;
                return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
            });
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        let behind = element;
        while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
        const [a, b] = [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor].map(luminance);
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    }""")
    return ratio


def test_a_table_is_sorted_by_click_and_by_keyboard(small_page: Page) -> None:
    grid = small_page.get_by_role("region", name="Partitions")
    first = grid.locator("tbody tr td:first-child")
    rows, partition = (grid.get_by_role("columnheader", name=name) for name in ("rows", "partition"))
    days = [f"day=2026-11-0{n}" for n in (1, 2, 3)]
    rows.nth(0).get_by_role("button").click()
    expect(first).to_have_text(days[::-1])
    expect(rows.nth(0)).to_have_attribute("aria-sort", "descending")
    rows.nth(0).get_by_role("button").click()
    expect(first).to_have_text(days)
    expect(rows.nth(0)).to_have_attribute("aria-sort", "ascending")
    partition.get_by_role("button").focus()
    for key, order, expected in (("Enter", "ascending", days), ("Space", "descending", days[::-1])):
        small_page.keyboard.press(key)
        expect(partition).to_have_attribute("aria-sort", order)
        expect(first).to_have_text(expected)
    expect(grid.locator("[aria-sort]")).to_have_count(1)


def test_the_heat_map_has_three_figures_and_the_text_of_a_cell(small_page: Page) -> None:
    cells = small_page.locator(".cells i")
    expect(cells).to_have_count(3)

    def colours() -> list[str]:
        return [cell.evaluate("e => getComputedStyle(e).backgroundColor") for cell in cells.all()]

    by_size = colours()
    assert len(set(by_size)) == 3
    small_page.get_by_label("small parts").check()
    assert len(set(colours())) == 1, "no partition has small parts"
    small_page.get_by_label("rows").check()
    assert len(set(colours())) == 3
    cells.nth(1).click()
    text = re.compile(r"day=2026-11-02: \d+ B, 100 rows, 1 part, 0 small parts")
    expect(small_page.locator(".detail")).to_have_text(text)


def test_the_large_page_is_pictured(browser: Browser, large: Path, tmp_path: Path) -> None:
    local = LocalPage(browser, large, viewport={"width": 1000, "height": 1000})
    expect(local.page.get_by_text("50,000", exact=True).first).to_be_visible()
    assert local.page.locator(".cells i").count() <= 2_000
    local.page.screenshot(path=tmp_path / "report.png")
    publish(tmp_path / "report.png")
    local.close()
