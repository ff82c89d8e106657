"""All that a bucket's documents depend on, computed once for each state of the table: its states, columns and pins."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product, takewhile
from typing import NamedTuple

from icedb.errors import CorruptLog, InvalidOption, InvalidPartitionExpression, UnsupportedType
from icedb.format.records import Marker
from icedb.format.replay import TableState, live_markers
from icedb.operations.export.export_pins import is_export_pin
from icedb.reader.iceberg.table_metadata import MAIN
from icedb.services.proxy.config.tenants import VirtualBucket
from icedb.services.proxy.iceberg.bucket_manifests import BucketSnapshot, KnownGroups
from icedb.services.proxy.iceberg.documents import ListedState, bucket_address, encode_document
from icedb.services.proxy.iceberg.names import DocumentName, ListName, ManifestName
from icedb.services.proxy.iceberg.visible_columns import BucketLayout, BucketLayouts, SeenColumns
from icedb.services.proxy.iceberg.visible_states import VisibleHistory, VisibleParts, known_markers
from icedb.transaction.pin_objects import Pin, read_pins
from icedb.transaction.table_handle import Handle

__all__ = ["BucketHistory", "FixedState"]

logger = logging.getLogger("icedb.proxy")

# Names of buckets take times of 13 digits.
_TIME_MS_MIN = 10**12


class FixedState(NamedTuple):
    """The live parts of a bucket at a fixed time."""

    at_ms: int
    parts: VisibleParts

    @classmethod
    def of(cls, bucket: VirtualBucket, handle: Handle, at_ms: int, markers: Sequence[Marker]) -> FixedState:
        """Return the state at a time, from the markers of the table's live parts at that time."""
        return cls(at_ms, VisibleParts.of(markers, bucket.scope, handle.keys.data_prefix))


