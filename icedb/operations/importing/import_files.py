"""Import: Parquet that others wrote becomes part of a table as it is, in one exclusive commit.

Files below the table's own `_data` are registered under their names, others are copied there, by the store itself
where it can. The name of a copy begins with a digest of what was copied (address, size, time): so a second run finds
what the log names already, and uses what a first one, that did not finish, has copied. A copy is never deleted here,
because another run may be using it; what is left over is an orphan, for the sweep.

Why the commit is exclusive: only then is it certain that no part which it names was superseded and deleted meanwhile.
Right before, it looks whether each object is still there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from icedb.errors import CommitTimedOut, InvalidBatch, InvalidOption, MissingPart, TableExists
from icedb.format.commit_draft import CommitDraft, draft
from icedb.format.keys import partition_of
from icedb.format.records import Marker
from icedb.format.replay import TableState
from icedb.format.table_spec import Aggregating, all_columns
from icedb.format.timing import Timing
from icedb.operations.importing.copy_files import copy_files, stored_parts
from icedb.operations.importing.hive_partitions import infer_spec
from icedb.operations.importing.import_plan import (
    NamedParts,
    SkippedFile,
    Takeover,
    import_name,
    imports_of,
    plan_takeovers,
)
from icedb.operations.importing.list_files import Source, open_source
from icedb.operations.importing.parquet_footer import Footers
from icedb.operations.rewrite.engine import LOCAL_ENGINE, Engine
from icedb.sql.types import check_columns
from icedb.storage.location import parse_location
from icedb.storage.obstore_store import ObjectNotFound, open_store
from icedb.transaction.append import Commit, nothing_to_commit
from icedb.transaction.exclusive import commit_exclusive
from icedb.transaction.open_table import create_handle
from icedb.transaction.table_handle import Fencing, Handle
from icedb.writer.spec_validation import checked_spec

__all__ = ["ImportReport", "SkippedFile", "create_by_import", "import_files"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import did, or would do. Paths are those of the source's files.

    `registered` files lie below the table's `_data` and are the table's now: cleanup deletes them when they are
    superseded. Of `copied` files the originals stay as they are, for ever. `columns` are those that the table got.
    """

    source: str
    files: int
    registered: tuple[str, ...]
    copied: tuple[str, ...]
    skipped: tuple[SkippedFile, ...]
    rows: int
    bytes: int
    partitions: tuple[str, ...]
    columns: Mapping[str, str]
    commit: Commit
    dry_run: bool


def import_files(
    handle: Handle,
    source: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    trust_paths: bool = False,
    verify: bool = False,
    first_time: bool = False,
    dry_run: bool = False,
    engine: Engine = LOCAL_ENGINE,
) -> ImportReport:
    """Make existing Parquet part of the table. See `Table.import_files`."""
    _check_source(source, handle.table)
    return _import(
        lambda: handle,
        handle,
        source,
        storage_options,
        trust_paths=trust_paths,
        verify=verify,
        first_time=first_time,
        dry_run=dry_run,
        engine=engine,
    )


def _import(
    create: Callable[[], Handle],
    handle: Handle,
    source: str | os.PathLike[str],
    storage_options: Mapping[str, str] | None,
    *,
    trust_paths: bool,
    verify: bool,
    first_time: bool,
    dry_run: bool,
    engine: Engine,
) -> ImportReport:
    """Plan with this handle; when the plan stands, carry it out with that of `create`, for the table that is there."""
    _check_spec(handle)
    state = handle.read(fresh=True)
    listed_ms = handle.clock.now_ms()
    found = open_source(source, storage_options, table=handle.store)
    plan = plan_takeovers(
        handle, state, found, trust_paths=trust_paths, verify=verify, first_time=first_time, engine=engine
    )
    new = {c: t for c, t in plan.columns.items() if c not in state.schema}
    if not dry_run:
        handle = create()
    if dry_run or not plan.files:
        return _report(found, plan.files, plan.skipped, new, nothing_to_commit(handle), dry_run=dry_run)
    handle.check_writable()
    copied = copy_files(handle, state, found, [f for f in plan.files if f.key is None], engine)
    _check_unchanged(handle, found, plan.files, storage_options)
    operation = _Import(
        handle,
        copied.markers | _registered(plan.files),
        plan.columns,
        copied.oldest_part_ms,
        import_name(found),
        listed_ms,
        planned=state,
    )
    commit = commit_exclusive(handle, operation)
    _check_registered(handle, plan.files)
    done = [f for f in plan.files if f.source.id not in operation.taken]
    skipped = [*plan.skipped, *(SkippedFile(f.source.path, operation.taken[f.source.id]) for f in plan.files
                                if f.source.id in operation.taken)]  # fmt: skip
    return _report(found, done, skipped, new, commit, dry_run=False)


