"""Sizes in bytes as text: `64MB`, `128 MiB` or `4_000_000`."""

from __future__ import annotations

import re
from decimal import Decimal

from icedb.errors import InvalidOption

__all__ = ["parse_size"]

_SIZE = re.compile(r"\s*([0-9][0-9_,]*(?:\.[0-9]+)?)\s*(?:([kmgt])(i?)b?|b)?\s*", re.IGNORECASE)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str) -> int:
    """Parse a number of bytes with an optional unit. `kB`, `MB`, `GB`, `TB` count 1000, and `KiB` to `TiB` 1024.

    The case of a unit does not matter, and its `B` may be omitted. Raises InvalidOption.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise InvalidOption(f"{text!r} is not a size. Write 64MB, 128MiB or a number of bytes.")
    number, prefix, binary = match.groups()
    unit = (1024 if binary else 1000) ** _POWERS[prefix.lower()] if prefix else 1
    return round(Decimal(re.sub("[_,]", "", number)) * unit)
