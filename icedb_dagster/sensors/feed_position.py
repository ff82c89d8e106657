"""How far the telling of commits is: the cursor of `icedb_dagster.sensors.commits`."""

from __future__ import annotations

import base64
import zlib
from typing import Literal

import msgspec

from icedb.format.change_feed import Cursor

__all__ = ["FeedPosition", "decode", "encode"]

# The change feed's cursor names each part of the last minutes. Dagster stores it with each tick, so it is made small.
_PLAIN_LENGTH_MAX = 1_000
_PACKED = "zlib:"


class FeedPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`changes`: where the change feed goes on. `foreign`: it was told that a program of v3 maintains the table.

    `known_ms` (unix milliseconds): of what was superseded by then, nothing is left to be told. It is later than the
    cursor's time, which is before all that may still appear: cleanup with a short grace period forgets in between.
    """

    changes: Cursor
    foreign: bool = False
    known_ms: int = 0
    version: Literal[1] = 1


def encode(position: FeedPosition) -> str:
    """As JSON, packed when it is long."""
    plain = msgspec.json.encode(position)
    if len(plain) <= _PLAIN_LENGTH_MAX:
        return plain.decode()
    return _PACKED + base64.b64encode(zlib.compress(plain, 9)).decode()


def decode(text: str) -> FeedPosition | None:
    """A cursor that was stored; None for what is none of this version."""
    try:
        packed = text.startswith(_PACKED)
        plain = zlib.decompress(base64.b64decode(text.removeprefix(_PACKED))) if packed else text.encode()
        return msgspec.json.decode(plain, type=FeedPosition)
    except (msgspec.MsgspecError, zlib.error, ValueError):
        return None
