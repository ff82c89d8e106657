"""The metadata of all buckets for requests: caches around `BucketHistory`, and work in threads. Begin here.

    document    for the REST protocol: the newest document of a bucket, or that of a time
    find        for the S3 protocol: the object of a name below `metadata/`, as of this process or of another

Objects are computed from the log of the table, so all proxies serve the same bytes under a name.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from icedb.errors import InvalidOption, InvalidPartitionValue, UnsupportedType
from icedb.services.proxy.catalog.table_catalog import BucketState, TableCatalog
from icedb.services.proxy.config.settings import IcebergSettings
from icedb.services.proxy.config.tenants import Scope, VirtualBucket
from icedb.services.proxy.iceberg.bucket_history import BucketHistory, FixedState
from icedb.services.proxy.iceberg.bucket_manifests import ManifestCache
from icedb.services.proxy.iceberg.byte_cache import ByteCache
from icedb.services.proxy.iceberg.names import DocumentName, ListName, ManifestName, MetadataName
from icedb.services.proxy.iceberg.rest import RestError
from icedb.services.proxy.iceberg.visible_columns import SeenColumns
from icedb.services.proxy.iceberg.visible_states import VisibleParts
from icedb.services.proxy.s3.s3_errors import S3Error
from icedb.util.lru_cache import LruCache

__all__ = ["BucketDocument", "MetadataCatalog"]

# A manifest has some 65 bytes for each part.
MANIFEST_BYTES_MAX = 128 * 1024 * 1024
# Documents and lists have some hundred bytes for each snapshot or manifest.
BODY_BYTES_MAX = 32 * 1024 * 1024
BUCKETS_MAX = 256


@dataclass(frozen=True)
class BucketDocument:
    """A metadata document with its address."""

    address: str
    body: bytes = field(repr=False)


@dataclass
class _OpenBucket:
    """The cached history of a bucket. The lock lets concurrent requests share work."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    history: BucketHistory | None = None
    #: `BucketState.read_at` of the history: pins are read again as often as the log.
    read_at: float = 0.0
    seen: SeenColumns = field(default_factory=SeenColumns)


