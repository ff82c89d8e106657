"""Small tables whose states are in columns, as those of large tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from icedb.format import codec, replay


@contextmanager
def columns_from(markers: int) -> Iterator[None]:
    """Read log files and states with this number of markers or more in columns, and others as objects."""
    with patch.object(codec, "COLUMNS_MIN", markers), patch.object(replay, "COLUMNS_MIN", markers):
        yield
