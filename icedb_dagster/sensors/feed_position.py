"""The cursor of the commits sensor: the position in the change feed up to which commits are reported."""

from __future__ import annotations

from typing import Literal

import msgspec

from icedb.format.change_feed import Cursor
from icedb_dagster.sensors.cursor_text import CURSOR_ERRORS, pack, unpack

__all__ = ["FeedPosition", "decode", "encode"]


class FeedPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`changes` is the position in the change feed. `foreign`: it is reported that an IceDB v3 program maintains the
    table.

    Everything superseded up to `known_ms` (unix milliseconds) is reported. It is later than the cursor's time, which
    precedes all commits that may still appear. Cleanup with a short grace period forgets markers in between.
    """

    changes: Cursor
    foreign: bool = False
    known_ms: int = 0
    version: Literal[1] = 1


def encode(position: FeedPosition) -> str:
    """Return the position as text. It names each part of the last minutes, so it may be long."""
    return pack(msgspec.json.encode(position))


def decode(text: str) -> FeedPosition | None:
    """Return a stored position; None for a text that is not a position of this version."""
    try:
        return msgspec.json.decode(unpack(text), type=FeedPosition)
    except (msgspec.MsgspecError, *CURSOR_ERRORS):
        return None
