"""Files beyond docs/: pages link them as they lie in the repository, and the site has them, too.

The site keeps what is in docs/ at its top, and what is beyond under `project/`, as it lies there: pages of Markdown as
pages, programs as pages that show them, all else as it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

__all__ = [
    "BEYOND",
    "ROOT",
    "files_beyond",
    "for_the_site",
    "in_repository",
    "on_site",
    "page_of_program",
    "pages_named",
]

ROOT = Path(__file__).parents[1]
DOCS = PurePosixPath("docs")
#: Where the site has what does not lie in docs/.
BEYOND = PurePosixPath("project")
#: Programs and the like are shown on a page, in the language by which they are coloured.
LANGUAGES = {
    ".py": "python",
    ".mjs": "js",
    ".sh": "sh",
    ".sql": "sql",
    ".toml": "toml",
    ".yaml": "yaml",
    ".json": "json",
    "": "text",  # Dockerfile, LICENSE
}
_FENCE = re.compile(r"^(?P<fence>`{3,}|~{3,}).*?^(?P=fence)`*$", re.DOTALL | re.MULTILINE)
_OPENING = re.compile(r"\A(`{3,}|~{3,})(\w*).*")
_LINK = re.compile(r"(?<=\]\()(?P<file>[^)\s#:]+)(?P<anchor>#[^)\s]*)?(?=\))")


def on_site(file: PurePosixPath) -> PurePosixPath:
    """Where the site has a file of the repository."""
    if file.is_relative_to(DOCS):
        return file.relative_to(DOCS)
    there = BEYOND / file
    return there.with_name(there.name + ".md") if file.suffix in LANGUAGES else there


def in_repository(page: PurePosixPath) -> PurePosixPath:
    """Where a page of the site lies in the repository."""
    if not page.is_relative_to(BEYOND):
        return DOCS / page
    file = page.relative_to(BEYOND)
    shown = file.with_suffix("")
    return shown if file.suffix == ".md" and shown.suffix in LANGUAGES and (ROOT / shown).is_file() else file


def for_the_site(text: str, page: PurePosixPath) -> str:
    """The Markdown of a page, given by where it lies in the repository: its links are those of the site.

    Blocks of code keep their language, and lose what else their first lines say: names by which tests find them.
    """

    def link(found: re.Match[str]) -> str:
        target = os.path.relpath(on_site(_target(found["file"], page)), on_site(page).parent)
        return PurePosixPath(target).as_posix() + (found["anchor"] or "")

    return "".join(_OPENING.sub(_opening, p) if fenced else _LINK.sub(link, p) for p, fenced in _pieces(text))


def files_beyond(pages: Iterable[PurePosixPath]) -> Iterator[PurePosixPath]:
    """The files beyond docs/ that the site needs, of these pages: those among them, and what they link, and so on."""
    to_visit = list(dict.fromkeys(pages))
    known = set(to_visit)
    while to_visit:
        file = to_visit.pop()
        if not (ROOT / file).is_file():
            continue  # the strict build says which page has the broken link
        if not file.is_relative_to(DOCS):
            yield file
        if file.suffix == ".md":
            new = set(_targets((ROOT / file).read_text(), file)) - known
            to_visit.extend(sorted(target for target in new if not target.is_relative_to(DOCS)))
            known |= new


def page_of_program(file: PurePosixPath) -> str:
    """A page that shows a program."""
    return f"# {file.name}\n\n`{file}`\n\n``````{LANGUAGES[file.suffix]}\n{(ROOT / file).read_text()}\n``````\n"


def _opening(found: re.Match[str]) -> str:
    return found[1] + ("json" if found[2] == "jsonl" else found[2])  # JSON lines are coloured as JSON


def _targets(text: str, page: PurePosixPath) -> Iterator[PurePosixPath]:
    for piece, fenced in _pieces(text):
        if not fenced:
            yield from (_target(found["file"], page) for found in _LINK.finditer(piece))


def _target(link: str, page: PurePosixPath) -> PurePosixPath:
    return PurePosixPath(os.path.normpath(page.parent / link))


def _pieces(text: str) -> Iterator[tuple[str, bool]]:
    """The text in pieces, and whether each is a fenced block."""
    end = 0
    for fenced in _FENCE.finditer(text):
        yield text[end : fenced.start()], False
        yield fenced[0], True
        end = fenced.end()
    yield text[end:], False


def pages_named(nav: Any) -> Iterator[str]:
    """The pages that a navigation of MkDocs has."""
    if isinstance(nav, str):
        yield nav
    else:
        for item in nav.values() if isinstance(nav, dict) else nav:
            yield from pages_named(item)
