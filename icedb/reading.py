"""Read the log: list it, fetch what is needed, replay it, and list again when the listing was torn.

Log files never change, so what was fetched once is kept; a refresh of a long-lived table is one LIST and the
new log files. The files with epochs are fetched first: they say what need not be fetched at all. A listing is
torn when it lacks an epoch that the head lists, or names a file that is gone though nothing replaced it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from icedb.errors import TornListing
from icedb.format.codec import decode
from icedb.format.names import Keys
from icedb.format.snapshot import LogState, StoredLogFile, ignored_by, replay
from icedb.store import ObjectStore

__all__ = ["LogReader"]

# Each new try means that another commit or cleanup landed between our LIST and GETs; so many in a row do not happen.
READ_ATTEMPTS_MAX = 20


class LogReader:
    """Reads one table's log, keeping the log files that it has seen. Safe to share between threads."""

    def __init__(self, store: ObjectStore, keys: Keys) -> None:
        self._store = store
        self._keys = keys
        self._seen: dict[str, StoredLogFile] = {}
        self._lock = threading.Lock()

    def read(self, *, everything: bool = False) -> LogState:
        """The table's state now. `everything` fetches ignored log files too, as long as they are there.

        Raises TornListing, DamagedLog, SchemaConflict, ForeignMaintenance and the store's errors.
        """
        table = self._store.location.uri
        for _ in range(READ_ATTEMPTS_MAX):
            listed_ms = {info.key: info.stored_ms for info in self._store.list(self._keys.log_prefix)}
            names = {key: self._keys.parse_log_file(key) for key in listed_ms}
            found = self._fetch((k for k, name in names.items() if name.epoch is not None), listed_ms)
            _, _, ignored = ignored_by({k: f.file for k, f in found.items()}, table)
            found |= self._fetch((k for k in names if everything or k not in ignored), listed_ms)
            _, live_epochs, ignored = ignored_by({k: f.file for k, f in found.items()}, table)
            gone = listed_ms.keys() - found.keys() - ignored
            if not gone and live_epochs <= {f.file.epoch for f in found.values()}:
                self._forget_all_but(listed_ms)
                return replay(found.values(), table=table, listed_ms=listed_ms)
        raise TornListing(
            f"{table}: {READ_ATTEMPTS_MAX} listings in a row did not fit what the newest log file says "
            f"(gone: {sorted(gone)}; live epochs: {sorted(live_epochs)}). Try again; if it stays so, another program "
            "deletes log files that it did not write."
        )

    def list_after(self, key: str | None) -> list[str]:
        """The keys of the log files after `key`, in order; one LIST and nothing else."""
        return [info.key for info in self._store.list(self._keys.log_prefix, after=key)]

    def fetch(self, key: str) -> StoredLogFile | None:
        """One log file, or None when it is not there."""
        stored = self._store.get_many([key]).get(key)
        return None if stored is None else StoredLogFile(key, decode(stored.body, key, self._keys), stored.stored_ms)

    def _fetch(self, keys: Iterable[str], listed_ms: dict[str, int]) -> dict[str, StoredLogFile]:
        wanted = list(keys)
        with self._lock:
            known = {k: self._seen[k] for k in wanted if k in self._seen}
        fetched = self._store.get_many([k for k in wanted if k not in known])
        new = {k: StoredLogFile(k, decode(o.body, k, self._keys), listed_ms[k]) for k, o in fetched.items()}
        with self._lock:
            self._seen |= new
        return known | new

    def _forget_all_but(self, listed: dict[str, int]) -> None:
        with self._lock:
            self._seen = {k: f for k, f in self._seen.items() if k in listed}
