"""The folder or prefix that an export of Parquet goes to: empty, or holding nothing but an earlier export.

    _export.json     put first, and create-only: whose export this is; two into one target get in each other's way here
    ...              the files
    _SUCCESS         put last: without it the export is not finished, or is being replaced

Readers of Parquet skip names that begin with `_`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from icedb.errors import CommitStateUnknown, InvalidOption, StoreUnavailable
from icedb.storage.location import Location, parse_location
from icedb.storage.obstore_store import ObjectNotFound, ObjectStore, open_store
from icedb.transaction.append import PutOutcome, put_if_absent
from icedb.transaction.table_handle import Handle

__all__ = ["ExportTarget", "open_target"]

STARTED = "_export.json"
FINISHED = "_SUCCESS"


@dataclass(frozen=True, slots=True)
class ExportTarget:
    """Where the files go. `own`: it lies in the table's own bucket, which copies by itself."""

    uri: str
    store: ObjectStore
    #: What keys begin with, with the slash at its end; empty in a folder.
    root: str
    own: bool
    #: What an earlier export left, to be replaced.
    earlier: Sequence[str]

    def begin(self, body: bytes) -> None:
        """Remove an earlier export, and make this one's first object, of a content that no other has.

        Raises InvalidOption, the store's errors.
        """
        last = [key for key in self.earlier if key == self.root + STARTED]
        self.store.delete([key for key in self.earlier if key == self.root + FINISHED])
        self.store.delete([key for key in self.earlier if key not in last])
        self.store.delete(last)
        try:
            put = put_if_absent(self.store, self.root + STARTED, body)
        except ObjectNotFound:
            raise InvalidOption(f"{self.uri}: nothing can be written there. Choose another target.") from None
        match put:
            case PutOutcome.CONFLICT:
                raise InvalidOption(
                    f"{self.uri}: another export into this place is under way. Choose another target, or wait for it."
                )
            case PutOutcome.NOT_FOUND:
                raise StoreUnavailable(f"{self.uri}: the store did not answer. Nothing was exported. Try again.")

    def finish(self) -> None:
        """Say that all is there. Raises CommitStateUnknown, and then nothing may be removed: it may come late."""
        try:
            absent = put_if_absent(self.store, self.root + FINISHED, b"") is PutOutcome.NOT_FOUND
        except StoreUnavailable:
            absent = True
        if absent:
            raise CommitStateUnknown(
                f"{self.uri}: all files are there, but perhaps not '{FINISHED}': the store did not answer. If it is "
                "not there, export again, with overwrite."
            )

    def give_up(self, keys: Sequence[str]) -> None:
        """Remove what was put so far."""
        self.store.delete(keys)
        self.store.delete([self.root + STARTED])


def open_target(
    handle: Handle, target: str | os.PathLike[str], storage_options: Mapping[str, str] | None, *, overwrite: bool
) -> ExportTarget:
    """Look at the place, and change nothing. Raises InvalidOption when files cannot go there, the store's errors."""
    location = parse_location(target, storage_options)
    home = handle.location
    if storage_options is None:
        location = location.reached_as(home)
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
                f"{handle.table}: '{location.uri}' lies inside the table, or the table inside of it. Export to a place "
                "of its own."
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
            f"{handle.table}: '{location.uri}' lies inside another table, '{above}'. Export to a place of its own."
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
        what = f"'{foreign[0]}' is not of an export" if foreign else f"it has no '{STARTED}'"
        raise InvalidOption(
            f"{handle.table}: '{location.uri}' holds what no export put there ({what}), so nothing is replaced. Choose "
            "another target, or empty it yourself."
        )
