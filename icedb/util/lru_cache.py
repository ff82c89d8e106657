"""What was used last, of more than can be kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import ValuesView
from typing import Generic, TypeVar

__all__ = ["LruCache"]

_Name = TypeVar("_Name")
_Value = TypeVar("_Value")


class LruCache(Generic[_Name, _Value]):
    """Values by name. Of more than `entries`, those go that were not used for longest."""

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._by_name: OrderedDict[_Name, _Value] = OrderedDict()

    def __contains__(self, name: _Name) -> bool:
        return name in self._by_name

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: _Name) -> _Value | None:
        """The value of that name, which is used now."""
        if name in self._by_name:
            self._by_name.move_to_end(name)
        return self._by_name.get(name)

    def put(self, name: _Name, value: _Value) -> None:
        """Keep a value, in the place of what had that name."""
        self._by_name[name] = value
        self._by_name.move_to_end(name)
        while len(self._by_name) > self._entries:
            self._by_name.popitem(last=False)

    def remove(self, name: _Name) -> None:
        """Forget a name, if it is there."""
        self._by_name.pop(name, None)

    def clear(self) -> None:
        """Forget all."""
        self._by_name.clear()

    def values(self) -> ValuesView[_Value]:
        """All values; none of them is used by that."""
        return self._by_name.values()
