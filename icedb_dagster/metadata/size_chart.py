"""The chart of a table's part sizes in Dagster's Markdown. It is stored with each materialization."""

from __future__ import annotations

import base64

from icedb.operations.health.size_chart import PartSizes, draw
from icedb_dagster.metadata.markdown import picture

__all__ = ["markdown_picture"]


def markdown_picture(sizes: PartSizes) -> str:
    """Return the chart with its alternative text in Markdown; without parts only the text."""
    return picture(sizes.text, base64.b64encode(draw(sizes)).decode()) if sizes.parts else sizes.text
