"""The manifests of one snapshot of a bucket, and its manifest list, with the addresses that the bucket's name gives.

Parts are grouped as `icedb.reader.iceberg.manifests` divides them. A manifest's name has a digest of its group, so that
manifests that exist are found without encoding them again: after an append, all but the last.

The parts of a snapshot of the latest state have bounds. A snapshot of a fixed time has none: after its parts are
superseded, a column may get another type, and an object must not change under its name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icedb.errors import InvalidPartitionValue
from icedb.format.keys import decode_partition, partition_of
from icedb.reader.iceberg.data_files import DataFiles, uncounted
from icedb.reader.iceberg.manifests import Manifest, build_manifests, divided, ends_manifest, manifest_list
from icedb.reader.lazy_parts import live_parts
from icedb.reader.part_footers import part_rows
from icedb.reader.path_values import path_values
from icedb.services.proxy.iceberg.byte_cache import ByteCache
from icedb.services.proxy.iceberg.names import ListName, ManifestName
from icedb.services.proxy.iceberg.visible_columns import BucketLayout
from icedb.services.proxy.iceberg.visible_states import StateSums, VisibleParts, key_texts
from icedb.transaction.table_handle import Handle

__all__ = ["BucketSnapshot", "KnownGroups", "ManifestCache"]


@dataclass(frozen=True)
class BucketSnapshot:
    """The live parts of a bucket at a time, under an address."""

    handle: Handle
    #: The address of the bucket without a slash at its end: `s3://events`, or with a time `s3://events--1795219200000`.
    base: str
    at_ms: int
    #: True if the address has a fixed time.
    is_fixed: bool
    parts: VisibleParts
    layout: BucketLayout

    @property
    def list_name(self) -> ListName:
        """The name of the manifest list."""
        return ListName(StateSums(self.parts.snapshot_key).snapshot_id(self.at_ms), self.layout.digest)

    def groups(self) -> Iterator[tuple[ManifestName, pa.Array]]:
        """Yield the places of the parts of each manifest, with its name."""
        keys, created_ms = key_texts(self.parts.markers), self.parts.column("created_ms")
        for group in divided(self.parts.column("checksum"), created_ms):
            times = created_ms.take(group)
            digest = hashlib.sha256(f"{self.base}\n{self.layout.digest}\n".encode())
            digest.update(memoryview(times.buffers()[1])[: 8 * len(group)])
            digest.update(_lines(keys.take(group)))
            yield ManifestName(times[-1].as_py(), digest.hexdigest()[:32]), group

    def partition_error(self) -> InvalidPartitionValue:
        """Return an error that a client may see, if the partition values of a part cannot be encoded."""
        fields = [f.name for f in self.layout.layout.partition_fields]
        prefix = self.handle.keys.data_prefix
        folders = {key.rpartition("/")[0]: key for key in self.parts.keys}
        written = [decode_partition(partition_of(prefix, key)).keys() for key in folders.values()]
        # The paths of parts of an older partitioning lack columns, of which their rows may have several values.
        lacking = [field for field in fields if any(field not in names for names in written)]
        return InvalidPartitionValue(
            f"The table '{self.layout.snapshot.table}' has data files with several values of a partition column, or "
            f"with values that Iceberg lacks, in {', '.join(lacking or fields)}. The operator of this endpoint can "
            "leave these columns out with exclude_columns of the bucket, or rewrite these rows."
        )

    def served(self, files: DataFiles) -> DataFiles:
        """Return parts with the addresses by which the tenant reads them, and with the bounds of this snapshot.

        A snapshot of the latest address has the same bounds after its parts are superseded, as long as it is held.
        """
        start = len(self.handle.keys.data_prefix)
        return replace(
            files,
            paths=[f"{self.base}/{key[start:]}" for key in files.keys],
            stats=[msgspec.UNSET] * len(files.keys) if self.is_fixed else files.stats,
            superseded=[False] * len(files.keys),
        )


def _lines(texts: pa.Array) -> pa.Buffer:
    """Return large strings with a line end between them."""
    whole = pa.LargeListArray.from_arrays(pa.array([0, len(texts)], pa.int64()), texts)
    return pc.binary_join(whole, pa.scalar("\n", pa.large_string()))[0].as_buffer()


class KnownGroups:
    """The parts of manifests whose newest part has a time, in states at `since_ms` or later.

    A state is searched without a list of its parts: only those of these manifests are visited.
    """

    def __init__(self, parts: VisibleParts, newest_ms: int, *, since_ms: int) -> None:
        """Order the parts. `parts` are all parts, live or not; both times are in unix milliseconds."""
        self._newest_ms = newest_ms
        self._ends: list[bool] = ends_manifest(parts.column("checksum")).to_pylist()
        self._created_ms = created_ms = parts.created_ms
        self._gone_ms: list[int | None] = parts.column("tombstoned_ms").to_pylist()
        places = [
            place
            for place, (born, gone) in enumerate(zip(created_ms, self._gone_ms, strict=True))
            if born <= newest_ms and (gone is None or gone > since_ms)
        ]
        self._newest_first = sorted(places, key=created_ms.__getitem__)[::-1]

    def at(self, at_ms: int) -> Iterator[tuple[int, ...]]:
        """Yield the places of the parts of each manifest that the state of a time may have.

        The first one is not of that state if it has newer parts, and then no manifest of it has these parts.
        """
        group: list[int] = []
        for place in self._newest_first:
            gone = self._gone_ms[place]
            if gone is not None and gone <= at_ms:
                continue
            if group and self._ends[place]:
                yield tuple(group[::-1])
                group = []
            if not group and self._created_ms[place] < self._newest_ms:
                return
            group.append(place)
        if group:
            yield tuple(group[::-1])


class ManifestCache:
    """Encoded manifests by owner and name, up to a number of bytes. Threads can share it.

    The owner is a bucket and the time of its address, because no bucket may serve a manifest of another one.
    """

    def __init__(self, bytes_max: int) -> None:
        self._manifests: ByteCache[Manifest] = ByteCache(bytes_max, lambda manifest: len(manifest.body))

    def get(self, owner: Hashable, name: ManifestName) -> Manifest | None:
        """Return a manifest; None if it is not cached."""
        return self._manifests.get((owner, name))

    def list_body(self, owner: Hashable, snapshot: BucketSnapshot) -> bytes:
        """Return the manifest list of a snapshot, and cache the manifests.

        Raises InvalidPartitionValue, whose message a client may see, and the store's errors.
        """
        groups = list(snapshot.groups())
        manifests = {name: m for name, _ in groups if (m := self.get(owner, name)) is not None}
        missing = [(name, group) for name, group in groups if name not in manifests]
        try:
            encoded = _encoded(snapshot, [group for _, group in missing])
        except InvalidPartitionValue:
            raise snapshot.partition_error() from None
        for (name, _), manifest in zip(missing, encoded, strict=True):
            manifests[name] = manifest
            self._manifests.put((owner, name), manifest)
        return manifest_list([(f"{snapshot.base}/{name.key}", manifests[name]) for name, _ in groups])

    def find(self, owner: Hashable, snapshot: BucketSnapshot, name: ManifestName) -> Manifest | None:
        """Return the manifest of that name if the snapshot has it. Raises as `list_body`."""
        group = next((g for n, g in snapshot.groups() if n == name), None)
        if group is None:
            return None
        [manifest] = _encoded(snapshot, [group])
        self._manifests.put((owner, name), manifest)
        return manifest


def _encoded(snapshot: BucketSnapshot, groups: Sequence[pa.Array]) -> list[Manifest]:
    """Return the manifests of these groups. Together, they are divided as they are in the whole snapshot."""
    if not groups:
        return []
    handle, layout = snapshot.handle, snapshot.layout
    # With the addresses at which this process reads the store, in case that a footer is needed.
    places = [place for group in groups for place in group.to_pylist()]
    parts = live_parts(handle, snapshot.parts.chosen(places).markers)
    return build_manifests(
        layout.layout,
        snapshot.served(DataFiles.of(parts, part_rows(handle, uncounted(parts)))),
        path_values(layout.snapshot, parts, [f.name for f in layout.layout.partition_fields]),
        table=handle.table,
    )
