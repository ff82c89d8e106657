"""The contents of a virtual bucket as of one time, from the log alone, without requests for the parts.

A virtual key is the path of a part below the data prefix of the table. It shows the partition, but not the address of
the table. Parts are immutable, so the ETag is derived from the key.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from icedb.format.keys import partition_of
from icedb.format.packed_state import MarkerView
from icedb.format.records import Marker
from icedb.services.proxy.config.tenants import Scope
from icedb.services.proxy.s3.listing import Page, list_page

__all__ = ["BucketView", "VirtualObject"]


@dataclass(frozen=True, slots=True)
class VirtualObject:
    """A part as a tenant sees it."""

    key: str
    #: The key in the store.
    stored_key: str
    bytes: int
    #: Unix milliseconds.
    modified_ms: int

    @property
    def etag(self) -> str:
        """The ETag with its quotes: 32 hexadecimal digits, not the MD5 of the content."""
        return f'"{hashlib.sha256(f"{self.key} {self.bytes}".encode()).hexdigest()[:32]}"'


@dataclass(frozen=True)
class BucketView:
    """The parts that a bucket shows, as of a time (unix milliseconds)."""

    as_of_ms: int
    #: 16 hexadecimal digits that identify the live parts of the table, independent of the scope.
    snapshot_id: str
    #: The prefix of stored keys, which virtual keys do not have.
    data_prefix: str
    #: Stored keys, sorted. Adding the prefix to one requested key is cheaper than removing it from all keys.
    keys: Sequence[str] = field(repr=False)
    #: The markers of the keys, in the same order.
    markers: Sequence[Marker] = field(repr=False)
    #: Partition -> indexes of its keys. Filled by the first request with a scope.
    numbers: dict[str, list[int]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, markers: Sequence[Marker], *, data_prefix: str, as_of_ms: int) -> BucketView:
        """Return a view of markers that are in key order."""
        if isinstance(markers, MarkerView):
            keys, texts = markers.keys, markers.key_texts().to_pylist()  # all texts at once take less time
        else:
            keys = texts = [m.key for m in markers]
        digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
        return cls(as_of_ms, digest[:16], data_prefix, keys, markers)

    def within(self, scope: Scope) -> BucketView:
        """Return the view of a scope. The times of the scope are ignored."""
        if not scope.partitions:
            return self
        if not self.numbers:
            by_partition: dict[str, list[int]] = {}
            for number, key in enumerate(self.keys):
                by_partition.setdefault(partition_of(self.data_prefix, key), []).append(number)
            self.numbers.update(by_partition)
        visible = [numbers for partition, numbers in self.numbers.items() if scope.shows(partition)]
        chosen = sorted(number for numbers in visible for number in numbers)
        return replace(self, keys=[self.keys[n] for n in chosen], markers=[self.markers[n] for n in chosen], numbers={})

    def find(self, key: str) -> VirtualObject | None:
        """Return the object of a virtual key, or None."""
        stored_key = self.data_prefix + key
        number = bisect_left(self.keys, stored_key)
        if number == len(self.keys) or self.keys[number] != stored_key:
            return None
        return self.object(self.markers[number])

    def object(self, marker: Marker) -> VirtualObject:
        """Return a part as an object."""
        return VirtualObject(marker.key[len(self.data_prefix) :], marker.key, marker.bytes, marker.created_ms)

    def page(self, *, prefix: str, delimiter: str, after: str, size: int) -> tuple[list[VirtualObject], Page]:
        """Return the objects of a page of virtual keys, and the page, which has stored keys."""
        page = list_page(
            self.keys,
            prefix=self.data_prefix + prefix,
            delimiter=delimiter,
            after=self.data_prefix + after if after else "",
            size=size,
        )
        return [self.object(self.markers[n]) for n in page.numbers], page

    def virtual(self, stored: str) -> str:
        """Return the virtual key of a stored key or common prefix."""
        return stored[len(self.data_prefix) :]
