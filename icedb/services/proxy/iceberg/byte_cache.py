"""A least-recently-used cache whose values have a size, with a limit on the sum. Threads can share it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["ByteCache"]

_Value = TypeVar("_Value")


class ByteCache(Generic[_Value]):
    """Values by name. Beyond `bytes_max`, the least recently used values are evicted, except for the newest."""

    def __init__(self, bytes_max: int, size_of: Callable[[_Value], int]) -> None:
        self._bytes_max = bytes_max
        self._size_of = size_of
        self._values: OrderedDict[Hashable, _Value] = OrderedDict()
        self._lock = threading.Lock()
        #: The size of all values.
        self.bytes = 0

    def get(self, name: Hashable) -> _Value | None:
        """Return the value of a name and mark it as used; None if there is none."""
        with self._lock:
            value = self._values.get(name)
            if value is not None:
                self._values.move_to_end(name)
            return value

    def put(self, name: Hashable, value: _Value) -> None:
        """Store a value. It replaces an earlier value of that name."""
        with self._lock:
            if (earlier := self._values.pop(name, None)) is not None:
                self.bytes -= self._size_of(earlier)
            self._values[name] = value
            self.bytes += self._size_of(value)
            while self.bytes > self._bytes_max and len(self._values) > 1:
                _, evicted = self._values.popitem(last=False)
                self.bytes -= self._size_of(evicted)
