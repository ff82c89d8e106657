"""Import: existing Parquet files of other programs become parts of a table unchanged, in one exclusive commit.

Files below the table's own `_data` are registered under their names. Other files are copied there, by the store itself
if possible. The name of a copy begins with a digest of its original's address, size and time. So a second run
recognizes files that the log names, and reuses copies of a run that did not finish. A failed import deletes no copy,
because another run may be using it. The orphan sweep deletes unused copies.

Only in an exclusive commit it is certain that none of its parts was superseded and deleted meanwhile. Right before the
commit, the import checks that each object still exists.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypedDict, Unpack

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
    PlannedFile,
    SkippedFile,
    import_name,
    imports_of,
    plan_import,
)
from icedb.operations.importing.list_files import ImportSource, open_source
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
    """The result of an import, or of a dry run. Paths are those of the source's files.

    `registered` files are below the table's `_data` and belong to the table now, so cleanup deletes them when they are
    superseded. The originals of `copied` files are never changed or deleted. `columns` are the columns that the import
    added. `foreign_id_files` have field ids of another writer: Iceberg engines would read nulls from them, until their
    partitions are rewritten.
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
    foreign_id_files: int
    commit: Commit
    dry_run: bool


class ImportOptions(TypedDict, total=False):
    """The options of an import into an existing or a new table, with the meanings of `Table.import_files`."""

    trust_paths: bool
    verify: bool
    dry_run: bool
    engine: Engine | None


def import_files(
    handle: Handle,
    source: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    first_time: bool = False,
    **options: Unpack[ImportOptions],
) -> ImportReport:
    """Add existing Parquet files to the table. See `Table.import_files`."""
    _check_source(source, handle.table)
    return _import(lambda: handle, handle, source, storage_options, first_time=first_time, **options)


def _import(
    create: Callable[[], Handle],
    handle: Handle,
    source: str | os.PathLike[str],
    storage_options: Mapping[str, str] | None,
    *,
    first_time: bool = False,
    trust_paths: bool = False,
    verify: bool = False,
    dry_run: bool = False,
    engine: Engine | None = None,
) -> ImportReport:
    """Plan with `handle`, and run the plan with the handle of an existing table, which `create` returns."""
    engine = engine or LOCAL_ENGINE
    _check_spec(handle)
    state = handle.read(fresh=True)
    listed_ms = handle.clock.now_ms()
    listed = open_source(source, storage_options, table=handle.store)
    plan = plan_import(
        handle, state, listed, trust_paths=trust_paths, verify=verify, first_time=first_time, engine=engine
    )
    new = {c: t for c, t in plan.columns.items() if c not in state.schema}
    if not dry_run:
        handle = create()
    if dry_run or not plan.files:
        return _report(listed, plan.files, plan.skipped, new, nothing_to_commit(handle), dry_run=dry_run)
    handle.check_writable()
    copied = copy_files(handle, state, listed, [f for f in plan.files if f.key is None], engine)
    _check_unchanged(handle, listed, plan.files, storage_options)
    operation = _Import(
        handle,
        copied.markers | {f.source.id: f.marker(f.key) for f in plan.files if f.key is not None},
        plan.columns,
        copied.oldest_part_ms,
        import_name(listed),
        listed_ms,
        planned=state,
    )
    commit = commit_exclusive(handle, operation)
    _check_registered(handle, plan.files)
    done = [f for f in plan.files if f.source.id not in operation.taken]
    skipped = [*plan.skipped, *(SkippedFile(f.source.path, operation.taken[f.source.id]) for f in plan.files
                                if f.source.id in operation.taken)]  # fmt: skip
    report = _report(listed, done, skipped, new, commit, dry_run=False)
    if report.foreign_id_files:
        logger.warning(
            "%s: %d of %d imported files have field ids of another writer, by which Iceberg engines find no columns. "
            "Before such an engine reads the table, rewrite their partitions (rewrite_partition).",
            handle.table, report.foreign_id_files, len(done),
        )  # fmt: skip
    return report


def create_by_import(
    uri: str | os.PathLike[str],
    source: str | os.PathLike[str],
    *,
    sort_by: Sequence[str] = (),
    storage_options: Mapping[str, str] | None = None,
    source_storage_options: Mapping[str, str] | None = None,
    timing: Timing | None = None,
    fencing: Fencing = "claims",
    **options: Unpack[ImportOptions],
) -> ImportReport:
    """Create a table with the layout of the files, and import them. See `Table.create_from_files`.

    The table is created after the whole import was planned, so invalid files or options leave no table behind.
    """
    store = open_store(parse_location(uri, storage_options))
    _check_source(source, store.location.uri)
    listed = open_source(source, source_storage_options, table=store)
    with Footers(listed.origin, table=store) as footers:
        spec = infer_spec(listed, footers, sort_by=sort_by, table=store.location.uri)
    spec = spec if timing is None else msgspec.structs.replace(spec, timing=timing)
    unsaved = Handle.of(store, checked_spec(spec, table=store.location.uri), fencing=fencing)
    _refuse_table(unsaved)
    create = partial(create_handle, store, spec, fencing=fencing, over_files=True)
    return _import(create, unsaved, source, source_storage_options, **options)


