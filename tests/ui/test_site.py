"""The documentation site in a browser, opened as files: its search works, and it loads nothing from elsewhere."""

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
