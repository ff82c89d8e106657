"""The results of reads and commits that later calls of a handle use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from icedb.format.replay import TableState
from icedb.storage.parts import Part

__all__ = ["LogCache"]


class LogCache:
    """Facts about the log, kept between reads. Threads share it without a lock, because no value changes in place.

    A copy starts with the same values and changes separately.
    """

    def __init__(self) -> None:
        self._schema: Mapping[str, str] = {}
        self._read_at_ms: int | None = None
        self._latest: tuple[TableState, Sequence[Part]] | None = None
        self._newest_epoch = 0
        self._last_append_ms = 0

    @property
    def schema(self) -> Mapping[str, str]:
        """The log's schema at the last read, and the columns that own commits added since."""
        return self._schema

    @property
    def newest_epoch(self) -> int:
        """The newest epoch that a commit read. A log with an older head has lost exclusive commits."""
        return self._newest_epoch

    def learn(self, state: TableState, *, read_at_ms: int) -> None:
        """Remember a state whose read began at this time."""
        self._read_at_ms = read_at_ms
        self._schema = dict(state.schema)

    def learn_columns(self, columns: Mapping[str, str]) -> None:
        """Remember columns that our own commit added to the table."""
        self._schema = {**self._schema, **columns}

    def learn_epoch(self, epoch: int) -> None:
        """Remember the epoch of a head."""
        self._newest_epoch = max(epoch, self._newest_epoch)

    def is_recent(self, now_ms: int, *, age_ms: int) -> bool:
        """Whether the log was read within this time. A read in the future does not count: this clock was set back."""
        return self._read_at_ms is not None and 0 <= now_ms - self._read_at_ms <= age_ms

    def next_append_ms(self, now_ms: int) -> int:
        """Return the time of the next append: two appends of one handle within a millisecond need two names."""
        self._last_append_ms = t_ms = max(now_ms, self._last_append_ms + 1)
        return t_ms

    def live_parts(self, state: TableState, create: Callable[[], Sequence[Part]]) -> Sequence[Part]:
        """Return the live parts of the last state, which are created only once."""
        latest = self._latest
        if latest is None or latest[0] is not state:
            self._latest = latest = state, create()
        return latest[1]
