"""The pages beside the format: every module is drawn, the glossary has each word once, links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))


def headings(page: Path) -> set[str]:
    found = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        file, _, anchor = target.partition("#")
        there = page.parent / file if file else page
        assert there.is_file(), target
        assert not anchor or anchor in headings(there), target


def test_the_drawing_of_the_layers_has_every_module() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    drawing = text.partition("```text")[2].partition("```")[0]
    drawn = set(re.findall(r"\w+", drawing))
    modules = {
        p.stem for folder in ("", "format", "inputs", "maintenance") for p in (ROOT / "icedb" / folder).glob("*.py")
    }
    assert modules - {"__init__"} - drawn == set()


def test_files_that_the_architecture_page_names_are_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    for name in re.findall(r"`([\w/]+\.py)`", text):
        assert any((ROOT / folder / name).is_file() for folder in ("", "icedb", "icedb/inputs")), name


def test_the_glossary_has_each_word_once() -> None:
    words = re.findall(r"^\*\*([^*]+)\.\*\*", (ROOT / "docs" / "glossary.md").read_text(), flags=re.MULTILINE)
    assert len(words) > 50
    assert sorted(words) == sorted(set(words))
