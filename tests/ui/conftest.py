"""A headless Chromium, the example's platform, and the pictures that the browser takes.

`make ui-test` sets the browser in `CHROMIUM`. The pictures are written to `docs/images` after all tests have passed.
When a test fails, a picture of the page and the browser's console are in the test's folder.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.support.object_stores.stores import S3Server
from tests.ui.example_platform import ExamplePlatform, example_platform

IMAGES = Path(__file__).parents[2] / "docs" / "images"
FLAGS = (
    "--no-sandbox",  # root has no other way
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# For a run that waits for others on a busy machine.
expect.set_options(timeout=120_000)
CONSOLE = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def lake(s3_server: S3Server) -> dict[str, str]:
    """Return the options of the S3 server with a bucket `lake`."""
    s3_server.client().create_bucket(Bucket="lake")
    return s3_server.storage_options


@pytest.fixture(scope="module")
def platform(lake: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExamplePlatform]:
    """Return the platform of the example, with events and sessions of three weeks."""
    with example_platform(tmp_path_factory.mktemp("platform"), storage_options=lake) as running:
        yield running


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Return the browser, without a page."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    assert path, "Chromium is missing: apt-get install chromium, or set CHROMIUM to its path"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page(browser: Browser, platform: ExamplePlatform, request: pytest.FixtureRequest) -> Iterator[Page]:
    """Return one page for all tests, with its own profile and without names beside the navigation's icons."""
    page = browser.new_page(base_url=platform.url, viewport={"width": 1280, "height": 800}, timezone_id="UTC")
    page.set_default_timeout(60_000)
    console: list[str] = []
    request.node.stash[CONSOLE] = console
    page.on("console", lambda message: console.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: console.append(f"error: {error}"))
    page.goto("/runs")
    page.get_by_text("Hide navigation").click()
    yield page
    page.close()


class LocalPage:
    """A page of a file, with the addresses that it requested elsewhere and the errors of its console."""

    def __init__(self, browser: Browser, file: Path, **options: Any) -> None:
        self.beyond: list[str] = []
        self.problems: list[str] = []
        self.page = browser.new_page(**options)
        self.page.on("request", lambda request: self._note(request.url))
        self.page.on("console", lambda m: self.problems.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.goto(file.as_uri())

    def _note(self, url: str) -> None:
        if not url.startswith(("file:", "data:", "about:")):
            self.beyond.append(url)

    def close(self) -> None:
        """Close the page, which must have requested nothing and logged no error."""
        self.page.close()
        assert (self.beyond, self.problems) == ([], [])


def brightness(page: Page) -> int:
    """Return the brightness of the page's background, from 0 to 765."""
    background = "getComputedStyle(document.body).backgroundColor"
    return int(page.evaluate(f"{background}.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0)"))


# A column of the documentation is 750 pixels wide.
WIDTH_MAX = 1_000


class Pictures:
    """Takes pictures for the documentation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.taken: list[str] = []

    def take(self, name: str, of: Any, crop: tuple[int, int, int, int] | None = None) -> None:
        """Take a picture of a page or an element after it has settled.

        `crop`: the left, top, right and bottom of what a page of the documentation shows. With at most WIDTH_MAX pixels
        its text can be read there.
        """
        page = of if isinstance(of, Page) else of.page
        page.mouse.move(0, 0)
        page.wait_for_timeout(1500)  # icons and fonts come late, and tooltips go late
        path = self.folder / f"ui-{name}.png"
        of.screenshot(path=path, animations="disabled")
        with Image.open(path) as taken:
            cropped = taken.crop(crop or (0, 0, *taken.size))
        assert cropped.width <= WIDTH_MAX, f"{name} is {cropped.width} pixels wide. Crop it."
        cropped.save(path)
        self.taken.append(name)

    def publish(self, folder: Path) -> None:
        """Write them to the documentation's images, compressed."""
        for name in self.taken:
            publish(self.folder / f"ui-{name}.png", folder)


def publish(picture: Path, folder: Path = IMAGES) -> None:
    """Write a picture to the documentation's images, compressed."""
    with Image.open(picture) as taken:
        few = taken.convert("RGB").quantize(128, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        few.save(folder / picture.name, "PNG", optimize=True)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Pictures]:
    """Collect the pictures of all tests, and publish them if all of them ran and passed."""
    pictures = Pictures(tmp_path_factory.mktemp("pictures"))
    yield pictures
    in_module = [item for item in request.session.items if getattr(item, "module", None) is request.module]
    complete = len(in_module) == len([name for name in dir(request.module) if name.startswith("test_")])
    if complete and not request.session.testsfailed:
        pictures.publish(IMAGES)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Add the picture and the console of the page to the report of a failed test."""
    report: Any = yield
    page = getattr(item, "funcargs", {}).get("page")
    if report.when == "call" and report.failed and page is not None:
        picture: Path = item.funcargs["tmp_path"] / "failed.png"  # type: ignore[attr-defined]
        page.screenshot(path=picture)
        console = item.getparent(pytest.Module).stash[CONSOLE]  # type: ignore[union-attr]
        report.sections.append(("page", f"{page.url}, as in {picture}"))
        report.sections.append(("console", "\n".join(console[-50:])))
    return report
