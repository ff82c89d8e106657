"""What a virtual bucket holds as of one moment: keys in order, and what is known of each without asking the store.

A virtual key is the part's path below the table's own data prefix, so it tells the partition and nothing of where the
table lies. Parts never change, so a part's key stands for its content, and the ETag is made of it.
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
    #: Its key in the store.
    stored_key: str
    bytes: int
    #: Unix milliseconds.
    modified_ms: int

    @property
    def etag(self) -> str:
        """With its quotes: 32 hexadecimal digits, which are not the content's MD5."""
        return f'"{hashlib.sha256(f"{self.key} {self.bytes}".encode()).hexdigest()[:32]}"'


@dataclass(frozen=True)
class BucketView:
    """The parts that a bucket shows, as of a time (unix milliseconds)."""

    as_of_ms: int
    #: The same for the same parts of the table, whatever of them a scope shows: 16 hexadecimal digits.
    snapshot_id: str
    #: What the table's own keys begin with, and virtual keys lack.
    data_prefix: str
    #: Stored keys, sorted; it is cheaper to put the prefix before what is asked for than to cut it off of all.
    keys: Sequence[str] = field(repr=False)
    #: Those of the keys, in their order.
    markers: Sequence[Marker] = field(repr=False)
    #: Partition -> numbers of its keys, once somebody has asked for a scope.
    numbers: dict[str, list[int]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, markers: Sequence[Marker], *, data_prefix: str, as_of_ms: int) -> BucketView:
        """All parts of a table, given in key order."""
        keys = markers.keys if isinstance(markers, MarkerView) else [m.key for m in markers]
        digest = hashlib.sha256("\n".join(keys).encode()).hexdigest()
        return cls(as_of_ms, digest[:16], data_prefix, keys, markers)

    def within(self, scope: Scope) -> BucketView:
        """What of this a scope shows; its time does not count here."""
        if not scope.partitions:
            return self
        if not self.numbers:
            found: dict[str, list[int]] = {}
            for number, key in enumerate(self.keys):
                found.setdefault(partition_of(self.data_prefix, key), []).append(number)
            self.numbers.update(found)
        shown = [numbers for partition, numbers in self.numbers.items() if scope.shows(partition)]
        chosen = sorted(number for numbers in shown for number in numbers)
        return replace(self, keys=[self.keys[n] for n in chosen], markers=[self.markers[n] for n in chosen], numbers={})

    def find(self, key: str) -> VirtualObject | None:
        """The object of a virtual key."""
        stored_key = self.data_prefix + key
        number = bisect_left(self.keys, stored_key)
        if number == len(self.keys) or self.keys[number] != stored_key:
            return None
        return self.object(self.markers[number])

    def object(self, marker: Marker) -> VirtualObject:
        """A part of this table as an object."""
        return VirtualObject(marker.key[len(self.data_prefix) :], marker.key, marker.bytes, marker.created_ms)

    def page(self, *, prefix: str, delimiter: str, after: str, size: int) -> tuple[list[VirtualObject], Page]:
        """A page of virtual keys, and its objects; `Page` speaks of stored keys."""
        page = list_page(
            self.keys,
            prefix=self.data_prefix + prefix,
            delimiter=delimiter,
            after=self.data_prefix + after if after else "",
            size=size,
        )
        return [self.object(self.markers[n]) for n in page.numbers], page

    def virtual(self, stored: str) -> str:
        """A stored key, or common prefix, without what virtual keys lack."""
        return stored[len(self.data_prefix) :]