def create_by_import(
    uri: str | os.PathLike[str],
    source: str | os.PathLike[str],
    *,
    sort_by: Sequence[str] = (),
    storage_options: Mapping[str, str] | None = None,
    source_storage_options: Mapping[str, str] | None = None,
    timing: Timing | None = None,
    fencing: Fencing = "claims",
    trust_paths: bool = False,
    verify: bool = False,
    dry_run: bool = False,
    engine: Engine = LOCAL_ENGINE,
) -> ImportReport:
    """Create a table that is laid out as the files are, and import them. See `Table.create_from_files`.

    The table comes into being when the whole import has been planned: what is wrong with the files or the options
    leaves none behind.
    """
    store = open_store(parse_location(uri, storage_options))
    _check_source(source, store.location.uri)
    found = open_source(source, source_storage_options, table=store)
    with Footers(found.origin, table=store) as footers:
        spec = infer_spec(found, footers, sort_by=sort_by, table=store.location.uri)
    spec = spec if timing is None else msgspec.structs.replace(spec, timing=timing)
    unsaved = Handle(store, checked_spec(spec, table=store.location.uri), fencing=fencing)
    _refuse_table(unsaved)
    return _import(
        lambda: create_handle(store, spec, fencing=fencing, over_files=True),
        unsaved,
        source,
        source_storage_options,
        trust_paths=trust_paths,
        verify=verify,
        first_time=False,
        dry_run=dry_run,
        engine=engine,
    )


def _check_source(source: object, table: str) -> None:
    """Anybody's list of paths would fail deep below, in words that do not say what is wrong."""
    if not isinstance(source, str | os.PathLike) or not isinstance(os.fspath(source), str):
        raise InvalidOption(
            f"{table}: cannot import from a {type(source).__name__}. Give one address as text: a folder, a bucket's "
            "prefix, a file, or a glob, which names many."
        )


def _refuse_table(unsaved: Handle) -> None:
    """A table that is there is not planned over with another spec. That nobody makes one meanwhile, creation sees."""
    try:
        unsaved.store.head(unsaved.keys.spec)
    except ObjectNotFound:
        return
    raise TableExists(
        f"{unsaved.table}: a table is there already. Open it with Table.open, and import with import_files."
    )


def _check_spec(handle: Handle) -> None:
    """What a batch would go through, files that are taken as they are cannot."""
    spec = handle.spec
    reasons = {
        "an insert_query": bool(spec.insert_query),
        "row ids": spec.row_id,
        "views": bool(spec.views),
        "aggregating merges": isinstance(spec.merging, Aggregating),
    }
    for what, there in reasons.items():
        if there:
            raise InvalidOption(
                f"{handle.table}: the table has {what}, and files that are imported as they are would be left out of "
                "that. Insert them: Table.insert takes paths."
            )


def _registered(files: Sequence[Takeover]) -> dict[str, Marker]:
    return {f.source.id: f.marker(f.key) for f in files if f.key is not None}


