"""Files outside of docs/ that pages link by their path in the repository.

The site has the files of docs/ at its top and other files under `project/`: Markdown as pages, programs as pages that
show them, all other files unchanged.
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
#: The folder of the site for files outside of docs/.
BEYOND = PurePosixPath("project")
#: Suffix -> language, for files that are shown as code on a page.
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
    """Return the path on the site of a file of the repository."""
    if file.is_relative_to(DOCS):
        return file.relative_to(DOCS)
    path = BEYOND / file
    return path.with_name(path.name + ".md") if file.suffix in LANGUAGES else path


def in_repository(page: PurePosixPath) -> PurePosixPath:
    """Return the path in the repository of a page of the site."""
    if not page.is_relative_to(BEYOND):
        return DOCS / page
    file = page.relative_to(BEYOND)
    program = file.with_suffix("")
    return program if file.suffix == ".md" and program.suffix in LANGUAGES and (ROOT / program).is_file() else file


def for_the_site(text: str, page: PurePosixPath) -> str:
    """Return the Markdown of a page of the repository with the links of the site.

    The first line of a code block keeps the language, without the name by which tests find the block.
    """

    def link(match: re.Match[str]) -> str:
        target = os.path.relpath(on_site(_target(match["file"], page)), on_site(page).parent)
        return PurePosixPath(target).as_posix() + (match["anchor"] or "")

    return "".join(_OPENING.sub(_opening, p) if fenced else _LINK.sub(link, p) for p, fenced in _pieces(text))


def files_beyond(pages: Iterable[PurePosixPath]) -> Iterator[PurePosixPath]:
    """Yield the files outside of docs/ among these pages, and those that pages link directly or indirectly."""
    to_visit = list(dict.fromkeys(pages))
    seen_files = set(to_visit)
    while to_visit:
        file = to_visit.pop()
        if not (ROOT / file).is_file():
            continue  # the strict build reports the broken link
        if not file.is_relative_to(DOCS):
            yield file
        if file.suffix == ".md":
            new = set(_targets((ROOT / file).read_text(), file)) - seen_files
            to_visit.extend(sorted(target for target in new if not target.is_relative_to(DOCS)))
            seen_files |= new


def page_of_program(file: PurePosixPath) -> str:
    """Return a page that shows a program."""
    return f"# {file.name}\n\n`{file}`\n\n``````{LANGUAGES[file.suffix]}\n{(ROOT / file).read_text()}\n``````\n"


def _opening(match: re.Match[str]) -> str:
    return match[1] + ("json" if match[2] == "jsonl" else match[2])  # JSON lines are highlighted as JSON


def _targets(text: str, page: PurePosixPath) -> Iterator[PurePosixPath]:
    for piece, fenced in _pieces(text):
        if not fenced:
            yield from (_target(match["file"], page) for match in _LINK.finditer(piece))


def _target(link: str, page: PurePosixPath) -> PurePosixPath:
    return PurePosixPath(os.path.normpath(page.parent / link))


def _pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of a text, and whether each is a fenced block."""
    end = 0
    for fenced in _FENCE.finditer(text):
        yield text[end : fenced.start()], False
        yield fenced[0], True
        end = fenced.end()
    yield text[end:], False


def pages_named(nav: Any) -> Iterator[str]:
    """Yield the pages of an MkDocs navigation."""
    if isinstance(nav, str):
        yield nav
    else:
        for item in nav.values() if isinstance(nav, dict) else nav:
            yield from pages_named(item)
