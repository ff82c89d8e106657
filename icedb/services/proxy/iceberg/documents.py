"""The metadata document of a bucket: its snapshots, with the addresses of their manifest lists.

The newest snapshot has the address of the bucket, `s3://events`. Earlier snapshots have that of their time,
`s3://events--1795219200000`, which stays readable as long as the table's log knows the time. No manifest is needed for
a document: a list's name follows from the sums of the state.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from icedb.reader.iceberg.table_metadata import IcebergSnapshot, table_metadata
from icedb.services.proxy.config.tenants import VirtualBucket
from icedb.services.proxy.iceberg.names import ListName
from icedb.services.proxy.iceberg.visible_columns import BucketLayout
from icedb.services.proxy.iceberg.visible_states import StateSums
from icedb.transaction.table_handle import Handle

__all__ = ["ListedState", "bucket_address", "encode_document"]


def bucket_address(bucket: VirtualBucket, as_of_ms: int | None) -> str:
    """Return the address of a bucket, latest or as of a time, without a slash at its end."""
    address = f"s3://{bucket.name}"
    return address if as_of_ms is None else "--".join((address, str(as_of_ms)))


@dataclass(frozen=True)
class ListedState:
    """A state that a document lists as a snapshot."""

    #: See `bucket_address`.
    base: str
    at_ms: int
    sums: StateSums
    layout: BucketLayout

    @property
    def snapshot_id(self) -> int:
        """The id of the snapshot."""
        return self.sums.snapshot_id(self.at_ms)

    def entry(self) -> IcebergSnapshot:
        """Return the entry in the document."""
        layout, sums = self.layout.layout, self.sums
        # The rows of parts that the log does not count are known only from footers, which a document does not need.
        records = {} if sums.uncounted else {"total-records": str(sums.rows)}
        return IcebergSnapshot(
            snapshot_id=self.snapshot_id,
            sequence_number=self.at_ms,
            timestamp_ms=self.at_ms,
            manifest_list=f"{self.base}/{ListName(self.snapshot_id, self.layout.digest).key}",
            schema_id=layout.schema["schema-id"],
            summary={
                "operation": "overwrite",  # incremental readers must not take the files of a snapshot for an append
                **records,
                "total-data-files": str(sums.parts),
                "total-files-size": str(sums.bytes),
                "total-delete-files": "0",
            },
            first_row_id=0 if layout.format_version == 3 else None,
            added_rows=sums.rows if layout.format_version == 3 else None,
        )


def encode_document(
    handle: Handle,
    bucket: VirtualBucket,
    base: str,
    layout: BucketLayout,
    current: ListedState | None,
    earlier: Sequence[ListedState],
    tags: Mapping[str, int],
) -> bytes:
    """Return the document of a bucket whose newest state is `current`; None if it never had a part."""
    document = table_metadata(
        layout.layout,
        None if current is None else current.entry(),
        [(s.entry(), s.layout.layout) for s in earlier],
        earlier=None,
        kept=(),
        tags=tags,
        table_uuid=_uuid(handle, bucket),
        location=base,
        properties={},
        t_ms=0 if current is None else current.at_ms,
    )
    return msgspec.json.encode(document)


def _uuid(handle: Handle, bucket: VirtualBucket) -> str:
    # Buckets with other contents are other tables to a client that has both.
    of = [handle.spec.id or bucket.table, bucket.name, bucket.scope.partitions, bucket.exclude_columns]
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"icedb:{msgspec.json.encode(of).decode()}"))
