"""Long cursors as short texts: Dagster stores the cursor with each tick."""

from __future__ import annotations

import base64
import zlib

__all__ = ["CURSOR_ERRORS", "pack", "unpack"]

#: What `unpack` raises for a text that `pack` did not return.
CURSOR_ERRORS = (zlib.error, ValueError)

_PLAIN_LENGTH_MAX = 1_000
_PACKED = "zlib:"


def pack(plain: bytes) -> str:
    """Return JSON as text, compressed if it is long."""
    if len(plain) <= _PLAIN_LENGTH_MAX:
        return plain.decode()
    return _PACKED + base64.b64encode(zlib.compress(plain, 9)).decode()


def unpack(text: str) -> bytes:
    """Return the JSON of a text of `pack`. Raises `CURSOR_ERRORS`."""
    if not text.startswith(_PACKED):
        return text.encode()
    return zlib.decompress(base64.b64decode(text.removeprefix(_PACKED)))
