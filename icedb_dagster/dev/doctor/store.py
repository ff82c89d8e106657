"""A place where tables are: can it be reached, may we list, create, read and delete, and does the store keep its word?

The probe is an object of the doctor's own, below the table's parts, with a random name: no log file names it, so no
reader sees it, and if it could not be deleted, a sweep of orphans takes it. Each request is a finding of its own, and
what is refused does not keep the others from being tried.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from icedb.errors import AccessDenied, BucketNotFound, IceDBError, StoreUnavailable, TableNotFound, UnsupportedStore
from icedb.format.timing import Timing
from icedb.storage.obstore_store import ObjectExists, ObjectNotFound, ObjectStore
from icedb.transaction.epoch_guard import claims_beyond, foreign_maintenance
from icedb.transaction.open_table import open_handle
from icedb.transaction.table_handle import Handle, clock_ahead_ms
from icedb.util.clock import Clock
from icedb_dagster.dev.doctor.finding import Finding, ok, problem, warning

__all__ = ["examine_store", "judge_clock"]

BODY = b"icedb-dagster doctor"
RIGHTS = {"list": "s3:ListBucket", "create": "s3:PutObject", "read": "s3:GetObject", "delete": "s3:DeleteObject"}


def examine_store(store: ObjectStore, *, clock: Clock, timing: Timing, table: bool = True) -> list[Finding]:
    """Try everything that a writer does. `table`: a table is expected at that address, not only below it."""
    about = store.location.uri
    with _tidy(store):
        findings = _StoreProbe(store, clock, timing).run()
        if table and not any(f.status == "problem" and f.check in ("reach", "list", "read") for f in findings):
            findings.append(_table(store))
    return [Finding(f.check, f.status, f.found, f.remedy, about) for f in findings]


class _StoreProbe:
    """One object's life."""

    def __init__(self, store: ObjectStore, clock: Clock, timing: Timing) -> None:
        self._store = store
        self._clock = clock
        self._timing = timing
        name = clock.new_id()
        self._key = store.location.keys.part(f"icedb_doctor={name}", name)
        self._folder = self._key.rpartition("/")[0] + "/"

    def run(self) -> list[Finding]:
        """List, create, create again, look, read, delete. Nothing more of a store that does not answer at all."""
        try:
            findings = [self._list()]
        except (StoreUnavailable, BucketNotFound) as error:
            return [problem("reach", _told(error, self._store), "correct the address, the endpoint or the network")]
        except IceDBError as error:
            findings = [self._failed("list", error)]
        put_after_ms = self._clock.now_ms()
        created = self._try("create", self._create)
        findings.append(created)
        if created.status == "problem":
            return findings
        findings.append(self._try("create-only", self._create_again))
        findings.append(self._try("clock", lambda: self._clock_of(put_after_ms)))
        findings.append(self._try("read", self._read))
        findings.append(self._try("delete", self._delete))
        return findings

    def _try(self, check: str, request: Callable[[], Finding]) -> Finding:
        try:
            return request()
        except (IceDBError, ObjectNotFound) as error:
            return self._failed(check, error)

    def _failed(self, check: str, error: Exception) -> Finding:
        denied = isinstance(error, AccessDenied)
        remedy = _grant(check, self._store) if denied else "see what it says, then look again"
        return problem(check, _told(error, self._store), remedy)

    def _list(self) -> Finding:
        began = time.monotonic()
        self._store.list(self._folder)
        return ok("list", f"in {(time.monotonic() - began) * 1000:.0f} ms")

    def _create(self) -> Finding:
        began = time.monotonic()
        with suppress(ObjectExists):  # the name is random: our own put, repeated by the client library
            self._store.create(self._key, BODY)
        return ok("create", f"in {(time.monotonic() - began) * 1000:.0f} ms")

    def _create_again(self) -> Finding:
        try:
            self._store.create(self._key, BODY)
        except ObjectExists:
            return ok("create-only", "an object that is there is not overwritten")
        return problem(
            "create-only",
            "the store overwrites an object although told to create only (If-None-Match: *)",
            "use a store, or a version of it, that honours it: two maintenance runs at once could lose rows",
        )

    def _clock_of(self, put_after_ms: int) -> Finding:
        stored_ms = self._store.head(self._key).stored_ms
        return judge_clock(
            put_after_ms=put_after_ms,
            stored_ms=stored_ms,
            now_ms=self._clock.now_ms(),
            max_skew_ms=self._timing.max_skew_ms,
        )

    def _read(self) -> Finding:
        began = time.monotonic()
        body = self._store.get(self._key).body
        if body != BODY:
            return problem("read", f"{len(body)} bytes came back of {len(BODY)} others", "do not use this store")
        return ok("read", f"in {(time.monotonic() - began) * 1000:.0f} ms")

    def _delete(self) -> Finding:
        self._store.delete([self._key])
        try:
            self._store.head(self._key)
        except ObjectNotFound:
            return ok("delete", "nothing of this is left")
        return problem(
            "delete",
            f"'{self._key}' is still there after it was deleted",
            "look for a lock or a retention on the bucket's objects: cleanup could free nothing",
        )


