"""What MkDocs calls while it builds the site; mkdocs.yml names this file."""

from __future__ import annotations

import sys
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parents[1]))  # MkDocs loads this file by its path alone

from docs_site import beyond  # as a module: MkDocs takes every name here that begins with `on_` for a hook


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files beyond docs/ that the navigation has or pages link."""
    pages = [PurePosixPath(file.src_uri) for file in files.documentation_pages()]
    pages += [page for page in map(PurePosixPath, beyond.pages_named(config.nav)) if page.is_relative_to(beyond.BEYOND)]
    for file in beyond.files_beyond([beyond.in_repository(page) for page in pages]):
        there, here = str(beyond.on_site(file)), str(beyond.ROOT / file)
        if file.suffix in beyond.LANGUAGES:
            added = File.generated(config, there, content=beyond.page_of_program(file))
        else:
            added = File.generated(config, there, abs_src_path=here)
        added.inclusion = InclusionLevel.NOT_IN_NAV  # unless the navigation says otherwise
        files.append(added)
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links lead to where the site has the files; let the search name pages of prose before the reference."""
    if page.file.src_uri.startswith("reference/"):
        page.meta["search"] = {"boost": 0.002}  # a heading counts a thousand times what is below it
    return beyond.for_the_site(markdown, beyond.in_repository(PurePosixPath(page.file.src_uri)))
