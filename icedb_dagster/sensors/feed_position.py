"""The cursor of the commits sensor: the position in the change feed up to which commits are reported."""

from __future__ import annotations

import base64
import zlib
from typing import Literal

import msgspec

from icedb.format.change_feed import Cursor

__all__ = ["FeedPosition", "decode", "encode"]

# The change feed's cursor names each part of the last minutes. Dagster stores it with each tick, so it is compressed.
_PLAIN_LENGTH_MAX = 1_000
_PACKED = "zlib:"


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
    """Return the position as JSON, compressed if it is long."""
    plain = msgspec.json.encode(position)
    if len(plain) <= _PLAIN_LENGTH_MAX:
        return plain.decode()
    return _PACKED + base64.b64encode(zlib.compress(plain, 9)).decode()


def decode(text: str) -> FeedPosition | None:
    """Return a stored position; None for a text that is not a position of this version."""
    try:
        packed = text.startswith(_PACKED)
        plain = zlib.decompress(base64.b64decode(text.removeprefix(_PACKED))) if packed else text.encode()
        return msgspec.json.decode(plain, type=FeedPosition)
    except (msgspec.MsgspecError, zlib.error, ValueError):
        return None
