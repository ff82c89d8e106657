"""The memory limit of waiting rows. Senders beyond it wait in their order of arrival."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future

__all__ = ["Room", "Ticket"]


class Ticket(Future[None]):
    """A future that is done once there is room for `size` bytes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size


class Room:
    """A limit of bytes, shared by threads. A larger submission enters once the room is empty."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._taken = 0
        self._queue: deque[Ticket] = deque()
        self._lock = threading.Lock()

    @property
    def taken(self) -> int:
        """The bytes that are taken."""
        return self._taken

    def enter(self, size: int) -> Ticket:
        """Return a ticket. It is done at once if there is room and no other ticket waits."""
        ticket = Ticket(size)
        with self._lock:
            self._queue.append(ticket)
            self._let_in()
        return ticket

    def reject(self, ticket: Ticket) -> bool:
        """Remove a ticket from the queue, and return whether it was still waiting. False: it has room."""
        with self._lock:
            if ticket not in self._queue:
                return False
            self._queue.remove(ticket)
            self._let_in()  # later tickets may need less room
        return True

    def give_back(self, size: int) -> None:
        """Free this many bytes."""
        with self._lock:
            self._taken -= size
            self._let_in()

    def close(self, error: Exception) -> None:
        """Set an error on all waiting tickets."""
        with self._lock:
            while self._queue:
                ticket = self._queue.popleft()
                if ticket.set_running_or_notify_cancel():
                    ticket.set_exception(error)

    def _let_in(self) -> None:
        while self._queue and (not self._taken or self._taken + self._queue[0].size <= self._bytes_max):
            ticket = self._queue.popleft()
            if ticket.set_running_or_notify_cancel():  # False: it was cancelled
                self._taken += ticket.size
                ticket.set_result(None)
