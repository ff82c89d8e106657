"""The model with which the table is compared: when each row was added, and when it was removed.

Its only input is every log file at the moment when it lands in the store. Reports of actors are not used. The effect of
a log file on rows follows from the rows in the parts that it names. Epochs must land in order, each once, and no row
may be added twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from icedb.format.codec import decode
from icedb.format.keys import Keys
from icedb.format.records import LogFile, Marker
from icedb.testing.simulation.world.plain_parts import rows_of
from icedb.testing.simulation.world.setting import LATE_MS, TIMING

__all__ = ["Fate", "Landing", "Truth", "Violation"]

_FOREVER_MS = 1 << 62


class Violation(AssertionError):
    """The table violated an invariant."""


@dataclass(slots=True)
class Fate:
    """One life of a row: its begin and end, as time in the log and as the number of the request."""

    part: str
    added_ms: int
    added_step: int
    removed_ms: int = _FOREVER_MS
    removed_step: int = _FOREVER_MS
    #: The epochs that added and removed it; 0 for a plain append, or if it has not ended.
    added_epoch: int = 0
    removed_epoch: int = 0

    @property
    def ended(self) -> bool:
        """True if the row was removed."""
        return self.removed_step < _FOREVER_MS

    def holds_at(self, at_ms: int) -> bool:
        """Return whether a snapshot at that time has the row."""
        return self.added_ms <= at_ms < self.removed_ms


@dataclass(frozen=True, slots=True)
class Landing:
    """The effect of one log file when it landed for the first time."""

    key: str
    step: int
    t_ms: int
    void: bool
    added: frozenset[int] = frozenset()
    removed: frozenset[int] = frozenset()
    #: All rows that were live right after it, if the commit may bring rows back.
    left: frozenset[int] = frozenset()


@dataclass(slots=True)
class Truth:
    """The expected state of the table."""

    keys: Keys
    several_types: bool = False
    #: Part key -> its rows, for every part that was ever put.
    contents: dict[str, tuple[int, ...]] = field(default_factory=dict)
    stored_ms: dict[str, int] = field(default_factory=dict)
    live: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    fates: dict[int, list[Fate]] = field(default_factory=dict)
    schema: dict[str, str] = field(default_factory=dict)
    epoch: int = 0
    landings: dict[str, Landing] = field(default_factory=dict)
    #: Log files of which a late copy arrived. Programs of v3 cannot know that they were replaced.
    returned: set[str] = field(default_factory=set)
    #: Part or log file -> when the first log file that supersedes it landed, by the store's clock.
    superseded_ms: dict[str, int] = field(default_factory=dict)
    #: Names of processes whose commits may bring rows back, because they restore.
    revivers: set[str] = field(default_factory=set)

    def part_landed(self, key: str, body: bytes, *, now_ms: int) -> None:
        """Record the rows of a part that was put. They are not visible yet."""
        self.contents[key] = rows_of(body)
        self.stored_ms.setdefault(key, now_ms)

    def log_landed(self, key: str, body: bytes, *, step: int, now_ms: int) -> None:
        """Apply a log file that was put. Raises Violation."""
        if key in self.landings:  # a late copy, or a void after a log file: it must change nothing
            self.returned.add(key)
            return
        file = decode(body, key, self.keys)
        if file.epoch is not None:
            if file.epoch != self.epoch + 1:
                raise Violation(f"epoch {file.epoch} landed as '{key}' after epoch {self.epoch}")
            self.epoch = file.epoch
        if file.void:
            self.landings[key] = Landing(key, step, file.t_ms, void=True)
            return
        for superseded in [t.key for t in file.tombstones] + [m.key for m in file.markers if m.tombstoned_ms]:
            self.superseded_ms.setdefault(superseded, now_ms)
        self._merge_schema(file.schema, key)
        self._note_earlier(file.markers)
        added = self._new_parts(file)
        removed = [m.key for m in file.markers if m.tombstoned_ms is not None and m.key in self.live]
        self.live |= set(added)
        self.live -= set(removed)
        self.dead |= set(removed)
        if added or removed:
            self._check_times(key, file, added, now_ms)
        self.landings[key] = self._move_rows(key, file, added, removed, step)

    def process_of(self, key: str) -> str:
        """Return the name of the process that wrote a log file: its writer without the id."""
        return self.keys.parse_log_file(key).writer.rsplit("-", 1)[0]

    def _check_times(self, key: str, file: LogFile, added: Iterable[str], now_ms: int) -> None:
        """Check that no settled time changes, and that published parts are younger than those that a sweep deletes."""
        if now_ms - file.t_ms > LATE_MS:
            raise Violation(f"'{key}' changes the table of {now_ms - file.t_ms} ms ago")
        oldest_ms = min((self.stored_ms[part] for part in added), default=now_ms)
        # The claim of a transaction protects its parts for any time.
        if not file.txn and now_ms - oldest_ms > TIMING.part_timeout_ms + LATE_MS:
            raise Violation(f"'{key}' publishes a part that was put {now_ms - oldest_ms} ms ago")

    def _merge_schema(self, schema: Mapping[str, str], key: str) -> None:
        for column, type_ in schema.items():
            if self.schema.setdefault(column, type_) != type_ and not self.several_types:
                raise Violation(f"in '{key}' column '{column}' is {type_}; it must be {self.schema[column]}")

    def _note_earlier(self, markers: Iterable[Marker]) -> None:
        """Apply an earlier time of a part, from a put that seemed lost and was repeated with a later time."""
        for marker in markers:
            if marker.key in self.live or marker.key in self.dead:
                for row in self.contents.get(marker.key, ()):
                    for fate in self.fates.get(row, ()):
                        if fate.part == marker.key:
                            fate.added_ms = min(fate.added_ms, marker.created_ms)

    def _new_parts(self, file: LogFile) -> list[str]:
        new = [m for m in file.markers if m.key not in self.live and m.key not in self.dead]
        if unknown := [m.key for m in new if m.key not in self.contents]:
            raise Violation(f"a log file names parts that were never put: {unknown}")
        self.dead |= {m.key for m in new if m.tombstoned_ms is not None}
        return [m.key for m in new if m.tombstoned_ms is None]

    def _move_rows(self, key: str, file: LogFile, added: list[str], removed: list[str], step: int) -> Landing:
        to = {row: part for part in added for row in self.contents[part]}
        into = Counter(row for part in added for row in self.contents[part])
        out = Counter(row for part in removed for row in self.contents[part])
        if twice := [row for row, count in into.items() if count > 1]:
            raise Violation(f"'{key}' adds rows twice: {twice}")
        revives = self.process_of(key) in self.revivers
        for row in out.keys() - into.keys():
            fate = self.fates[row][-1]
            fate.removed_ms, fate.removed_step, fate.removed_epoch = file.t_ms, step, file.epoch or 0
        for row in into.keys() & out.keys():  # the part may have been written by a clock far ahead
            self.fates[row][-1].added_ms = min(self.fates[row][-1].added_ms, file.t_ms)
        for row in into.keys() - out.keys():
            lives = self.fates.setdefault(row, [])
            if lives and not (revives and lives[-1].ended):
                raise Violation(f"'{key}' adds row {row}, which was added by '{lives[-1].part}' before")
            lives.append(Fate(to[row], file.t_ms, step, added_epoch=file.epoch or 0))
        return Landing(
            key,
            step,
            file.t_ms,
            void=False,
            added=frozenset(into.keys() - out.keys()),
            removed=frozenset(out.keys() - into.keys()),
            left=frozenset(self.rows()) if revives else frozenset(),
        )

    # ------------------------------------------------------------------------------------ expected rows

    def rows(self) -> set[int]:
        """Return the rows of the latest snapshot."""
        return {row for row, lives in self.fates.items() if not lives[-1].ended}

    def rows_at(self, at_ms: int) -> set[int]:
        """Return the rows of the snapshot at a time."""
        return {row for row, lives in self.fates.items() if any(f.holds_at(at_ms) for f in lives)}

    def must_see(self, first_step: int, last_step: int) -> set[int]:
        """Return the rows that a reader must see that begins and ends at these requests."""
        return {
            row
            for row, lives in self.fates.items()
            if any(f.added_step < first_step and f.removed_step > last_step for f in lives)
        }

    def may_see(self, first_step: int, last_step: int) -> set[int]:
        """Return the rows that a reader may see that begins and ends at these requests."""
        return {
            row
            for row, lives in self.fates.items()
            if any(f.added_step <= last_step and f.removed_step >= first_step for f in lives)
        }

    def epochs_seen(self, rows: Iterable[int]) -> tuple[int, int]:
        """Return the newest epoch that added one of a reader's rows, and the oldest epoch that removed one of them."""
        once = [lives[0] for row in rows if len(lives := self.fates.get(row, [])) == 1]
        newest = max((f.added_epoch for f in once), default=0)
        return newest, min((f.removed_epoch for f in once if f.removed_epoch), default=newest)
