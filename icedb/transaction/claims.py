"""Read the claims: which log files are to be, and which parts those would name.

An undecided claim may become a log file at any moment, so nothing may delete the parts that it names. What cannot be
read as a claim may name parts as well: it is reported, and a program that deletes unnamed parts stops there.
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

__all__ = ["Claims", "FoundClaim", "read_claims"]


@dataclass(frozen=True, slots=True)
class FoundClaim:
    """A claim as it lies in the store. `epoch` is the one that it decides; None: it is a transaction's."""

    key: str
    epoch: int | None
    log_key: str
    file: LogFile
    stored_ms: int


@dataclass(frozen=True, slots=True)
class Claims:
    """All that lies among the claims. `damaged` are claims that cannot be read, and objects of unknown kinds."""

    found: tuple[FoundClaim, ...]
    damaged: tuple[CorruptLog, ...]
    pins: tuple[str, ...]


def read_claims(handle: Handle) -> Claims:
    """List and read the claims. One that is gone meanwhile is history: the log, if read afterwards, tells the rest."""
    listed = [info for info in handle.store.list(handle.keys.claims_prefix) if info.key != handle.keys.probe]
    keys = [info.key for info in listed if not info.is_link]
    pins = [k for k in keys if handle.keys.parse_pin(k) is not None]
    found: list[FoundClaim] = []
    damaged = [_damaged(info.key, "it is a symbolic link") for info in listed if info.is_link]
    for key, stored in handle.store.get_many([k for k in keys if k not in pins]).items():
        try:
            found.append(_decode(key, stored, handle.keys))
        except CorruptLog as error:
            damaged.append(error)
    return Claims(tuple(found), tuple(damaged), tuple(pins))


def _decode(key: str, stored: StoredObject, keys: Keys) -> FoundClaim:
    epoch = keys.parse_epoch_claim(key)
    if epoch is None and not keys.is_txn_claim(key):
        raise CorruptLog(
            f"'{key}' lies among the claims and is none that this version knows. It may name parts that nothing else "
            "names: nothing unnamed is deleted while it is there. Move it elsewhere if nothing of yours needs it.",
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
    return FoundClaim(key, epoch, claim.key, file, stored.stored_ms)


def _damaged(key: str, reason: str) -> CorruptLog:
    return CorruptLog(
        f"the claim '{key}' cannot be read: {reason}. Restore the object from a backup or an earlier version of it; "
        "do not delete it before you know which parts it named.",
        key=key,
    )