class MetadataCatalog:
    """Computes and caches metadata of buckets. Belongs to one event loop."""

    def __init__(self, tables: TableCatalog, settings: IcebergSettings) -> None:
        self._tables = tables
        self._settings = settings
        self._buckets: LruCache[VirtualBucket, _OpenBucket] = LruCache(BUCKETS_MAX)
        self._manifests = ManifestCache(MANIFEST_BYTES_MAX)
        #: By bucket, as-of time, and key.
        self._bodies: ByteCache[bytes] = ByteCache(BODY_BYTES_MAX, len)

    async def document(self, bucket: VirtualBucket, as_of_ms: int | None) -> BucketDocument:
        """Return the document of a bucket, latest or as of a time.

        Raises S3Error as `TableCatalog.view`, and RestError if the columns have no Iceberg types.
        """
        read = await self._tables.read(bucket, as_of_ms)
        opened = self._opened(bucket)
        async with opened.lock:
            history = await self._history(opened, bucket, read)
            name, body = await self._tables.run(bucket, lambda: self._prepared_document(history, _fixed(read)))
        self._bodies.put((bucket, read.at_ms, name.key), body)
        return BucketDocument(f"{history.address(read.at_ms)}/{name.key}", body)

    async def check_readable(self, bucket: VirtualBucket, as_of_ms: int | None) -> None:
        """Raise S3Error, as `TableCatalog.view`, if the bucket cannot be read at a time."""
        await self._tables.read(bucket, as_of_ms)

    async def find(self, bucket: VirtualBucket, as_of_ms: int | None, name: MetadataName) -> bytes:
        """Return the object of that name. Raises S3Error: NoSuchKey, and as `TableCatalog.view`."""
        at_ms = self._tables.checked_time(bucket.scope, as_of_ms)
        if (cached := self._cached(bucket, at_ms, name)) is not None:
            return cached
        began = asyncio.get_running_loop().time()
        read = await self._tables.read(bucket, as_of_ms)
        body = await self._find(bucket, read, name)
        if body is None and at_ms is None and read.read_at < began:
            # Another proxy may have named the object after it read a newer state. The time in a name does not tell:
            # a deletion makes manifests whose newest part is old.
            body = await self._find(bucket, await self._tables.read(bucket, as_of_ms, fresh=True), name)
        if body is None:
            raise S3Error("NoSuchKey")
        return body

    async def _find(self, bucket: VirtualBucket, read: BucketState, name: MetadataName) -> bytes | None:
        opened = self._opened(bucket)
        async with opened.lock:
            if (cached := self._cached(bucket, read.at_ms, name)) is not None:
                return cached
            history = await self._history(opened, bucket, read)
            body = await self._tables.run(bucket, lambda: self._computed(history, _fixed(read), name))
        if body is not None and not isinstance(name, ManifestName):
            self._bodies.put((bucket, read.at_ms, name.key), body)
        return body

    def _prepared_document(self, history: BucketHistory, fixed: FixedState | None) -> tuple[DocumentName, bytes]:
        """Return a document, after its manifests are in the cache. Raises RestError.

        A client will fetch them, and S3 clients wait for a few seconds only: those of Arrow for three.
        """
        owner = history.bucket, None if fixed is None else fixed.at_ms
        try:
            name, body = history.document(fixed)
            if self._bodies.get((*owner, name.key)) is None and (snapshot := history.snapshot(fixed)) is not None:
                self._bodies.put((*owner, snapshot.list_name.key), self._manifests.list_body(owner, snapshot))
        except (UnsupportedType, InvalidOption, InvalidPartitionValue) as error:
            raise RestError(404, "NoSuchTableException", str(error)) from None
        return name, body

    def _cached(self, bucket: VirtualBucket, at_ms: int | None, name: MetadataName) -> bytes | None:
        if isinstance(name, ManifestName):
            manifest = self._manifests.get((bucket, at_ms), name)
            return None if manifest is None else manifest.body
        return self._bodies.get((bucket, at_ms, name.key))

    def _computed(self, history: BucketHistory, fixed: FixedState | None, name: MetadataName) -> bytes | None:
        """Compute an object in a thread; None if the bucket has no object of that name."""
        owner = history.bucket, None if fixed is None else fixed.at_ms
        try:
            if isinstance(name, DocumentName):
                return history.find_document(fixed, name)
            if isinstance(name, ListName):
                snapshot = history.snapshot_of_list(fixed, name)
                return None if snapshot is None else self._manifests.list_body(owner, snapshot)
            for snapshot in history.snapshots_with(fixed, name):
                if (manifest := self._manifests.find(owner, snapshot, name)) is not None:
                    return manifest.body
        except (UnsupportedType, InvalidOption):
            pass  # the bucket has no document, which could name objects
        return None

    def _opened(self, bucket: VirtualBucket) -> _OpenBucket:
        opened = self._buckets.get(bucket)
        if opened is None:
            opened = _OpenBucket()
            self._buckets.put(bucket, opened)
        return opened

    async def _history(self, opened: _OpenBucket, bucket: VirtualBucket, read: BucketState) -> BucketHistory:
        previous = opened.history
        if previous is not None and opened.read_at >= read.read_at:
            return previous
        history = await self._tables.run(
            bucket,
            lambda: BucketHistory.of(
                bucket,
                read.handle,
                read.state,
                opened.seen,
                snapshots=self._settings.snapshots,
                hold_ms=self._tables.hold_ms,
                previous=previous,
            ),
        )
        opened.history, opened.read_at = history, read.read_at
        return history


def _fixed(read: BucketState) -> FixedState | None:
    if read.view is None:
        return None
    # The view has only the parts that the scope of the bucket shows.
    return FixedState(read.view.as_of_ms, VisibleParts.of(read.view.markers, Scope(), ""))
