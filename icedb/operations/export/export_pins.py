"""The publication of exports that share the parts (data files) of a table, and the pins (tags) that keep these parts.

A version's pin is put before the version, so an export that dies may leave a needless pin but never lacks one. The name
of a pin contains its version. The pin of an older version is removed once that version has been superseded for the
grace period. Of two pins of one version the one that expires first is removed, so that two exports never remove each
other's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, TypeVar

from icedb.errors import CommitConflict, CommitTimedOut, InvalidOption, StoreUnavailable
from icedb.operations.retention.pins import pin, unpin
from icedb.transaction.append import PutOutcome, put_if_absent
from icedb.transaction.pin_objects import Pin
from icedb.transaction.table_handle import Handle

__all__ = ["KEEP", "ExportPins", "check_keep", "is_export_pin", "publish_pinned", "put_exported"]

#: The time for which the parts of an export are kept, unless another export follows.
KEEP = timedelta(days=7)
ATTEMPTS_MAX = 20
_NAME = re.compile(r"(?P<kind>delta|iceberg)-export-(?P<version>\d+)-[0-9a-f]{12}")


def check_keep(handle: Handle, keep: timedelta | None) -> None:
    """Raise InvalidOption unless `keep` is None or above 0."""
    if keep is not None and keep <= timedelta(0):
        raise InvalidOption(f"{handle.table}: keep is {keep}; give a timedelta above 0, or None.")


def is_export_pin(of: Pin) -> bool:
    """Return whether an export made the pin."""
    return _NAME.fullmatch(of.name) is not None


@dataclass(frozen=True)
class ExportPins:
    """The pins of one kind of export, `delta` or `iceberg`."""

    handle: Handle
    kind: str

    def add(self, version: int, as_of_ms: int | None, keep: timedelta | None) -> Pin:
        """Pin the snapshot of a version. Raises the errors of `pin`, such as SnapshotExpired."""
        return pin(
            self.handle, f"{self.kind}-export-{version}-{self.handle.clock.new_id()[:12]}", as_of_ms, expires=keep
        )

    def check_in_force(self, of: Pin) -> None:
        """Raise CommitTimedOut if the pin has expired."""
        if of.expired(self.handle.clock.now_ms()):
            raise CommitTimedOut(
                f"{self.handle.table}: the export took longer than keep. Nothing was exported. Retry it."
            )

    def version_of(self, of: Pin) -> int | None:
        """Return the version of an export's pin; None for other pins."""
        match = _NAME.fullmatch(of.name)
        return int(match["version"]) if match and match["kind"] == self.kind else None

    def superseded(self, pins: Sequence[Pin], versions_ms: Mapping[int, int]) -> list[Pin]:
        """Return the pins of versions that were superseded for the grace period.

        `versions_ms` has the store's time of each existing version.
        """
        newest = max(versions_ms, default=-1)
        return [
            p for p in pins if (v := self.version_of(p)) is not None and v < newest and self._is_old(v, versions_ms)
        ]

    def surplus(self, pins: Sequence[Pin], kept: Pin) -> list[Pin]:
        """Return the pins of the version of `kept` that expire before it."""
        return [p for p in pins if self.version_of(p) == self.version_of(kept) and _rank(p) < _rank(kept)]

    def remove(self, pins: Sequence[Pin]) -> None:
        """Remove pins."""
        for one in pins:
            unpin(self.handle, one.name)

    def _is_old(self, version: int, versions_ms: Mapping[int, int]) -> bool:
        superseded_ms = versions_ms.get(version + 1, 0)  # 0: the version was deleted
        timing = self.handle.timing
        return superseded_ms + timing.grace_ms + timing.max_skew_ms <= self.handle.clock.now_ms()


def _rank(of: Pin) -> tuple[bool, int, str]:
    return of.expires_ms is None, of.expires_ms or 0, of.name


class _VersionPlan(Protocol):
    """The plan of an export."""

    @property
    def differs(self) -> bool:
        """True if there is anything to publish."""

    @property
    def version(self) -> int:
        """The next version, or the newest if nothing differs."""

    @property
    def pin_ms(self) -> int | None:
        """The time to pin. None: the time of the newest commit."""


_Plan = TypeVar("_Plan", bound=_VersionPlan)


def publish_pinned(
    pins: ExportPins, keep: timedelta | None, plan_version: Callable[[], _Plan], publish: Callable[[_Plan, Pin], bool]
) -> tuple[_Plan, Pin]:
    """Plan, pin and publish a version; plan again if another export published it first.

    `publish` returns whether it published the version. It is not called if nothing differs: then only the pin is new.
    Returns the plan and its pin. Raises CommitConflict, and as `plan_version`, `publish` and `ExportPins.add` do.
    """
    for _ in range(ATTEMPTS_MAX):
        plan = plan_version()
        kept = pins.add(plan.version, plan.pin_ms, keep)
        if not plan.differs or publish(plan, kept):
            return plan, kept
        pins.remove([kept])
    raise CommitConflict(
        f"{pins.handle.table}: the export lost {ATTEMPTS_MAX} conflicts to other exports. Nothing was exported. Run "
        "one export at a time."
    )


def put_exported(handle: Handle, key: str, body: bytes) -> bool:
    """Put an object of an export, and return False if another process has put one. Raises StoreUnavailable."""
    outcome = put_if_absent(handle.store, key, body)
    if outcome is PutOutcome.NOT_FOUND:
        raise StoreUnavailable(
            f"{handle.table}: the store did not respond, and '{key}' does not exist. Retry the export."
        )
    return outcome is not PutOutcome.CONFLICT
