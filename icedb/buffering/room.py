"""Room for what waits: who brings more than fits waits his turn, in the order in which they came."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future

__all__ = ["Room", "Ticket"]


class Ticket(Future[None]):
    """Done when there is room for so many bytes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size


class Room:
    """So many bytes; what is larger than that gets in when nothing else is there. Safe to share between threads."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._taken = 0
        self._queue: deque[Ticket] = deque()
        self._lock = threading.Lock()

    @property
    def taken(self) -> int:
        """Bytes that are in it."""
        return self._taken

    def enter(self, size: int) -> Ticket:
        """A ticket that is done at once when there is room and nobody waits."""
        ticket = Ticket(size)
        with self._lock:
            self._queue.append(ticket)
            self._let_in()
        return ticket

    def turn_away(self, ticket: Ticket) -> bool:
        """Whether the ticket was still waiting; it will not be let in any more. False: it is in."""
        with self._lock:
            if ticket not in self._queue:
                return False
            self._queue.remove(ticket)
            self._let_in()  # who came after may need less
        return True

    def give_back(self, size: int) -> None:
        """So many bytes have gone."""
        with self._lock:
            self._taken -= size
            self._let_in()

    def close(self, error: Exception) -> None:
        """All who wait are told the error."""
        with self._lock:
            while self._queue:
                ticket = self._queue.popleft()
                if ticket.set_running_or_notify_cancel():
                    ticket.set_exception(error)

    def _let_in(self) -> None:
        while self._queue and (not self._taken or self._taken + self._queue[0].size <= self._bytes_max):
            ticket = self._queue.popleft()
            if ticket.set_running_or_notify_cancel():  # else nobody waits for it any more
                self._taken += ticket.size
                ticket.set_result(None)
