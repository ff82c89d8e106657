"""A mapping that keeps the most recently used values."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import ValuesView
from typing import Generic, TypeVar

__all__ = ["LruCache"]

_Name = TypeVar("_Name")
_Value = TypeVar("_Value")


class LruCache(Generic[_Name, _Value]):
    """Values by name. Beyond `entries`, the least recently used value is evicted."""

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._by_name: OrderedDict[_Name, _Value] = OrderedDict()

    def __contains__(self, name: _Name) -> bool:
        return name in self._by_name

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: _Name) -> _Value | None:
        """Return the value of a name and mark it as used; None if there is none."""
        if name in self._by_name:
            self._by_name.move_to_end(name)
        return self._by_name.get(name)

    def put(self, name: _Name, value: _Value) -> None:
        """Store a value and mark it as used. It replaces an earlier value of that name."""
        self._by_name[name] = value
        self._by_name.move_to_end(name)
        while len(self._by_name) > self._entries:
            self._by_name.popitem(last=False)

    def remove(self, name: _Name) -> None:
        """Remove a name if it exists."""
        self._by_name.pop(name, None)

    def clear(self) -> None:
        """Remove all values."""
        self._by_name.clear()

    def values(self) -> ValuesView[_Value]:
        """Return all values, without marking them as used."""
        return self._by_name.values()
