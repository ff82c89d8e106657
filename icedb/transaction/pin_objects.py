"""Pin (tag) objects: how they are read, which are in force, and which parts they need.

`icedb.operations.retention.pins` creates and removes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from icedb.errors import CorruptLog
from icedb.format.records import Marker, TimeMs
from icedb.storage.obstore_store import StoredObject
from icedb.transaction.table_handle import Handle

__all__ = ["Pin", "decode_pin", "encode_pin", "is_needed", "is_pinned", "pins_in_force", "read_pins"]


@dataclass(frozen=True, slots=True)
class Pin:
    """A named time that stays readable (a tag). `expires_ms` is None if it lasts until it is removed."""

    name: str
    as_of_ms: int
    created_ms: int
    expires_ms: int | None = None

    def expired(self, now_ms: int) -> bool:
        """Whether its snapshot is no longer kept readable."""
        return self.expires_ms is not None and self.expires_ms <= now_ms


class _PinBody(msgspec.Struct, frozen=True):
    """The JSON body of a pin's object."""

    name: str
    as_of: TimeMs
    created: TimeMs
    expires: TimeMs | None = None


_decoder = msgspec.json.Decoder(_PinBody)


def read_pins(handle: Handle) -> list[Pin]:
    """Return all pins by name, with expired ones. Costs one LIST, and a GET for each. Raises CorruptLog."""
    prefix = handle.keys.claims_prefix
    keys = [i.key for i in handle.store.list(prefix, after=f"{prefix}pin-") if handle.keys.parse_pin(i.key)]
    return sorted((decode_pin(handle, k, o) for k, o in handle.store.get_many(keys).items()), key=lambda p: p.name)


def pins_in_force(handle: Handle, *, cutoff_ms: int) -> list[Pin]:
    """Return the pins that cleanup respects: all that had not expired by `cutoff_ms`, a grace period ago."""
    return [p for p in read_pins(handle) if not p.expired(cutoff_ms)]


def is_pinned(handle: Handle, as_of_ms: int) -> bool:
    """Whether a pin keeps the snapshot at this time readable, although it is before the horizon.

    Call it after the log was read: every state that was read while a pin was in force has the parts that it needs.
    """
    now_ms = handle.clock.now_ms()
    return any(p.as_of_ms == as_of_ms and not p.expired(now_ms) for p in read_pins(handle))


def is_needed(marker: Marker, pins: Iterable[Pin]) -> bool:
    """Whether one of the pins needs the part."""
    dead_ms = marker.tombstoned_ms
    return any(marker.created_ms <= p.as_of_ms and (dead_ms is None or p.as_of_ms < dead_ms) for p in pins)


def decode_pin(handle: Handle, key: str, stored: StoredObject) -> Pin:
    """Decode a pin's object. Raises CorruptLog."""
    try:
        body = _decoder.decode(stored.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(handle, key, str(error)) from None
    if body.name != handle.keys.parse_pin(key):
        raise _damaged(handle, key, f"its name is '{body.name}' in the object")
    late = stored.stored_ms - body.created > handle.timing.commit_timeout_ms
    return Pin(body.name, body.as_of, body.created, body.created if late else body.expires)


def _damaged(handle: Handle, key: str, reason: str) -> CorruptLog:
    return CorruptLog(
        f"{handle.table}: '{key}' cannot be read as a pin ({reason}). The parts that it keeps are unknown, so cleanup "
        f"deletes nothing. If no reader needs it, remove it with unpin('{handle.keys.parse_pin(key)}').",
        key=key,
    )


def encode_pin(planned: Pin) -> bytes:
    """Encode a pin as the bytes of its object."""
    return msgspec.json.encode(_PinBody(planned.name, planned.as_of_ms, planned.created_ms, planned.expires_ms))
