"""The log reader: lists the log, fetches log files, replays them, and lists again if the listing was torn.

Log files never change, so fetched files are cached. A refresh lists from safely before the last listing on, and fetches
new files. If there are none, it costs one LIST and returns the last state again. The head (the log file of the newest
epoch) is fetched first, because it lists the other epochs that count. Their log files come next, because they list the
files that need not be fetched. The rest comes last. A listing is torn if it lacks an epoch that the head lists, or if
it names a file that no longer exists although no other file replaced it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from icedb.errors import InconsistentListing
from icedb.format.codec import decode
from icedb.format.keys import Keys, LogName
from icedb.format.log_schema import TypeName
from icedb.format.replay import StoredLogFile, TableState, ignored_by, replay
from icedb.format.timing import timing_at
from icedb.storage.obstore_store import ObjectStore
from icedb.transaction.current_spec import TableTimes
from icedb.util.clock import Clock, SystemClock

__all__ = ["LogReader"]

# Each retry means that another commit or cleanup landed between LIST and GETs. So many in a row do not happen.
READ_ATTEMPTS_MAX = 20


@dataclass(frozen=True, slots=True)
class _Listing:
    """The listed log files with the store's times, and the start of this listing and of the last whole one."""

    stored_ms: Mapping[str, int] = field(default_factory=dict)
    at_ms: int = 0
    whole_at_ms: int | None = None


