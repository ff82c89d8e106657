"""The documentation site in a browser, opened as files: its search works, it loads nothing, and it cuts nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, expect

from tests.pages.test_site import SEARCHES
from tests.support.processes import run_python
from tests.support.site.pages import ROOT
from tests.ui.conftest import LocalPage, brightness

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_search_of_the_site_works_without_a_server(
    scheme: Literal["light", "dark"], site: Path, browser: Browser
) -> None:
    local = LocalPage(browser, site / "index.html", color_scheme=scheme)
    page = local.page
    page.get_by_role("textbox", name="Search").press_sequentially("tombstone")  # it waits for keys, not for text
    first = page.locator("[data-md-component=search-result] .md-search-result__link").first
    expect(first).to_contain_text("tombstone", ignore_case=True)
    first.click()
    expect(page.locator("article")).to_contain_text("tombstone", ignore_case=True)
    assert (brightness(page) > 382) == (scheme == "light")
    local.close()


#: Lines of code, without the output of terminals, and tables that are wider than their place on the page.
CUT = """() => [
    ...[...document.querySelectorAll("article div.highlight:not(.language-text) pre > code")],
    ...[...document.querySelectorAll("article .md-typeset__scrollwrap")],
].filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent.slice(0, 300))"""
BEYOND = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def test_no_page_cuts_its_code_or_tables_and_none_scrolls_sideways(site: Path, browser: Browser) -> None:
    """On a laptop nothing is cut. On a phone, code and tables scroll by themselves."""
    cut, wide = {}, {}
    for width in (1280, 390):
        page = browser.new_page(viewport={"width": width, "height": 900})
        for file in sorted(site.rglob("*.html")):
            page.goto(file.as_uri())
            name = f"{file.relative_to(site)} at {width} px"
            if beyond := page.evaluate(BEYOND):
                wide[name] = beyond
            if width == 1280 and (parts := page.evaluate(CUT)):
                cut[name] = parts
        page.close()
    assert (cut, wide) == ({}, {})


def test_the_first_result_of_a_search_is_the_page_of_the_word(site: Path, browser: Browser) -> None:
    local = LocalPage(browser, site / "index.html")
    for word, (_, expected) in SEARCHES.items():
        search = local.page.get_by_role("textbox", name="Search")
        search.fill("")
        search.press_sequentially(word)
        first = local.page.locator("[data-md-component=search-result] .md-search-result__link").first
        expect(first).to_have_attribute("href", re.compile(rf"(^|/){re.escape(expected)}"))
    local.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    run_python("-m", "mkdocs", "build", "--strict", "--site-dir", folder, cwd=ROOT)
    return folder
