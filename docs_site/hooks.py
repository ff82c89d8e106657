"""Hooks that MkDocs calls while it builds the site; mkdocs.yml names this file."""

from __future__ import annotations

import sys
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parents[1]))  # MkDocs loads this file by its path, not as a module

from docs_site import beyond  # a module, because MkDocs treats every name here that begins with `on_` as a hook


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


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Change links to the paths of the site, and rank pages of prose above the reference in the search."""
    if page.file.src_uri.startswith("reference/"):
        page.meta["search"] = {"boost": 0.002}  # a heading counts a thousand times as much as its text
    return beyond.for_the_site(markdown, beyond.in_repository(PurePosixPath(page.file.src_uri)))
