"""The target of an export to Parquet: a folder or prefix that is empty or holds only an earlier export.

    _export.json     put first, create-only: it names the export, and makes the second of two concurrent exports fail
    ...              the files
    _SUCCESS         put last: without it the export is not finished, or is being replaced

Readers of Parquet skip names that begin with `_`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from icedb.errors import CommitStateUnknown, InvalidOption, StoreUnavailable
from icedb.storage.location import Location, parse_beside
from icedb.storage.obstore_store import ObjectNotFound, ObjectStore, open_store
from icedb.transaction.append import PutOutcome, put_if_absent
from icedb.transaction.table_handle import Handle

__all__ = ["ExportTarget", "open_target"]

STARTED = "_export.json"
FINISHED = "_SUCCESS"


@dataclass(frozen=True, slots=True)
class ExportTarget:
    """The place of the files. `own` is True in the table's own bucket, whose store copies by itself."""

    uri: str
    store: ObjectStore
    #: The prefix of all keys, with a slash at its end; empty in a folder.
    root: str
    own: bool
    #: The keys of an earlier export, which this one replaces.
    earlier: Sequence[str]

    def begin(self, body: bytes) -> None:
        """Delete an earlier export, and put this one's first object. `body` must be unique to the export.

        Raises InvalidOption, the store's errors.
        """
        last = [key for key in self.earlier if key == self.root + STARTED]
        self.store.delete([key for key in self.earlier if key == self.root + FINISHED])
        self.store.delete([key for key in self.earlier if key not in last])
        self.store.delete(last)
        try:
            put = put_if_absent(self.store, self.root + STARTED, body)
        except ObjectNotFound:
            raise InvalidOption(f"{self.uri}: the target cannot be written. Choose another target.") from None
        match put:
            case PutOutcome.CONFLICT:
                raise InvalidOption(
                    f"{self.uri}: another export into this target is under way. Choose another target, or wait for it."
                )
            case PutOutcome.NOT_FOUND:
                raise StoreUnavailable(
                    f"{self.uri}: the store did not respond. Nothing was exported. Retry the export."
                )

    def finish(self) -> None:
        """Put the last object. After CommitStateUnknown, nothing may be deleted: the put may still succeed."""
        try:
            absent = put_if_absent(self.store, self.root + FINISHED, b"") is PutOutcome.NOT_FOUND
        except StoreUnavailable:
            absent = True
        if absent:
            raise CommitStateUnknown(
                f"{self.uri}: all files were written, but the store did not respond to the put of '{FINISHED}'. If "
                "that object is missing, export again, with overwrite."
            )

    def abort(self, keys: Sequence[str]) -> None:
        """Delete the objects put so far."""
        self.store.delete(keys)
        self.store.delete([self.root + STARTED])


def open_target(
    handle: Handle, target: str | os.PathLike[str], storage_options: Mapping[str, str] | None, *, overwrite: bool
) -> ExportTarget:
    """Check the target without a change. Raises InvalidOption if it cannot take an export, the store's errors."""
    home = handle.location
    location = parse_beside(target, home, storage_options)
    store = handle.store.sibling(location) if storage_options is None else open_store(location)
    root = f"{location.prefix}/" if location.prefix else ""
    _check_apart(handle, location)
    _check_no_table_above(handle, store, location)
    earlier = [info.key for info in store.list(root)]
    _check_replaceable(handle, location, root, earlier, overwrite=overwrite)
    same = location.scheme != "file" and location.access == home.access
    return ExportTarget(location.uri, store, root, same, earlier)


def _check_apart(handle: Handle, location: Location) -> None:
    for other in (handle.location, handle.location.log):
        if other is None or (other.scheme, other.endpoint) != (location.scheme, location.endpoint):
            continue
        ours, theirs = f"{other.uri}/", f"{location.uri}/"
        if ours.startswith(theirs) or theirs.startswith(ours):
            raise InvalidOption(
                f"{handle.table}: '{location.uri}' is inside the table, or contains it. Export to a separate place."
            )


def _check_no_table_above(handle: Handle, store: ObjectStore, location: Location) -> None:
    path = location.root if location.scheme == "file" else location.prefix
    segments = path.split("/")
    for n in range(len(segments), 0, -1):
        above = "/".join(segments[:n])
        try:
            if location.scheme != "file":
                store.head(f"{above}/_table.json")
            elif not os.path.lexists(f"{above}/_table.json"):
                continue
        except ObjectNotFound:
            continue
        raise InvalidOption(
            f"{handle.table}: '{location.uri}' is inside another table, '{above}'. Export to a separate place."
        )


def _check_replaceable(
    handle: Handle, location: Location, root: str, earlier: Sequence[str], *, overwrite: bool
) -> None:
    if not earlier:
        return
    if not overwrite:
        raise InvalidOption(
            f"{handle.table}: '{location.uri}' is not empty ('{earlier[0]}', for example). Choose another target; "
            "overwrite replaces what an earlier export left there."
        )
    foreign = [k for k in earlier if k not in (root + STARTED, root + FINISHED) and not k.endswith(".parquet")]
    if foreign or root + STARTED not in earlier:
        reason = f"'{foreign[0]}' is not of an export" if foreign else f"it has no '{STARTED}'"
        raise InvalidOption(
            f"{handle.table}: '{location.uri}' has objects that no export put there ({reason}). Nothing was replaced. "
            "Choose another target, or empty it yourself."
        )
