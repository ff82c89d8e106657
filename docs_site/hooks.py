"""Hooks that MkDocs calls while it builds the site; mkdocs.yml names this file."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parents[1]))  # MkDocs loads this file by its path, not as a module

from docs_site import beyond  # a module, because MkDocs treats every name here that begins with `on_` as a hook
from icedb import __version__

#: The path below a repository at which hosts of code edit a file of its main branch.
EDIT = "edit/main"
# Code in a cell of a table, of more characters than a column of a phone has.
_CODE_OF_CELL = re.compile(r"<code>([^<]{32,}</code>)(?=[^\n]*</td>)")
_BAR_OF_CELL = re.compile(r"\\\|(?=[^<]*</code>[^\n]*</td>)")
_SEPARATOR = re.compile(r"(?<=\w)(?:::|[/_.=(])(?=\w)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the version and the address of the repository, which the header of each page shows."""
    project = tomllib.loads((beyond.ROOT / "pyproject.toml").read_text())["project"]
    config.extra["release"] = __version__
    config.repo_url = repository_of(project)
    return config


def repository_of(project: Mapping[str, Any]) -> str | None:
    """Return the address of the repository in the `[project.urls]` of a project, if it has one."""
    address = {label.lower(): url for label, url in project.get("urls", {}).items()}.get("repository")
    return None if address is None else str(address).rstrip("/").removesuffix(".git")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside of docs/ that the navigation names or pages link."""
    pages = [PurePosixPath(file.src_uri) for file in files.documentation_pages()]
    pages += [page for page in map(PurePosixPath, beyond.pages_named(config.nav)) if page.is_relative_to(beyond.BEYOND)]
    for file in beyond.files_beyond([beyond.in_repository(page) for page in pages]):
        site_path, source_path = str(beyond.on_site(file)), str(beyond.ROOT / file)
        if file.suffix in beyond.LANGUAGES:
            added = File.generated(config, site_path, content=beyond.page_of_program(file))
        else:
            added = File.generated(config, site_path, abs_src_path=source_path)
        added.inclusion = InclusionLevel.NOT_IN_NAV  # unless the navigation names it
        files.append(added)
    return files


def on_pre_page(page: Page, config: MkDocsConfig, **_: Any) -> Page:
    """Link the source of a page, which MkDocs takes for a file of docs/."""
    if config.repo_url:
        page.edit_url = f"{config.repo_url}/{EDIT}/{beyond.in_repository(PurePosixPath(page.file.src_uri))}"
    return page


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Change links to the paths of the site, hide empty side bars, and rank prose above the reference in the search."""
    source = beyond.in_repository(PurePosixPath(page.file.src_uri))
    if page.parent is None:  # a tab of one page, or a page that the navigation does not name
        page.meta["hide"] = ["navigation"]
    if source.suffix != ".md":  # a program, whose lines are as wide as both bars leave room for
        page.meta["hide"] = ["navigation", "toc"]
    if page.file.src_uri.startswith("reference/"):
        page.meta["search"] = {"boost": 0.002}  # a heading counts a thousand times as much as its text
    return beyond.for_the_site(markdown, source)


def on_page_content(html: str, **_: Any) -> str:
    """Let long names in tables wrap at their separators, because no cell breaks a word.

    In code, Markdown keeps the backslash before a bar, which code hosts need in a table.
    """
    html = _BAR_OF_CELL.sub("|", html)
    return _CODE_OF_CELL.sub(lambda code: '<code class="long">' + _SEPARATOR.sub(r"\g<0><wbr>", code[1]), html)
