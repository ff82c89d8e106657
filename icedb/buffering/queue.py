"""The queue of submissions, with fair turns for senders.

Submissions of one sender stay in order. A group begins with the sender that has begun none for the longest time. It is
filled so that all senders have about the same number of bytes in it. Without senders the queue is first in, first out.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from itertools import chain

from icedb.buffering.submissions import Submission

__all__ = ["SubmissionQueue"]


class SubmissionQueue:
    """The submissions that wait for a commit. Callers must hold a lock."""

    def __init__(self) -> None:
        self._of_senders: dict[str | None, deque[Submission]] = {}
        #: The number of the last group that each sender began.
        self._began: dict[str | None, int] = {}
        self._groups = 0
        self.rows = self.bytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._of_senders.values()))

    @property
    def since(self) -> float | None:
        """The time of the oldest submission, or None if the queue is empty."""
        return min((own[0].since for own in self._of_senders.values()), default=None)

    def put(self, submission: Submission) -> None:
        """Append a submission to those of its sender."""
        self._of_senders.setdefault(submission.sender, deque()).append(submission)
        self.rows, self.bytes = self.rows + submission.count, self.bytes + submission.bytes

    def put_back(self, submissions: Sequence[Submission]) -> None:
        """Return submissions to the front of those of their senders."""
        for submission in reversed(submissions):
            self._of_senders.setdefault(submission.sender, deque()).appendleft(submission)
            self.rows, self.bytes = self.rows + submission.count, self.bytes + submission.bytes

    def take(self, rows_max: int, bytes_max: int) -> list[Submission]:
        """Remove and return the next group. It ends with the submission that reaches a limit."""
        taken: list[Submission] = []
        if not self._of_senders:
            return taken
        first = min(self._of_senders, key=lambda s: (self._began.get(s, -1), self._of_senders[s][0].since))
        self._groups += 1
        self._began = {s: n for s, n in self._began.items() if s in self._of_senders} | {first: self._groups}
        # By the bytes that a sender has in the group with its next submission; the first sender comes first.
        turns = [(0 if s is first else own[0].bytes, n, s) for n, (s, own) in enumerate(self._of_senders.items())]
        heapq.heapify(turns)
        rows = size = 0
        while turns and rows < rows_max and size < bytes_max:
            _, number, sender = turns[0]
            own = self._of_senders[sender]
            submission = own.popleft()
            taken.append(submission)
            rows, size = rows + submission.count, size + submission.bytes
            if own:
                before = turns[0][0] or submission.bytes
                heapq.heapreplace(turns, (before + own[0].bytes, number, sender))
            else:
                heapq.heappop(turns)
                del self._of_senders[sender]
        self.rows, self.bytes = self.rows - rows, self.bytes - size
        return taken

    def clear(self) -> list[Submission]:
        """Remove and return all submissions, the oldest first."""
        left = sorted(chain.from_iterable(self._of_senders.values()), key=lambda s: s.since)
        self._of_senders.clear()
        self.rows = self.bytes = 0
        return left

    def all(self) -> list[Submission]:
        """Return all submissions, in no order."""
        return list(chain.from_iterable(self._of_senders.values()))
