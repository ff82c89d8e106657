"""The problems of a table as the UI shows them, for the verify job and the objects check."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

import icedb
from icedb_dagster.metadata import markdown

__all__ = ["problems_table"]

# An event is read on a screen. `icedb verify` lists all problems.
PROBLEMS_MAX = 100


def problems_table(problems: Sequence[icedb.Problem]) -> dg.MarkdownMetadataValue:
    """Return the first hundred problems in their order, each with its remedy."""
    rows = [(p.severity, p.key, p.kind, p.message) for p in problems[:PROBLEMS_MAX]]
    text = markdown.table(("severity", "object", "problem", "meaning and remedy"), rows)
    if len(problems) > PROBLEMS_MAX:
        text += f"\n\nand {len(problems) - PROBLEMS_MAX:,} more: `icedb verify` lists all"
    return dg.MetadataValue.md(text)