@dataclass(frozen=True)
class BucketHistory:
    """A bucket as of one state of its table, for documents, lists and manifests of any time.

    In its methods, `fixed` is the state of a request with a time, or of a bucket of a fixed time. None: the latest.
    Methods may send requests to the store, so call them in a thread.
    """

    bucket: VirtualBucket
    handle: Handle
    state: TableState
    layouts: BucketLayouts
    visible: VisibleHistory
    #: The live parts that the bucket shows.
    live: VisibleParts
    pins: Sequence[Pin]
    #: States of later times are not listed: a clock far ahead wrote them.
    now_ms: int
    #: The number of earlier states that a document lists.
    snapshots: int
    #: The time for which the parts of a replaced state can still be fetched.
    hold_ms: int

    @classmethod
    def of(
        cls,
        bucket: VirtualBucket,
        handle: Handle,
        state: TableState,
        seen: SeenColumns,
        *,
        snapshots: int,
        hold_ms: int,
        previous: BucketHistory | None = None,
    ) -> BucketHistory:
        """Compute the history in a thread, or return `previous` if nothing changed. Raises the store's errors."""
        scope = bucket.scope
        now_ms = handle.clock.now_ms()
        pins = _readable_pins(bucket, handle, now_ms) if scope.time_travel else []
        if previous is not None and previous.state is state and previous.handle is handle:
            return previous if previous.pins == pins else replace(previous, pins=pins)
        all_parts = VisibleParts.of(known_markers(state), scope, handle.keys.data_prefix)
        columns = seen.find(handle, state, all_parts) if scope.partitions else None
        layouts = BucketLayouts(handle, state, bucket, columns, [handle.part(m) for m in all_parts.markers[:1]])
        history, live = VisibleHistory.of(all_parts), all_parts.live()
        return cls(bucket, handle, state, layouts, history, live, pins, now_ms, snapshots, hold_ms)

    def _shown(self, markers: Sequence[Marker]) -> VisibleParts:
        return VisibleParts.of(markers, self.bucket.scope, self.handle.keys.data_prefix)

    def layout(self, fixed: FixedState | None) -> BucketLayout:
        """Return the layout of the newest document. Raises UnsupportedType and InvalidOption, as `document`."""
        if fixed is not None:
            return self.layouts.at(fixed.at_ms, has_parts=len(fixed.parts) > 0)
        return self._layout(self.visible.newest_ms, latest=True)

    # ------------------------------------------------------------------------------------ documents

    def document(self, fixed: FixedState | None) -> tuple[DocumentName, bytes]:
        """Return the document of the bucket.

        Raises UnsupportedType and InvalidOption, whose messages a client may see.
        """
        return self._newest_document if fixed is None else self._fixed_document(fixed)

    @cached_property
    def _newest_document(self) -> tuple[DocumentName, bytes]:
        newest_ms = self.visible.newest_ms
        return self._document(newest_ms, self.layout(None), self.snapshots, self.pins)

    def find_document(self, fixed: FixedState | None, name: DocumentName) -> bytes | None:
        """Return the document of that name; None if the bucket has none."""
        if fixed is not None:
            document, body = self._fixed_document(fixed)
            return body if document == name else None
        if name.time_ms != (self.visible.newest_ms or 0) and not self._is_held(name.time_ms):
            return None
        if name.earlier > self.snapshots:
            return None  # a client can request any number
        # Pins, columns, and the horizon may have changed since a document of this name was served.
        for pins, latest, since_ms in product(self._recent_pins(), (True, False), (self.state.horizon_ms, 0)):
            layout = self._layout(name.time_ms, latest=latest)
            document, body = self._document(name.time_ms or None, layout, name.earlier, pins, since_ms=since_ms)
            if document == name:
                return body
        return None

    def _recent_pins(self) -> Iterator[Sequence[Pin]]:
        """Yield the pins, and those before the creation of each newer pin, back to `hold_ms` ago."""
        yield self.pins
        since_ms = self.handle.clock.now_ms() - self.hold_ms
        for created_ms in sorted({p.created_ms for p in self.pins if p.created_ms >= since_ms}, reverse=True):
            yield [p for p in self.pins if p.created_ms < created_ms]

    def _fixed_document(self, fixed: FixedState) -> tuple[DocumentName, bytes]:
        at_ms = fixed.at_ms
        base = self.address(at_ms)
        sums = fixed.parts.sums()
        layout = self.layout(fixed)
        body = encode_document(self.handle, self.bucket, base, layout, ListedState(base, at_ms, sums, layout), (), {})
        return DocumentName.of(at_ms, 0, body), body

    def _document(
        self,
        current_ms: int | None,
        layout: BucketLayout,
        count: int,
        pins: Sequence[Pin],
        *,
        since_ms: int | None = None,
    ) -> tuple[DocumentName, bytes]:
        base = bucket_address(self.bucket, None)
        current = None if current_ms is None else ListedState(base, current_ms, self.visible.at(current_ms), layout)
        times: list[int] = []
        earlier: dict[int, ListedState] = {}
        tags: dict[str, int] = {}
        if current is not None and self.bucket.scope.time_travel:
            first_ms = max(self.state.horizon_ms if since_ms is None else since_ms, self._earliest_ms)
            times = self.visible.earlier(current.at_ms, since_ms=first_ms, count=count)
            earlier = {t: listed for t in times if t <= self.now_ms and (listed := self._listed(t)) is not None}
            for pin in pins:
                pinned = self._pinned(pin, current, first_ms)
                if pinned is None:
                    continue
                if pinned is not current:
                    earlier.setdefault(pinned.at_ms, pinned)
                # Pins have names of the operator's choice, which may name other tenants.
                if not self.bucket.scope.partitions:
                    tags[pin.name] = pinned.snapshot_id
        body = encode_document(
            self.handle, self.bucket, base, layout, current, [s for _, s in sorted(earlier.items())], tags
        )
        return DocumentName.of(current_ms or 0, len(times), body), body

    def _listed(self, at_ms: int) -> ListedState | None:
        """Return an earlier state; None if Iceberg has no types for its columns, which may have been dropped since."""
        try:
            layout = self._layout(at_ms, latest=False)
        except (UnsupportedType, InvalidOption, InvalidPartitionExpression):
            return None
        return ListedState(bucket_address(self.bucket, at_ms), at_ms, self.visible.at(at_ms), layout)

    def _pinned(self, pin: Pin, current: ListedState, first_ms: int) -> ListedState | None:
        """Return the state of a pin: that which began before it, if its time can be read, or else the pin's time."""
        began = self.visible.earlier(pin.as_of_ms + 1, since_ms=0, count=1)
        if began and began[0] == current.at_ms:
            return current
        return self._listed(began[0] if began and began[0] >= first_ms else pin.as_of_ms)

    def _layout(self, at_ms: int | None, *, latest: bool) -> BucketLayout:
        has_parts = at_ms is not None and self.visible.at(at_ms).parts > 0
        return self.layouts.at(None if latest else at_ms, has_parts=has_parts)

    @property
    def _earliest_ms(self) -> int:
        return max(self.bucket.scope.earliest_ms or 0, _TIME_MS_MIN)

    # ------------------------------------------------------------------------------------ lists and manifests

    def snapshot(self, fixed: FixedState | None) -> BucketSnapshot | None:
        """Return the snapshot that the newest document has as its current one; None if it has none.

        Raises UnsupportedType and InvalidOption.
        """
        at_ms = self.visible.newest_ms if fixed is None else fixed.at_ms
        return None if at_ms is None else next(self._snapshots_at(fixed, at_ms))

    def address(self, at_ms: int | None) -> str:
        """Return the address of the bucket at a time. That of a bucket of a fixed time has no time."""
        return bucket_address(self.bucket, None if at_ms == self.bucket.scope.as_of_ms else at_ms)

    def snapshot_of_list(self, fixed: FixedState | None, name: ListName) -> BucketSnapshot | None:
        """Return the snapshot whose manifest list has that name; None if the bucket has none."""
        at_ms = name.time_ms
        for snapshot in self._snapshots_at(fixed, at_ms):
            if snapshot.list_name == name:
                return snapshot
        return None

    def snapshots_with(self, fixed: FixedState | None, name: ManifestName) -> Iterator[BucketSnapshot]:
        """Yield the snapshots that may have a manifest of that name. Those of replaced states have its parts only."""
        newest_ms = self.visible.newest_ms if fixed is None else fixed.at_ms
        if newest_ms is None:
            return
        yield from self._snapshots_at(fixed, newest_ms)
        if fixed is None:
            yield from self._replaced_with(name, newest_ms)

    def _replaced_with(self, name: ManifestName, newest_ms: int) -> Iterator[BucketSnapshot]:
        # Any state since the manifest's newest part may have it: a deletion changes manifests of old parts.
        earlier = self.visible.earlier(newest_ms, since_ms=name.time_ms, count=len(self.visible.times))
        times = list(takewhile(self._is_held, reversed(earlier)))
        if not times:
            return
        all_parts = self._shown(known_markers(self.state))
        groups = KnownGroups(all_parts, name.time_ms, since_ms=times[-1])
        tried: set[tuple[str, tuple[int, ...]]] = set()
        for at_ms in times:
            layouts = list(self._layouts_at(at_ms))
            for group in groups.at(at_ms):
                for layout in layouts:
                    if (layout.digest, group) not in tried:
                        tried.add((layout.digest, group))
                        parts = all_parts.chosen(group)
                        yield BucketSnapshot(self.handle, self.address(None), at_ms, False, parts, layout)

    def _snapshots_at(self, fixed: FixedState | None, at_ms: int) -> Iterator[BucketSnapshot]:
        """Yield the snapshot of a time, with each layout that it may have had."""
        if fixed is not None:
            if fixed.at_ms == at_ms:
                yield BucketSnapshot(self.handle, self.address(at_ms), at_ms, True, fixed.parts, self.layout(fixed))
            return
        if at_ms == self.visible.newest_ms:
            parts = self.live
        elif self._is_held(at_ms):
            parts = self._shown(live_markers(self.state, at_ms))
        else:
            return
        for layout in self._layouts_at(at_ms):
            yield BucketSnapshot(self.handle, self.address(None), at_ms, False, parts, layout)

    def _layouts_at(self, at_ms: int) -> Iterator[BucketLayout]:
        """Yield the layouts that the snapshot of a time may have had."""
        newest = self._layout(at_ms, latest=True)
        yield newest
        then = self._layout(at_ms, latest=False)
        if then.digest != newest.digest:
            yield then

    def _is_held(self, at_ms: int) -> bool:
        """Return whether the state of a time was the newest one so recently that its parts can be fetched."""
        if at_ms < self.state.horizon_ms or not self.visible.changed_at(at_ms):
            return False
        next_ms = self.visible.next_change_ms(at_ms)
        # A commit may become visible later than its time.
        return (
            next_ms is None
            or self.handle.clock.now_ms() - next_ms <= self.hold_ms + self.handle.timing.late_publication_ms
        )


def _readable_pins(bucket: VirtualBucket, handle: Handle, now_ms: int) -> list[Pin]:
    """Return the pins that documents list; no pins if one is damaged, because other snapshots need none."""
    earliest_ms = max(bucket.scope.earliest_ms or 0, _TIME_MS_MIN)
    try:
        pins = read_pins(handle)
    except CorruptLog as error:
        logger.error("the Iceberg catalog lists no pins of the bucket %s: %s", bucket.name, error)
        return []
    return [
        pin
        for pin in pins
        if not pin.expired(now_ms)
        and not is_export_pin(pin)
        and pin.name != MAIN
        and earliest_ms <= pin.as_of_ms <= now_ms
    ]
