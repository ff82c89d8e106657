"""The documentation site: a strict build without a network. No page loads anything, and every link has a target."""

from __future__ import annotations

import inspect
import json
import re
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import griffe
import pytest
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File
from mkdocs.structure.pages import Page

from docs_site import hooks
from icedb import Table, __version__
from tests.repository.test_public_names import PUBLIC
from tests.support.processes import run_python
from tests.support.site.pages import ROOT

pytestmark = pytest.mark.process

#: Builds the site in a process that can reach nothing.
BUILD = """
import socket, sys
def refuse(*_, **__):
    raise OSError("the build speaks to the network")
socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
from mkdocs.__main__ import cli
cli(["build", "--strict", "--site-dir", sys.argv[1]])
"""
#: The attribute with the address of each element that a browser loads.
ASSETS = dict.fromkeys(("script", "img", "iframe", "source", "video", "audio", "embed"), "src")

#: Marks tests of the built site.
built = pytest.mark.slow(seconds=4)


class Read(HTMLParser):
    """The assets, links and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.assets: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "link" and values.get("rel") not in ("canonical", "prev", "next"):
            self.assets.append(values["href"])
        elif values.get(ASSETS.get(tag, "")):
            self.assets.append(values[ASSETS[tag]])
        elif tag == "a" and values.get("href"):
            self.links.append(values["href"])


def test_the_parser_finds_assets_and_links() -> None:
    read = Read(
        '<head><link rel="preconnect" href="//fonts"><script src="https://a/b.js"></script></head>'
        '<h1 id="one">x</h1><a href="#two">y</a><img src="c.png">'
    )
    assert read.assets == ["//fonts", "https://a/b.js", "c.png"]
    assert list(broken(Path("here.html"), read, {Path("here.html"): read})) == ["#two", "c.png"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    run_python("-c", BUILD, folder, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Read]:
    return {page: Read(page.read_text()) for page in site.rglob("*.html")}


@pytest.mark.sampled(days=3)
def test_the_reference_has_the_parameters_that_help_prints() -> None:
    extensions = griffe.load_extensions(str(ROOT / "docs_site" / "shared_options.py"))
    table = griffe.load("icedb.table", search_paths=[ROOT], extensions=extensions)["Table"]
    for name, method in inspect.getmembers(Table, callable):
        if not name.startswith("_"):
            documented = [p.name for p in table[name].parameters if p.name not in ("self", "cls")]
            assert documented == [p for p in inspect.signature(method).parameters if p != "self"], name
    alter = table["alter"].parameters["row_group_rows"]
    assert (str(alter.annotation), alter.default) == ("int | None", "None")


@built
def test_every_page_of_the_repository_is_built(site: Path, pages: dict[Path, Read]) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html")
        assert site / (name.with_name("index.html") if name.stem == "README" else name) in pages, name


@built
def test_pages_load_no_external_assets(site: Path, pages: dict[Path, Read]) -> None:
    for page, read in pages.items():
        assert read.assets
        for asset in read.assets:
            assert not urlsplit(asset).scheme, (page, asset)
            assert not asset.startswith("//"), (page, asset)
        # Drawings in the language of mermaid would have the theme fetch a script.
        assert 'class="mermaid"' not in page.read_text(), page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", sheet.read_text()), sheet


@built
def test_no_page_shows_an_empty_side_bar(site: Path, pages: dict[Path, Read]) -> None:
    hidden = set()
    for page in pages.keys() - {site / "404.html"}:
        [bar] = re.findall(r'<div class="md-sidebar md-sidebar--primary"[^>]*>', page.read_text())
        if " hidden" in bar:
            hidden.add(page.relative_to(site).as_posix())
        else:  # the section of the navigation that has the page
            assert re.search(r"md-nav__item--active[^\"]* md-nav__item--section", page.read_text()), page
    assert "project/examples/simple/program.py.html" in hidden


@built
def test_the_header_of_each_page_has_the_version(site: Path, pages: dict[Path, Read]) -> None:
    for page in pages.keys() - {site / "404.html"}:
        [link] = re.findall(r'<a href="([^"]+)"[^>]*class="site-version">' + re.escape(__version__), page.read_text())
        assert (page.parent / link).resolve() == site / "project" / "CHANGELOG.html"


@pytest.mark.parametrize(
    ("urls", "expected"),
    [
        ({}, None),
        ({"Changelog": "https://code.example/x/CHANGELOG.md"}, None),
        ({"Repository": "https://code.example/icedb.git"}, "https://code.example/icedb"),
        ({"repository": "https://code.example/icedb/"}, "https://code.example/icedb"),
    ],
)
def test_the_repository_is_the_one_of_the_project(urls: dict[str, str], expected: str | None) -> None:
    assert hooks.repository_of({"urls": urls} if urls else {}) == expected


@pytest.mark.parametrize(
    ("page", "source"),
    [
        ("inputs.md", "docs/inputs.md"),
        ("project/CHANGELOG.md", "CHANGELOG.md"),
        ("project/examples/flights/definitions.py.md", "examples/flights/definitions.py"),
    ],
)
def test_a_page_links_its_source_if_the_project_has_a_repository(page: str, source: str) -> None:
    config = MkDocsConfig(str(ROOT / "mkdocs.yml"))
    built = Page(None, File(page, "docs", "site", use_directory_urls=False), config)
    assert hooks.on_pre_page(built, config).edit_url is None
    config.repo_url = "https://code.example/icedb"
    assert hooks.on_pre_page(built, config).edit_url == f"https://code.example/icedb/edit/main/{source}"


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("--part-bytes-max NUMBER", "<code>--part-bytes-max NUMBER</code>"),
        (r"int \| None", "<code>int | None</code>"),
        (
            "promises/test_restore.py::test_a_restore",
            '<code class="long">promises/<wbr>test_<wbr>restore.<wbr>py::<wbr>test_<wbr>a_<wbr>restore</code>',
        ),
    ],
)
def test_long_names_in_tables_wrap_at_their_separators(cell: str, expected: str) -> None:
    assert hooks.on_page_content(f"<td><code>{cell}</code></td>") == f"<td>{expected}</td>"
    assert hooks.on_page_content(f"<p><code>{cell}</code></p>") == f"<p><code>{cell}</code></p>"


@built
def test_every_link_and_asset_resolves_with_its_anchor(site: Path, pages: dict[Path, Read]) -> None:
    wrong = [(page.relative_to(site).as_posix(), link) for page, read in pages.items()
             if page.name != "404.html" for link in broken(page, read, pages)]  # fmt: skip
    assert not wrong


def broken(page: Path, read: Read, pages: dict[Path, Read]) -> Iterator[str]:
    for link in [*read.links, *read.assets]:
        parts = urlsplit(link)
        if parts.scheme or link.startswith("//"):
            continue
        linked = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        if not (linked in pages or linked.is_file()) or (
            linked in pages and parts.fragment and parts.fragment not in pages[linked].anchors
        ):
            yield link


@built
def test_the_search_index_is_local_and_has_the_pages(site: Path) -> None:
    script = (site / "search" / "search_index.js").read_text()
    locations = {entry["location"] for entry in json.loads(script.partition("=")[2])["docs"]}
    assert {"format.html", "reference/table.html#icedb.Table.merge", "project/CHANGELOG.html"} <= locations


#: A word that users search for -> its stem, and the page that has it in its title or a heading. Titles rank first.
SEARCHES = {
    "compaction": ("compact", "concepts/merge.html"),
    "optimize": ("optimize", "concepts/merge.html"),
    "vacuum": ("vacuum", "maintenance.html"),
    "upsert": ("upsert", "how-to/upsert.html"),
    "deduplicate": ("deduplicat", "how-to/upsert.html"),
    "schema evolution": ("schema evolution", "schema.html"),
    "sizing": ("sizing", "cost-and-sizing.html"),
    "troubleshoot": ("troubleshoot", "troubleshooting.html"),
    "quickstart": ("quickstart", "quickstart.html"),
    "idempotent": ("idempotent", "concepts/concurrency.html"),
    "time travel": ("time travel", "how-to/time-travel.html"),
    "retention": ("retention", "backup-and-retention.html"),
}


@built
def test_words_that_users_type_are_in_the_titles_of_their_pages(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.js").read_text().partition("=")[2])
    titles = [
        (
            entry["location"].partition("#")[0],
            f" {' '.join(re.split(index['config']['separator'], entry['title'].lower()))}",
        )
        for entry in index["docs"]
    ]
    for word, (stem, page) in SEARCHES.items():
        titled = {location for location, title in titles if f" {stem}" in title}
        assert page in titled, word
        assert len({location for location in titled if not location.startswith(("reference/", "project/"))}) <= 6, word


@built
def test_the_reference_has_signatures_of_every_public_name(site: Path) -> None:
    compressed = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    existing = {line.split(b" ")[0].decode() for line in zlib.decompress(compressed).splitlines()}
    for package in PUBLIC.keys() - {"icedb.testing.simulation"}:
        for name in PUBLIC[package]:
            assert f"{package}.{name}" in existing, name
    text = (site / "reference" / "table.html").read_text()
    assert 'id="icedb.Table.insert"' in text
    assert "on_conflict" in text
