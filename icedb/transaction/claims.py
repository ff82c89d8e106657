"""The claims in the store, and the parts that their log files would name.

An undecided claim may become a log file at any moment, so its parts must not be deleted. An object that cannot be read
as a claim may also name parts. It is reported, and no program deletes unnamed parts while it exists.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from icedb.errors import CorruptLog
from icedb.format.claims import Claim
from icedb.format.codec import decode
from icedb.format.keys import Keys
from icedb.format.records import LogFile
from icedb.storage.obstore_store import StoredObject
from icedb.transaction.table_handle import Handle

__all__ = ["Claims", "StoredClaim", "read_claims"]


@dataclass(frozen=True, slots=True)
class StoredClaim:
    """A claim in the store. `epoch` is the epoch that it decides, or None for the claim of a transaction."""

    key: str
    epoch: int | None
    log_key: str
    file: LogFile
    stored_ms: int


@dataclass(frozen=True, slots=True)
class Claims:
    """All objects below the claims' prefix. `damaged` are unreadable claims, and objects of unknown kinds."""

    decoded: tuple[StoredClaim, ...]
    damaged: tuple[CorruptLog, ...]
    pins: tuple[str, ...]


def read_claims(handle: Handle) -> Claims:
    """List and read the claims. A claim that disappears meanwhile is decided, as a later read of the log shows."""
    listed = [info for info in handle.store.list(handle.keys.claims_prefix) if info.key != handle.keys.probe]
    keys = [info.key for info in listed if not info.is_link]
    pins = [k for k in keys if handle.keys.parse_pin(k) is not None]
    decoded: list[StoredClaim] = []
    damaged = [_damaged(info.key, "it is a symbolic link") for info in listed if info.is_link]
    for key, stored in handle.store.get_many([k for k in keys if k not in pins]).items():
        try:
            decoded.append(_decode(key, stored, handle.keys))
        except CorruptLog as error:
            damaged.append(error)
    return Claims(tuple(decoded), tuple(damaged), tuple(pins))


def _decode(key: str, stored: StoredObject, keys: Keys) -> StoredClaim:
    epoch = keys.parse_epoch_claim(key)
    if epoch is None and not keys.is_txn_claim(key):
        raise CorruptLog(
            f"'{key}' lies among the claims, but this version does not know it. It may name parts that nothing else "
            "names: no unnamed part is deleted while it exists. Move it elsewhere if no program of yours needs it.",
            key=key,
        )
    try:
        claim = msgspec.json.decode(stored.body, type=Claim)
        file = decode(claim.body.encode(), claim.key, keys)
        name = keys.parse_log_file(claim.key)
    except (msgspec.DecodeError, UnicodeError, RecursionError, CorruptLog) as error:
        raise _damaged(key, str(error)) from None
    if epoch is not None and {file.epoch, name.epoch} != {epoch}:
        raise _damaged(key, f"it holds epoch {file.epoch} for '{claim.key}'")
    return StoredClaim(key, epoch, claim.key, file, stored.stored_ms)


def _damaged(key: str, reason: str) -> CorruptLog:
    return CorruptLog(
        f"the claim '{key}' cannot be read: {reason}. Restore the object from a backup or an earlier version of it. "
        "Do not delete it before you know which parts it named.",
        key=key,
    )
