"""Read the log: list it, fetch what is needed, replay it, and list again when the listing was torn.

Log files never change, so what was fetched once is kept. A refresh lists from safely before the last listing on
and fetches what is new. When nothing is, that is one LIST, and the state that was replayed last is the answer again.
The head, the log file of the newest epoch, is fetched first: it says which other epochs count; then those, which say
what else need not be fetched; then the rest. A listing is torn when it lacks an epoch that the head lists, or names a
file that is gone though nothing replaced it.
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
from icedb.format.timing import EarlierTiming, Timing, timing_at
from icedb.storage.obstore_store import ObjectStore
from icedb.util.clock import Clock, SystemClock

__all__ = ["LogReader"]

# Each new try means that another commit or cleanup landed between our LIST and GETs; so many in a row do not happen.
READ_ATTEMPTS_MAX = 20


@dataclass(frozen=True, slots=True)
class _Listing:
    """The log files that were there, and when the store got each; when the listing, and the last whole one, began."""

    stored_ms: Mapping[str, int] = field(default_factory=dict)
    at_ms: int = 0
    whole_at_ms: int | None = None


class LogReader:
    """Reads one table's log, keeping the log files that it has seen. Safe to share between threads.

    `type_name` and `tolerant` are for `replay`.
    """

    def __init__(
        self,
        store: ObjectStore,
        keys: Keys,
        *,
        clock: Clock | None = None,
        timing: Timing | None = None,
        type_name: TypeName = str,
        tolerant: bool = False,
    ) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock or SystemClock()
        self._times: tuple[Timing, tuple[EarlierTiming, ...]] = (timing or Timing(), ())
        self._type_name = type_name
        self._tolerant = tolerant
        self._seen: dict[str, StoredLogFile] = {}
        #: The last listing that fitted, without what was ignored then.
        self._last = _Listing()
        #: What was replayed last, and whether of everything.
        self._replayed: tuple[bool, TableState] | None = None
        self._lock = threading.Lock()

    def read(self, *, everything: bool = False, fresh: bool = False) -> TableState:
        """The table's state now. `everything` fetches ignored log files too, as long as they are there.

        `fresh` lists the whole log. Without it, a log file that a paused writer put at a time long past shows up
        within the grace period; exclusive commits always read afresh. A listing like the last one gives the same state,
        which nobody may change.

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
            f"{self._store.location.uri}: {READ_ATTEMPTS_MAX} listings in a row did not fit what the newest log file "
            f"says ({torn}). Try again; if it stays so, another program deletes log files that it did not write: "
            "verify tells more."
        )

    def learn_timing(self, timing: Timing, earlier: tuple[EarlierTiming, ...]) -> None:
        """Use these times from the next listing on; see `options.timing_at`."""
        self._times = timing, earlier

    def list_after(self, key: str | None) -> list[str]:
        """The keys of the log files after `key`, in order; one LIST and nothing else."""
        return [info.key for info in self._store.list(self._keys.log_prefix, after=key)]

    def fetch(self, key: str) -> StoredLogFile | None:
        """One log file, or None when it is not there."""
        stored = self._store.get_many([key]).get(key)
        return None if stored is None else StoredLogFile(key, decode(stored.body, key, self._keys), stored.stored_ms)

    # ------------------------------------------------------------------------------------ listing

    def _list(self, *, whole: bool) -> _Listing:
        """What is there now; the part of the log that cannot have changed is remembered."""
        now_ms = self._clock.now_ms()
        with self._lock:
            last = self._last
            after = None if whole else self._unchanged_until(now_ms)
        known = {} if after is None else {k: t for k, t in last.stored_ms.items() if k <= after}
        listed = known | {i.key: i.stored_ms for i in self._store.list(self._keys.log_prefix, after=after)}
        return _Listing(listed, now_ms, now_ms if after is None else last.whole_at_ms)

    def _remember(self, listing: _Listing, state: TableState, *, everything: bool) -> None:
        """Keep what later refreshes may rely on.

        Of the listing not what is ignored: it may be deleted any time, and when its tombstone is older than `late_ms`,
        be forgotten by the log at once. A refresh that remembered it would take it for something that nothing replaced.
        """
        with self._lock:
            self._replayed = everything, state
            self._seen = {k: f for k, f in self._seen.items() if k in listing.stored_ms}
            if self._last.whole_at_ms is None or listing.at_ms >= self._last.at_ms:
                kept = {k: t for k, t in listing.stored_ms.items() if k not in state.ignored}
                self._last = _Listing(kept, listing.at_ms, listing.whole_at_ms)

    def _unchanged_until(self, now_ms: int) -> str | None:
        """The key before which nothing new can appear; None: list all.

        What was replaced since the last listing is ignored, for a log tombstone names it; these are kept `late_ms`, so
        a whole listing is due well before, by the spec's own times: of one that was shortened, the shorter is safe. A
        log without epochs may be maintained by programs that replace files.
        """
        (timing, earlier), last = self._times, self._last
        if last.whole_at_ms is None or not any(f.file.epoch for f in self._seen.values()):
            return None
        if not 0 <= now_ms - last.whole_at_ms <= min(timing.grace_ms, timing.late_ms // 2):
            return None
        late_ms = timing_at(timing, earlier, now_ms).late_publication_ms
        # By the store's clock too: this one may be hours ahead, and a reader has no other way to notice.
        newest_ms = max(last.stored_ms.values(), default=0)
        since_ms = max(0, min(last.at_ms, now_ms, newest_ms) - late_ms)
        return self._keys.log_prefix + f"{since_ms:013d}"

    # ------------------------------------------------------------------------------------ replaying

    def _replayed_of(self, listing: _Listing, *, everything: bool) -> TableState | None:
        """The last state, if it is of these very log files."""
        with self._lock:
            if self._replayed is not None:
                of_everything, state = self._replayed
                if of_everything == everything and state.listed_ms == listing.stored_ms:
                    return state
        return None

    def _replay(self, listing: _Listing, *, everything: bool) -> TableState | str:
        """The state; or, when the listing is torn, what it lacks."""
        listed_ms = listing.stored_ms
        names = {key: self._keys.parse_log_file(key) for key in listed_ms}
        found = self._find(names, listed_ms, everything=everything)
        torn = self._torn(found, names, everything=everything)
        return torn or replay(
            found.values(),
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
        """The log files that count (or all), as far as they are there."""
        found = self._head(names, listed_ms)
        head, live_epochs, _ = self._ignored(found)
        unread = frozenset() if everything else _unread(names, head, live_epochs)
        found |= self._fetch((k for k, n in names.items() if n.epoch is not None and k not in unread), listed_ms)
        _, _, ignored = self._ignored(found)
        return found | self._fetch(
            (k for k in names if k not in unread and (everything or k not in ignored)), listed_ms
        )

    def _torn(self, found: Mapping[str, StoredLogFile], names: Mapping[str, LogName], *, everything: bool) -> str:
        """What the log files say that the listing did not have; empty when they fit."""
        head, live_epochs, ignored = self._ignored(found)
        unread = frozenset() if everything else _unread(names, head, live_epochs)
        gone = names.keys() - found.keys() - ignored - unread
        unlisted = live_epochs - {f.file.epoch for f in found.values()}
        return f"gone: {sorted(gone)}; live epochs that are missing: {sorted(unlisted)}" if gone or unlisted else ""

    def _head(self, names: Mapping[str, LogName], listed_ms: Mapping[str, int]) -> dict[str, StoredLogFile]:
        """The log file of the newest epoch, and those whose names announce one as new but hold none."""
        found: dict[str, StoredLogFile] = {}
        for epoch in sorted({n.epoch for n in names.values() if n.epoch is not None}, reverse=True):
            found |= self._fetch((k for k, n in names.items() if n.epoch == epoch), listed_ms)
            if any(f.file.epoch is not None for f in found.values()):
                break
        return found

    def _ignored(self, found: Mapping[str, StoredLogFile]) -> tuple[int, frozenset[int], frozenset[str]]:
        return ignored_by({k: f.file for k, f in found.items()}, self._store.location.uri)

    def _fetch(self, keys: Iterable[str], listed_ms: Mapping[str, int]) -> dict[str, StoredLogFile]:
        wanted = list(keys)
        with self._lock:
            known = {k: f for k in wanted if (f := self._seen.get(k)) is not None and f.stored_ms == listed_ms[k]}
        fetched = self._store.get_many([k for k in wanted if k not in known])
        new = {k: StoredLogFile(k, decode(o.body, k, self._keys), listed_ms[k]) for k, o in fetched.items()}
        with self._lock:
            self._seen |= new
        return known | new


def _unread(names: Mapping[str, LogName], head: int, live_epochs: frozenset[int]) -> frozenset[str]:
    """Log files of epochs before the head's that count no more. Only names that are surely ours are believed."""
    return frozenset(
        k for k, n in names.items() if n.is_ours and (n.epoch or head) < head and n.epoch not in live_epochs
    )
