"""The content of claims: the whole log file to be published, so that any writer can complete the commit.

A claim is the create-only object that decides which log file an epoch, or a transaction, becomes. It is JSON. All
claims have the `key` and the `body` of the log file, and a time `t`.
"""

from __future__ import annotations

import msgspec

from icedb.errors import CorruptLog
from icedb.format.codec import decode
from icedb.format.keys import Keys
from icedb.format.records import Count, Sequenced, TimeMs

__all__ = ["Claim", "EpochClaim", "TxnClaim", "decode_epoch_claim", "decode_txn_claim"]


class Claim(msgspec.Struct, frozen=True, omit_defaults=True):
    """The common fields of claims. `stored_ms` is the store's time; None for a claim that was just put."""

    key: str
    t: TimeMs
    body: str
    stored_ms: int | None = None

    @property
    def since_ms(self) -> int:
        """The time from which the claim's age counts: the older of its two times, because either clock may be wrong."""
        return self.t if self.stored_ms is None else min(self.t, self.stored_ms)


class EpochClaim(Claim, frozen=True, omit_defaults=True):
    """The claim that decides which log file an epoch becomes."""


class TxnClaim(Claim, frozen=True, omit_defaults=True, kw_only=True):
    """The claim that decides which log file an exactly-once append becomes. It names the transaction.

    `brings_columns`: only an exclusive commit can publish the log file.
    """

    application: str
    sequence: Sequenced
    brings_columns: bool = False
    generation: Count = 0


def decode_epoch_claim(body: bytes, key: str, keys: Keys, *, stored_ms: int) -> EpochClaim:
    """Decode the claim that was read from `key`. Raises CorruptLog unless it holds a log file of that epoch."""
    epoch = keys.parse_epoch_claim(key)
    try:
        claim = msgspec.json.decode(body, type=EpochClaim)
        file = decode(claim.body.encode(), claim.key, keys)
        name = keys.parse_log_file(claim.key)
    except (msgspec.DecodeError, UnicodeError, RecursionError, CorruptLog) as error:
        raise CorruptLog(f"'{key}' is not a claim ({error}).", key=key) from None
    if file.epoch != epoch or name.epoch != epoch:
        raise CorruptLog(f"the claim '{key}' holds epoch {file.epoch}.", key=key)
    return msgspec.structs.replace(claim, stored_ms=stored_ms)


def decode_txn_claim(body: bytes, key: str, keys: Keys, *, stored_ms: int) -> TxnClaim:
    """Decode the claim that was read from `key`. Raises CorruptLog unless it is of the transaction in the key."""
    try:
        claim = msgspec.json.decode(body, type=TxnClaim)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptLog(f"'{key}' is not a transaction's claim ({error}).", key=key) from None
    if keys.txn_claim(claim.application, claim.sequence, claim.generation) != key:
        raise CorruptLog(
            f"the claim '{key}' is of {claim.application!r}, {claim.sequence}, which has another key. The object was "
            "copied or changed. Restore it from a backup or an earlier version of it.",
            key=key,
        )
    return msgspec.structs.replace(claim, stored_ms=stored_ms)