def _check_source(source: object, table: str) -> None:
    """Reject other types early: a list of paths would fail later, with an error that does not name the cause."""
    if not isinstance(source, str | os.PathLike) or not isinstance(os.fspath(source), str):
        raise InvalidOption(
            f"{table}: cannot import from a {type(source).__name__}. Pass one address as text: a folder, a bucket's "
            "prefix, a file, or a glob for several files."
        )


def _refuse_table(unsaved: Handle) -> None:
    """Raise TableExists if there is a table. The creation itself detects a table that is created later."""
    try:
        unsaved.store.head(unsaved.keys.spec)
    except ObjectNotFound:
        return
    raise TableExists(
        f"{unsaved.table}: a table is there already. Open it with Table.open, and import with import_files."
    )


def _check_spec(handle: Handle) -> None:
    """Reject tables whose batches are transformed, because imported files are stored unchanged."""
    spec = handle.spec
    reasons = {
        "an insert_query": bool(spec.insert_query),
        "row ids": spec.row_id,
        "views": bool(spec.views),
        "aggregating merges": isinstance(spec.merging, Aggregating),
    }
    for what, applies in reasons.items():
        if applies:
            raise InvalidOption(
                f"{handle.table}: the table has {what}, which cannot apply to files that are imported unchanged. "
                "Insert them: Table.insert takes paths."
            )


def _check_unchanged(
    handle: Handle, source: ImportSource, files: Sequence[PlannedFile], storage_options: Mapping[str, str] | None
) -> None:
    """Raise InvalidBatch if a file changed since its footer was read, because the marker would be wrong."""
    now = {f.id for f in open_source(source.uri, storage_options, table=handle.store).files}
    for file in files:
        if file.source.id not in now:
            raise InvalidBatch(
                f"{handle.table}: '{file.source.path}' was changed or removed while it was imported. Nothing was "
                "imported. Ensure that no program changes the files, and import them again."
            )


def _check_registered(handle: Handle, files: Sequence[PlannedFile]) -> None:
    """Raise MissingPart if an orphan sweep that had found a file unnamed has deleted it."""
    keys = {f.key for f in files if f.key is not None}
    if not keys:
        return
    present = {i.key for i in stored_parts(handle, {f.partition for f in files})}
    if gone := sorted(keys - present):
        live = {m.key for m in handle.read(fresh=True).live}
        if lost := [k for k in gone if k in live]:
            raise MissingPart(
                f"{handle.table}: {len(lost)} files were deleted while they were registered, for example '{lost[0]}': "
                "an orphan sweep ran at the same time. The other files were imported. Restore these files."
            )


def _report(
    source: ImportSource,
    files: Sequence[PlannedFile],
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
        foreign_id_files=sum(f.foreign_ids for f in files),
        commit=commit,
        dry_run=dry_run,
    )


@dataclass(slots=True)
class _Import:
    """The commit, planned again at each attempt, without the files that another import has committed meanwhile.

    It owns no part, so `outputs` is empty: none of the parts may be deleted after a failure.
    """

    handle: Handle
    #: The file's id -> its marker.
    markers: Mapping[str, Marker]
    schema: Mapping[str, str]
    oldest_part_ms: int | None
    #: The name of the import in the log. It records that the files listed at `listed_ms` were imported.
    name: str
    listed_ms: int
    #: The state with which the files were compared when the import was planned.
    planned: TableState
    #: The file's id -> the reason why it is not imported after all.
    taken: dict[str, str] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    unused: list[str] = field(default_factory=list)
    reads_everything: bool = False

    def build(self, state: TableState, t_ms: int) -> CommitDraft | None:
        """Return the log file. Raises SchemaConflict, and CommitTimedOut if a part or another import may be lost."""
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
                "cleanup has removed markers from the log since. So the table may have these files already. Nothing "
                "was imported. Import again."
            )
        folders = {partition_of(self.handle.keys.data_prefix, m.key) for m in left}
        present = {i.key: i.bytes for i in stored_parts(self.handle, folders)}
        if gone := sorted(m.key for m in left if present.get(m.key) != m.bytes):
            raise CommitTimedOut(
                f"{state.table}: '{gone[0]}' no longer exists, or has another size: an orphan sweep or a cleanup may "
                "have deleted it. Nothing was imported. Import again."
            )
        times, before_ms = state.txn.get(self.name, (0, 0))
        txn = {self.name: (times + 1, max(before_ms, self.listed_ms))}
        return draft(state, t_ms=t_ms, schema=dict(self.schema), add=left, txn=txn, operation="import")
