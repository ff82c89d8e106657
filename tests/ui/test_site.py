"""The documentation site in a browser, opened as files: its search works, and it loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.pages.test_site import SEARCHES
from tests.support.processes import run_python
from tests.support.site.pages import ROOT
from tests.ui.conftest import FLAGS

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_search_of_the_site_works_without_a_server(scheme: Literal["light", "dark"], site: Path) -> None:
    beyond: list[str] = []
    problems: list[str] = []
    with sync_playwright() as playwright:
        path = os.environ.get("CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=list(FLAGS))
        page = browser.new_page(color_scheme=scheme)
        page.on("request", lambda r: None if r.url.startswith(("file:", "data:", "about:")) else beyond.append(r.url))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto((site / "index.html").as_uri())
        page.get_by_role("textbox", name="Search").press_sequentially("tombstone")  # it waits for keys, not for text
        first = page.locator("[data-md-component=search-result] .md-search-result__link").first
        expect(first).to_contain_text("tombstone", ignore_case=True)
        first.click()
        expect(page.locator("article")).to_contain_text("tombstone", ignore_case=True)
        shade = page.evaluate(
            "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((a, b) => a + +b, 0)"
        )
        assert (shade > 382) == (scheme == "light"), "of 765"
        browser.close()
    assert beyond == []
    assert problems == []


def test_the_first_result_of_a_search_is_the_page_of_the_word(site: Path) -> None:
    with sync_playwright() as playwright:
        path = os.environ.get("CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=list(FLAGS))
        page = browser.new_page()
        page.goto((site / "index.html").as_uri())
        for word, (_, expected) in SEARCHES.items():
            search = page.get_by_role("textbox", name="Search")
            search.fill("")
            search.press_sequentially(word)
            first = page.locator("[data-md-component=search-result] .md-search-result__link").first
            expect(first).to_have_attribute("href", re.compile(rf"(^|/){re.escape(expected)}"))
        browser.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    run_python("-m", "mkdocs", "build", "--strict", "--site-dir", folder, cwd=ROOT)
    return folder
