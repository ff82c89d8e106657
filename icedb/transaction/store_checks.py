"""Checks of a table's store: it refuses to overwrite objects, and its clock agrees with this machine's."""

from __future__ import annotations

from contextlib import suppress

from icedb.errors import ClockSkew, StoreUnavailable, UnsupportedStore
from icedb.storage.object_store import STORED_MS_PRECISION, ObjectExists, ObjectNotFound, ObjectStore
from icedb.transaction.current_spec import TableTimes
from icedb.util.clock import Clock

__all__ = ["StoreChecks", "clock_ahead_ms"]

# A sweep deletes the object of a comparison only if this process was suspended for hours right after its put.
CLOCK_ATTEMPTS_MAX = 3


class StoreChecks:
    """The checks that a handle makes once, before its first commit. `skip`: make none (`fencing="none"`).

    A copy does not repeat a check that has succeeded before. Threads can share it: at worst, two make the same check.
    """

    def __init__(self, store: ObjectStore, clock: Clock, times: TableTimes, *, skip: bool) -> None:
        self._store = store
        self._keys = store.location.keys
        self._table = store.location.uri
        self._clock = clock
        self._times = times
        self._is_create_only = skip
        self._clock_agrees = skip

    def check_create_only(self) -> None:
        """Check that the store refuses to overwrite an object. Raises UnsupportedStore and the store's errors."""
        if self._is_create_only:
            return
        for _ in range(2):  # the first put may create the probe
            try:
                self._store.create(self._keys.probe, b"{}")
            except ObjectExists:
                self._is_create_only = True
                return
        raise UnsupportedStore(
            f"{self._table}: the store overwrites an existing object in spite of the header If-None-Match: *. "
            "Two concurrent maintenance runs could lose rows. Use a store that honours it, or open the table with "
            "fencing='none' and ensure that exactly one program maintains it."
        )

    def check_clock(self, key: str, *, put_after_ms: int) -> None:
        """Compare this machine's clock with the store's time for an object that this process has just put.

        `put_after_ms` is the time before that put. Raises ClockSkew and the store's errors.
        """
        if self._clock_agrees:
            return
        if self._clock.now_ms() - put_after_ms > self._max_skew_ms:
            self._check_clock_now()  # the put is too long ago, and perhaps of another machine
        else:
            self._compare(key, put_after_ms)

    @property
    def _max_skew_ms(self) -> int:
        return self._times.in_force(self._clock).max_skew_ms

    def _check_clock_now(self) -> None:
        """Compare by an object that is put only for this purpose. After a crash, it is an orphan like others."""
        for _ in range(CLOCK_ATTEMPTS_MAX):
            before_ms = self._clock.now_ms()
            key = self._keys.part("", self._clock.new_id())
            try:
                with suppress(ObjectExists):  # the key is random: our own put, repeated by the client library
                    self._store.create(key, b"")
                return self._compare(key, before_ms)
            except ObjectNotFound:
                continue  # this process was suspended for so long that another program's sweep deleted the object
            finally:
                self._store.delete([key])
        raise StoreUnavailable(
            f"{self._table}: {CLOCK_ATTEMPTS_MAX} objects below '{self._keys.data_prefix}' were deleted before their "
            "time could be read, so the clocks could not be compared. Nothing was published. Retry the call."
        )

    def _compare(self, key: str, put_after_ms: int) -> None:
        stored_ms = self._store.head(key).stored_ms
        ahead_ms = clock_ahead_ms(put_after_ms=put_after_ms, stored_ms=stored_ms, now_ms=self._clock.now_ms())
        if abs(ahead_ms) > self._max_skew_ms:
            raise ClockSkew(
                f"{self._table}: this machine's clock is {abs(ahead_ms) / 1000:.0f} s "
                f"{'ahead of' if ahead_ms > 0 else 'behind'} the store's; {self._max_skew_ms / 1000:.0f} s "
                "are allowed. Nothing was published or deleted. Synchronise this machine's clock (NTP)."
            )
        self._clock_agrees = True


def clock_ahead_ms(*, put_after_ms: int, stored_ms: int, now_ms: int) -> int:
    """Return by how much, at least, this machine's clock is ahead of the store's. A negative value means behind.

    `stored_ms` is the store's time for an object. It was put between the other two times, which are this machine's.
    """
    ahead_ms = put_after_ms - STORED_MS_PRECISION - stored_ms
    behind_ms = stored_ms - now_ms
    return max(ahead_ms, 0) or -max(behind_ms, 0)