class LogReader:
    """Reads one table's log and caches its log files. Threads can share it.

    `type_name` and `tolerant` are passed to `replay`.
    """

    def __init__(
        self,
        store: ObjectStore,
        keys: Keys,
        *,
        clock: Clock | None = None,
        times: TableTimes | None = None,
        type_name: TypeName = str,
        tolerant: bool = False,
    ) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock or SystemClock()
        self._times = times or TableTimes()
        self._type_name = type_name
        self._tolerant = tolerant
        self._seen: dict[str, StoredLogFile] = {}
        #: The last listing that was not torn, without the log files that were ignored then.
        self._last = _Listing()
        #: Whether the last replay was of all log files, and its state.
        self._replayed: tuple[bool, TableState] | None = None
        self._lock = threading.Lock()

    def read(self, *, everything: bool = False, fresh: bool = False) -> TableState:
        """Return the table's state now. `everything` also fetches ignored log files, as long as they exist.

        `fresh` lists the whole log. Without it, a log file that a paused writer put with a time long past appears
        within the grace period. Exclusive commits always read with `fresh`. An unchanged listing returns the same
        object, which callers must not change.

        Raises InconsistentListing, CorruptLog, SchemaConflict, UncoordinatedMaintenance and the store's errors.
        """
        torn = ""
        for attempt in range(READ_ATTEMPTS_MAX):
            listing = self._list(whole=everything or fresh or attempt > 0)
            state = self._replayed_of(listing, everything=everything) or self._replay(listing, everything=everything)
            if isinstance(state, TableState):
                self._remember(listing, state, everything=everything)
                return state
            torn = state
        raise InconsistentListing(
            f"{self._store.location.uri}: {READ_ATTEMPTS_MAX} listings in a row did not match the newest log file "
            f"({torn}). Retry the call. If it fails again, another program deletes log files that it did not write: "
            "run verify for details."
        )

    def list_after(self, key: str | None) -> list[str]:
        """Return the keys of the log files after `key`, in order. Costs one LIST."""
        return [info.key for info in self._store.list(self._keys.log_prefix, after=key)]

    def fetch(self, key: str) -> StoredLogFile | None:
        """Return one log file, or None if it does not exist."""
        stored = self._store.get_many([key]).get(key)
        return None if stored is None else StoredLogFile(key, decode(stored.body, key, self._keys), stored.stored_ms)

    # ------------------------------------------------------------------------------------ listing

    def _list(self, *, whole: bool) -> _Listing:
        """List the log. The part of it that cannot have changed comes from the last listing."""
        now_ms = self._clock.now_ms()
        with self._lock:
            last = self._last
            after = None if whole else self._unchanged_until(now_ms)
        unchanged = {} if after is None else {k: t for k, t in last.stored_ms.items() if k <= after}
        listed = unchanged | {i.key: i.stored_ms for i in self._store.list(self._keys.log_prefix, after=after)}
        return _Listing(listed, now_ms, now_ms if after is None else last.whole_at_ms)

    def _remember(self, listing: _Listing, state: TableState, *, everything: bool) -> None:
        """Cache the listing and the state for later refreshes.

        Ignored log files are not cached. They may be deleted at any time. If their tombstone is older than `late_ms`,
        the log may forget them at once. A refresh that remembered one would then find that no other file replaced it.
        """
        with self._lock:
            self._replayed = everything, state
            self._seen = {k: f for k, f in self._seen.items() if k in listing.stored_ms}
            if self._last.whole_at_ms is None or listing.at_ms >= self._last.at_ms:
                kept = {k: t for k, t in listing.stored_ms.items() if k not in state.ignored}
                self._last = _Listing(kept, listing.at_ms, listing.whole_at_ms)

    def _unchanged_until(self, now_ms: int) -> str | None:
        """Return the key before which nothing new can appear, or None to list the whole log.

        Log files that were replaced since the last listing are ignored, because a log tombstone names them. Tombstones
        are kept for `late_ms`, so a whole listing is due well before that, by the spec's own times. If a time was
        shortened, the shorter one is safe. A log without epochs may be maintained by programs that replace files.
        """
        spec, last = self._times.spec, self._last
        if last.whole_at_ms is None or not any(f.file.epoch for f in self._seen.values()):
            return None
        if not 0 <= now_ms - last.whole_at_ms <= min(spec.timing.grace_ms, spec.timing.late_ms // 2):
            return None
        late_ms = timing_at(spec.timing, spec.earlier_timing, now_ms).late_publication_ms
        # Use the store's clock too: this clock may be hours ahead, and a reader cannot notice that otherwise.
        newest_ms = max(last.stored_ms.values(), default=0)
        since_ms = max(0, min(last.at_ms, now_ms, newest_ms) - late_ms)
        return self._keys.log_prefix + f"{since_ms:013d}"

    # ------------------------------------------------------------------------------------ replaying

    def _replayed_of(self, listing: _Listing, *, everything: bool) -> TableState | None:
        """Return the last state if it is of exactly these log files."""
        with self._lock:
            if self._replayed is not None:
                of_everything, state = self._replayed
                if of_everything == everything and state.listed_ms == listing.stored_ms:
                    return state
        return None

    def _replay(self, listing: _Listing, *, everything: bool) -> TableState | str:
        """Return the state, or if the listing is torn, a description of what it lacks."""
        listed_ms = listing.stored_ms
        names = {key: self._keys.parse_log_file(key) for key in listed_ms}
        files = self._find(names, listed_ms, everything=everything)
        torn = self._torn(files, names, everything=everything)
        return torn or replay(
            files.values(),
            table=self._store.location.uri,
            listed_ms=listed_ms,
            type_name=self._type_name,
            tolerant=self._tolerant,
            previous=self._replayed[1] if self._replayed is not None else None,
        )

    # ------------------------------------------------------------------------------------ fetching

    def _find(
        self, names: Mapping[str, LogName], listed_ms: Mapping[str, int], *, everything: bool
    ) -> dict[str, StoredLogFile]:
        """Fetch the log files that count (or all), as far as they exist."""
        files = self._head(names, listed_ms)
        head, live_epochs, _ = self._ignored(files)
        unread = frozenset() if everything else _unread(names, head, live_epochs)
        files |= self._fetch((k for k, n in names.items() if n.epoch is not None and k not in unread), listed_ms)
        _, _, ignored = self._ignored(files)
        return files | self._fetch(
            (k for k in names if k not in unread and (everything or k not in ignored)), listed_ms
        )

    def _torn(self, files: Mapping[str, StoredLogFile], names: Mapping[str, LogName], *, everything: bool) -> str:
        """Describe the log files that the listing lacks. Empty if the listing is not torn."""
        head, live_epochs, ignored = self._ignored(files)
        unread = frozenset() if everything else _unread(names, head, live_epochs)
        gone = names.keys() - files.keys() - ignored - unread
        unlisted = live_epochs - {f.file.epoch for f in files.values()}
        return f"gone: {sorted(gone)}; live epochs that are missing: {sorted(unlisted)}" if gone or unlisted else ""

    def _head(self, names: Mapping[str, LogName], listed_ms: Mapping[str, int]) -> dict[str, StoredLogFile]:
        """Fetch the log file of the newest epoch, and those that only by their names have a newer one."""
        files: dict[str, StoredLogFile] = {}
        for epoch in sorted({n.epoch for n in names.values() if n.epoch is not None}, reverse=True):
            files |= self._fetch((k for k, n in names.items() if n.epoch == epoch), listed_ms)
            if any(f.file.epoch is not None for f in files.values()):
                break
        return files

    def _ignored(self, files: Mapping[str, StoredLogFile]) -> tuple[int, frozenset[int], frozenset[str]]:
        return ignored_by({k: f.file for k, f in files.items()}, self._store.location.uri)

    def _fetch(self, keys: Iterable[str], listed_ms: Mapping[str, int]) -> dict[str, StoredLogFile]:
        wanted = list(keys)
        with self._lock:
            cached = {k: f for k in wanted if (f := self._seen.get(k)) is not None and f.stored_ms == listed_ms[k]}
        fetched = self._store.get_many([k for k in wanted if k not in cached])
        new = {k: StoredLogFile(k, decode(o.body, k, self._keys), listed_ms[k]) for k, o in fetched.items()}
        with self._lock:
            self._seen |= new
        return cached | new


def _unread(names: Mapping[str, LogName], head: int, live_epochs: frozenset[int]) -> frozenset[str]:
    """Return log files of epochs before the head's that no longer count, if their names are certainly ours."""
    return frozenset(
        k for k, n in names.items() if n.is_ours and (n.epoch or head) < head and n.epoch not in live_epochs
    )
