"""Drawings of the concepts are self-contained and state the defaults; the comparison quotes the results."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from icedb import TieredMerge
from icedb.format.timing import Timing
from icedb.operations.rewrite.merge import PART_BYTES_MAX
from tests.support.site.pages import ROOT

DOCS = ROOT / "docs"
DRAWINGS = sorted((DOCS / "images" / "concepts").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"
MEGABYTE = 2**20


def words(name: str) -> str:
    """Return all text of a drawing."""
    root = ET.parse(DOCS / "images" / "concepts" / f"{name}.svg").getroot()
    return " ".join(text.text or "" for text in root.iter(f"{SVG}text"))


@pytest.mark.parametrize("drawing", [*DRAWINGS, DOCS / "images" / "architecture.svg"], ids=lambda drawing: drawing.stem)
def test_a_drawing_is_self_contained_text_on_a_card(drawing: Path) -> None:
    content = drawing.read_text()
    root = ET.fromstring(content)
    width, height = (float(root.get(name, "0")) for name in ("width", "height"))
    assert root.get("viewBox") == f"0 0 {width:.0f} {height:.0f}"
    assert root.findtext(f"{SVG}title")
    assert root.findtext(f"{SVG}desc")
    [card] = [r for r in root.iter(f"{SVG}rect") if r.get("class") == "card"]
    assert float(card.get("width", "0")) == width - 1  # the background of the text, also in dark mode
    texts = list(root.iter(f"{SVG}text"))
    assert len(texts) > 5
    assert all(0 < float(t.get("x", "-1")) < width and 0 < float(t.get("y", "-1")) < height for t in texts)
    assert set(re.findall(r"url\(([^)]*)\)", content)) <= {"#to"}
    assert not re.search(r"\b(href|src|@import|font-face)\b", content)
    assert "http" not in content.replace('xmlns="http://www.w3.org/2000/svg"', "")


def test_each_drawing_is_on_a_page() -> None:
    pages = "".join(page.read_text() for page in (DOCS / "concepts").glob("*.md"))
    named = set(re.findall(r"\]\(\.\./images/concepts/([\w-]+\.svg)\)", pages))
    assert named == {drawing.name for drawing in DRAWINGS}


def test_drawings_state_the_default_times_and_sizes() -> None:
    timing = Timing()
    assert timing.grace_ms == 3_600_000
    assert "grace, 1 hour" in words("horizon")
    assert "grace period, an hour" in words("merge-readers")
    assert timing.commit_timeout_ms == 5 * 60_000
    assert "older than 5 minutes" in words("void")
    assert PART_BYTES_MAX == 128 * MEGABYTE
    assert PART_BYTES_MAX // TieredMerge().hot_tier == 8 * MEGABYTE
    tiers = words("merge-tiers")
    assert "128 MB" in tiers
    assert "8 MB" in tiers
    assert "sixteen of them" in tiers


def test_figures_of_the_comparison_are_in_the_results() -> None:
    page = (DOCS / "comparison.md").read_text()
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    quoted = re.findall(r"[\d.]+ \([\d.]+ to [\d.]+\)", page)
    assert len(quoted) > 9
    for figure in quoted:
        assert figure in results, figure
    for version in re.findall(r"(deltalake|PyIceberg|chDB) (\d+\.\d+\.\d+)", page):
        assert version[0] == "chDB" or f"{version[0].lower()} {version[1]}" in results, version