def _check_unchanged(
    handle: Handle, source: Source, files: Sequence[Takeover], storage_options: Mapping[str, str] | None
) -> None:
    """A file that changed since its footer was read is not what the marker says."""
    now = {f.id for f in open_source(source.uri, storage_options, table=handle.store).files}
    for file in files:
        if file.source.id not in now:
            raise InvalidBatch(
                f"{handle.table}: '{file.source.path}' was changed or removed while it was imported. Nothing was "
                "imported. Let nobody change the files, and import them again."
            )


def _check_registered(handle: Handle, files: Sequence[Takeover]) -> None:
    """A sweep that had found a file unnamed may have deleted it all the same: say so at once."""
    keys = {f.key for f in files if f.key is not None}
    if not keys:
        return
    present = {i.key for i in stored_parts(handle, {f.partition for f in files})}
    if gone := sorted(keys - present):
        live = {m.key for m in handle.read(fresh=True).live}
        if lost := [k for k in gone if k in live]:
            raise MissingPart(
                f"{handle.table}: {len(lost)} files were deleted while they were registered, '{lost[0]}' for example: "
                "an orphan sweep ran at the same time. The others are part of the table. Restore these files."
            )


def _report(
    source: Source,
    files: Sequence[Takeover],
    skipped: Sequence[SkippedFile],
    columns: Mapping[str, str],
    commit: Commit,
    *,
    dry_run: bool,
) -> ImportReport:
    return ImportReport(
        source=source.uri,
        files=len(source.files),
        registered=tuple(f.source.path for f in files if f.key is not None),
        copied=tuple(f.source.path for f in files if f.key is None),
        skipped=tuple(skipped),
        rows=sum(f.rows for f in files),
        bytes=sum(f.source.bytes for f in files),
        partitions=tuple(sorted({f.partition for f in files})),
        columns=dict(columns) if files else {},
        commit=commit,
        dry_run=dry_run,
    )


@dataclass(slots=True)
class _Import:
    """Planned anew at each attempt: what another import has committed meanwhile is left out.

    It owns no part: none of them may be deleted when it fails, so `outputs` is empty.
    """

    handle: Handle
    #: Id of the source's file -> marker.
    markers: Mapping[str, Marker]
    schema: Mapping[str, str]
    oldest_part_ms: int | None
    #: What the log remembers of this import: the files that were there then were imported.
    name: str
    listed_ms: int
    #: What the files were compared with when the import was planned.
    planned: TableState
    #: Id of the source's file -> why it is not imported after all.
    taken: dict[str, str] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    unused: list[str] = field(default_factory=list)
    reads_everything: bool = False

    def build(self, state: TableState, t_ms: int) -> CommitDraft | None:
        """Raises SchemaConflict; CommitTimedOut when a part is gone, or what another imported may be forgotten."""
        check_columns(self.schema, all_columns(self.handle.spec, state.schema), table=state.table)
        named = NamedParts(state)
        self.taken = {
            file_id: reason
            for file_id, m in self.markers.items()
            if (reason := named.reason(m.key, file_id, m.bytes)) is not None
        }
        left = [m for file_id, m in self.markers.items() if file_id not in self.taken]
        if not left:
            return None
        if state.horizon_ms > self.planned.horizon_ms and imports_of(state) != imports_of(self.planned):
            raise CommitTimedOut(
                f"{state.table}: another import was committed since these files were compared with the log, and "
                "cleanup has made the log forget parts since. So the table may have these files already. Nothing was "
                "imported. Import again."
            )
        folders = {partition_of(self.handle.keys.data_prefix, m.key) for m in left}
        present = {i.key: i.bytes for i in stored_parts(self.handle, folders)}
        if gone := sorted(m.key for m in left if present.get(m.key) != m.bytes):
            raise CommitTimedOut(
                f"{state.table}: '{gone[0]}' is not there any more, or has another size: an orphan sweep or a cleanup "
                "may have taken it. Nothing was imported. Import again."
            )
        times, before_ms = state.txn.get(self.name, (0, 0))
        remembered = {self.name: (times + 1, max(before_ms, self.listed_ms))}
        schema = dict(self.schema)
        return draft(state, t_ms=t_ms, schema=schema, add=left, txn=remembered, operation="import")
