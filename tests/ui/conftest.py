"""A headless Chromium on the example's platform, and the pictures that it takes.

`make ui-test` says in `CHROMIUM` which browser. The pictures go to `docs/images` when all tests have passed, and not
before. When a test fails, what the browser showed then and what its console said are in the test's folder.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

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
# Of a run that waits for others on a busy machine.
expect.set_options(timeout=120_000)
CONSOLE = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def lake(s3_server: S3Server) -> dict[str, str]:
    """The way into the S3 server, on which there is a bucket `lake`."""
    s3_server.client().create_bucket(Bucket="lake")
    return s3_server.storage_options


@pytest.fixture(scope="module")
def platform(lake: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExamplePlatform]:
    """The example with events and sessions of three weeks."""
    with example_platform(tmp_path_factory.mktemp("platform"), storage_options=lake) as running:
        yield running


@pytest.fixture(scope="module")
def page(platform: ExamplePlatform, request: pytest.FixtureRequest) -> Iterator[Page]:
    """One page for the whole story, with a profile of its own, and without the names beside the navigation's icons."""
    found = os.environ.get("CHROMIUM") or shutil.which("chromium")
    assert found, "there is no Chromium here: apt-get install chromium, or say where it is: CHROMIUM=..."
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, headless=True, args=list(FLAGS))
        page = browser.new_page(base_url=platform.url, viewport={"width": 1280, "height": 800}, timezone_id="UTC")
        page.set_default_timeout(60_000)
        console: list[str] = []
        request.node.stash[CONSOLE] = console
        page.on("console", lambda message: console.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: console.append(f"error: {error}"))
        page.goto("/runs")
        page.get_by_text("Hide navigation").click()
        yield page
        browser.close()


class Pictures:
    """Takes pictures for the documentation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.taken: list[str] = []

    def take(self, name: str, of: Any) -> None:
        """Of a page, or of an element of it, when it has come to rest."""
        page = of if isinstance(of, Page) else of.page
        page.mouse.move(0, 0)
        page.wait_for_timeout(1500)  # icons and fonts come late, and tooltips go late
        of.screenshot(path=self.folder / f"ui-{name}.png", animations="disabled")
        self.taken.append(name)

    def publish(self, folder: Path) -> None:
        """Put them where the documentation has its images, as small as they can be without being ugly."""
        for name in self.taken:
            with Image.open(self.folder / f"ui-{name}.png") as taken:
                few = taken.convert("RGB").quantize(128, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
                few.save(folder / f"ui-{name}.png", "PNG", optimize=True)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Pictures]:
    """Those of all tests, which are published if all of them ran and passed."""
    pictures = Pictures(tmp_path_factory.mktemp("pictures"))
    yield pictures
    in_module = [item for item in request.session.items if item.module is request.module]
    complete = len(in_module) == len([name for name in dir(request.module) if name.startswith("test_")])
    if complete and not request.session.testsfailed:
        pictures.publish(IMAGES)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """What was on the screen when a test failed."""
    report: Any = yield
    page = getattr(item, "funcargs", {}).get("page")
    if report.when == "call" and report.failed and page is not None:
        picture: Path = item.funcargs["tmp_path"] / "failed.png"  # type: ignore[attr-defined]
        page.screenshot(path=picture)
        console = item.getparent(pytest.Module).stash[CONSOLE]  # type: ignore[union-attr]
        report.sections.append(("page", f"{page.url}, as in {picture}"))
        report.sections.append(("console", "\n".join(console[-50:])))
    return report