def judge_clock(*, put_after_ms: int, stored_ms: int, now_ms: int, max_skew_ms: int) -> Finding:
    """Compare this machine's clock with the time that the store gave an object, put between the other two."""
    ahead_ms = clock_ahead_ms(put_after_ms=put_after_ms, stored_ms=stored_ms, now_ms=now_ms)
    skew_ms = abs(ahead_ms)
    which = "ahead of" if ahead_ms > 0 else "behind"
    found = f"this machine's is {skew_ms / 1000:.1f} s {which} the store's; {max_skew_ms / 1000:.0f} s are allowed"
    if skew_ms > max_skew_ms:
        return problem("clock", found, "synchronise this machine's clock (NTP): nothing is published with this one")
    if skew_ms > max_skew_ms / 2:
        return warning("clock", found, "synchronise this machine's clock (NTP)")
    return ok("clock", found if skew_ms else "as the store's, as far as can be told")


def _table(store: ObjectStore) -> Finding:
    """Whether the log can be read, and whether only programs that take claims maintain it."""
    check = "table"
    try:
        handle = open_handle(store)
        if handle.location.log is not None:
            handle.check_writable()  # the other store's word; the probe has asked the one of the parts
        state = handle.read(fresh=True)
        handle.check_spec()
        if _is_foreign(handle):
            return problem(check, str(foreign_maintenance(handle, state.epoch + 1)), "icedb verify tells more")
    except TableNotFound:
        return warning(check, "there is none yet", "its first write creates it; else correct the address")
    except UnsupportedStore as error:
        return problem(check, _told(error, store), "use a store for the log that honours If-None-Match: *")
    except (IceDBError, ObjectNotFound) as error:
        return problem(check, _told(error, store), "icedb verify tells more")
    return ok(check, f"live parts: {len(state.live):,}, log files: {len(state.files):,}, epoch {state.epoch}")


def _is_foreign(handle: Handle) -> bool:
    """Whether log files of exclusive commits are gone: there are claims far beyond the newest epoch.

    The claim of the next epoch may be there, for a commit that is just being made; what lies beyond it, may not.
    """
    # Twice, because commits go on while we look.
    return all(claims_beyond(handle, handle.read(fresh=True).epoch + 1) for _ in range(2))


def _told(error: Exception, store: ObjectStore) -> str:
    """The error's text; without the address, which stands beside it."""
    return str(error).removeprefix(f"{store.location.uri}: ")


def _grant(check: str, store: ObjectStore) -> str:
    location = store.location
    if location.scheme != "s3":
        return f"give this user the right to read, write and search {location.root}"
    right = RIGHTS.get("read" if check == "clock" else "create" if check == "create-only" else check, "s3:*")
    where = location.root if check == "list" else f"{location.root}/{location.prefix}/*"
    return f"allow {right} on arn:aws:s3:::{where}, or correct the key, its secret and the region"


@contextmanager
def _tidy(store: ObjectStore) -> Iterator[None]:
    """Remove the folders again that the probe makes in a local store; in a bucket there are none."""
    location = store.location
    if location.scheme != "file":
        yield
        return
    data = Path(location.root, location.keys.data_prefix)
    missing = [folder for folder in (data, *data.parents) if not folder.exists()]
    try:
        yield
    finally:
        for folder in data.glob("icedb_doctor=*") if data.exists() else ():
            _remove_empty(folder)
        for folder in missing:
            _remove_empty(folder)


def _remove_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
