"""Checks of a place with tables: it is reachable, objects can be listed, written, read and deleted, and puts are safe.

The probe is the doctor's own object, below the table's parts, with a random name. No log file names it, so no reader
sees it. If it cannot be deleted, the orphan sweep deletes it. Each request is a finding of its own. A rejected request
does not stop the others.
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
from icedb.transaction.store_checks import clock_ahead_ms
from icedb.transaction.table_handle import Handle
from icedb.util.clock import Clock
from icedb_dagster.dev.doctor.finding import DoctorFinding, ok, problem, warning

__all__ = ["examine_store", "judge_clock"]

BODY = b"icedb-dagster doctor"
RIGHTS = {"list": "s3:ListBucket", "create": "s3:PutObject", "read": "s3:GetObject", "delete": "s3:DeleteObject"}


def examine_store(store: ObjectStore, *, clock: Clock, timing: Timing, table: bool = True) -> list[DoctorFinding]:
    """Try all requests of a writer. `table`: a table is expected at that address, not only below it."""
    address = store.location.uri
    with _tidy(store):
        findings = _StoreProbe(store, clock, timing).run()
        if table and not any(f.status == "problem" and f.check in ("reach", "list", "read") for f in findings):
            findings.append(_table(store))
    return [DoctorFinding(f.check, f.status, f.found, f.remedy, address) for f in findings]


class _StoreProbe:
    """The life of one probe object."""

    def __init__(self, store: ObjectStore, clock: Clock, timing: Timing) -> None:
        self._store = store
        self._clock = clock
        self._timing = timing
        name = clock.new_id()
        self._key = store.location.keys.part(f"icedb_doctor={name}", name)
        self._folder = self._key.rpartition("/")[0] + "/"

    def run(self) -> list[DoctorFinding]:
        """List, create, create again, stat, read, delete. Stop if the store does not answer at all."""
        try:
            findings = [self._list()]
        except (StoreUnavailable, BucketNotFound) as error:
            return [problem("reach", _message(error, self._store), "correct the address, the endpoint or the network")]
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

    def _try(self, check: str, request: Callable[[], DoctorFinding]) -> DoctorFinding:
        try:
            return request()
        except (IceDBError, ObjectNotFound) as error:
            return self._failed(check, error)

    def _failed(self, check: str, error: Exception) -> DoctorFinding:
        denied = isinstance(error, AccessDenied)
        remedy = _grant(check, self._store) if denied else "correct the error, then run the doctor again"
        return problem(check, _message(error, self._store), remedy)

    def _list(self) -> DoctorFinding:
        began = time.monotonic()
        self._store.list(self._folder)
        return ok("list", f"in {(time.monotonic() - began) * 1000:.0f} ms")

    def _create(self) -> DoctorFinding:
        began = time.monotonic()
        with suppress(ObjectExists):  # the name is random, so this was our own put, retried by the client library
            self._store.create(self._key, BODY)
        return ok("create", f"in {(time.monotonic() - began) * 1000:.0f} ms")

    def _create_again(self) -> DoctorFinding:
        try:
            self._store.create(self._key, BODY)
        except ObjectExists:
            return ok("create-only", "an existing object is not overwritten")
        return problem(
            "create-only",
            "the store overwrites an existing object despite If-None-Match: *",
            "use a store or a version that honors it: two concurrent maintenance runs could lose rows",
        )

    def _clock_of(self, put_after_ms: int) -> DoctorFinding:
        stored_ms = self._store.head(self._key).stored_ms
        return judge_clock(
            put_after_ms=put_after_ms,
            stored_ms=stored_ms,
            now_ms=self._clock.now_ms(),
            max_skew_ms=self._timing.max_skew_ms,
        )

    def _read(self) -> DoctorFinding:
        began = time.monotonic()
        body = self._store.get(self._key).body
        if body != BODY:
            return problem(
                "read",
                f"{len(body)} bytes were returned that differ from those written",
                "do not use this store",
            )
        return ok("read", f"in {(time.monotonic() - began) * 1000:.0f} ms")

    def _delete(self) -> DoctorFinding:
        self._store.delete([self._key])
        try:
            self._store.head(self._key)
        except ObjectNotFound:
            return ok("delete", "the probe is deleted")
        return problem(
            "delete",
            f"'{self._key}' still exists after its deletion",
            "remove object locks and retention rules from the bucket: cleanup could free nothing",
        )


def judge_clock(*, put_after_ms: int, stored_ms: int, now_ms: int, max_skew_ms: int) -> DoctorFinding:
    """Compare this machine's clock with the time that the store gave an object, put between the other two."""
    ahead_ms = clock_ahead_ms(put_after_ms=put_after_ms, stored_ms=stored_ms, now_ms=now_ms)
    skew_ms = abs(ahead_ms)
    which = "ahead of" if ahead_ms > 0 else "behind"
    state = f"this machine's is {skew_ms / 1000:.1f} s {which} the store's; {max_skew_ms / 1000:.0f} s are allowed"
    if skew_ms > max_skew_ms:
        return problem("clock", state, "synchronize this machine's clock (NTP): commits fail with this one")
    if skew_ms > max_skew_ms / 2:
        return warning("clock", state, "synchronize this machine's clock (NTP)")
    return ok("clock", state if skew_ms else "no difference to the store's")


def _table(store: ObjectStore) -> DoctorFinding:
    """Check that the log can be read, and that only programs that take claims maintain the table."""
    check = "table"
    try:
        handle = open_handle(store)
        if handle.location.log is not None:
            handle.check_writable()  # checks the log's store; the probe has checked that of the parts
        state = handle.read(fresh=True)
        handle.check_spec()
        if _is_foreign(handle):
            return problem(check, str(foreign_maintenance(handle, state.epoch + 1)), "run icedb verify")
    except TableNotFound:
        return warning(check, "the table does not exist", "its first write creates it; else correct the address")
    except UnsupportedStore as error:
        return problem(check, _message(error, store), "use a store for the log that honors If-None-Match: *")
    except (IceDBError, ObjectNotFound) as error:
        return problem(check, _message(error, store), "run icedb verify")
    return ok(check, f"live parts: {len(state.live):,}, log files: {len(state.files):,}, epoch {state.epoch}")


def _is_foreign(handle: Handle) -> bool:
    """Return whether log files of exclusive commits are gone: claims exist far beyond the newest epoch.

    The claim of the next epoch may exist for a commit in progress. Later claims may not.
    """
    # Checked twice, because commits may land in between.
    return all(claims_beyond(handle, handle.read(fresh=True).epoch + 1) for _ in range(2))


def _message(error: Exception, store: ObjectStore) -> str:
    """Return the error's text without the address, which is shown separately."""
    return str(error).removeprefix(f"{store.location.uri}: ")


def _grant(check: str, store: ObjectStore) -> str:
    location = store.location
    if location.cloud is not None:
        return f"allow requests to read, list, create and delete below {location.uri}, or correct the credentials"
    if location.scheme != "s3":
        return f"give this user the right to read, write and search {location.root}"
    right = RIGHTS.get("read" if check == "clock" else "create" if check == "create-only" else check, "s3:*")
    where = location.root if check == "list" else f"{location.root}/{location.prefix}/*"
    return f"allow {right} on arn:aws:s3:::{where}, or correct the key, its secret and the region"


@contextmanager
def _tidy(store: ObjectStore) -> Iterator[None]:
    """Remove the folders that the probe creates in a local store. A bucket has no folders."""
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
