"""Views that somebody may come back to, as many as memory allows."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Generic, TypeVar

from icedb.services.proxy.catalog.bucket_view import BucketView

__all__ = ["ENTRIES_MAX", "KEYS_MAX", "ViewCache"]

#: Of all views together: two pointers for each key, so 64 MB. Views of one snapshot share their keys.
KEYS_MAX = 4_000_000
ENTRIES_MAX = 4_096

_Name = TypeVar("_Name")


class ViewCache(Generic[_Name]):
    """Views by name. When there are too many keys or names, those go that nobody asked for longest."""

    def __init__(self, *, keys_max: int = KEYS_MAX, entries_max: int = ENTRIES_MAX) -> None:
        self._keys_max, self._entries_max = keys_max, entries_max
        self._kept: OrderedDict[_Name, tuple[float, BucketView]] = OrderedDict()
        #: By the identity of a list of keys, how many views have it.
        self._sharing: Counter[int] = Counter()
        self._keys = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, name: _Name, *, since: float = float("-inf")) -> BucketView | None:
        """The view of that name, unless it was kept before a time."""
        kept_at, view = self._kept.get(name, (0.0, None))
        if view is None or kept_at < since:
            return None
        self._kept.move_to_end(name)
        return view

    def keep(self, name: _Name, view: BucketView, *, at: float = 0.0) -> None:
        """Remember a view, in the place of what had that name."""
        self._drop(name)
        self._kept[name] = at, view
        self._sharing[id(view.keys)] += 1
        if self._sharing[id(view.keys)] == 1:
            self._keys += len(view.keys)
        while len(self._kept) > 1 and (self._keys > self._keys_max or len(self._kept) > self._entries_max):
            self._drop(next(iter(self._kept)))

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()
        self._sharing.clear()
        self._keys = 0

    def _drop(self, name: _Name) -> None:
        _, view = self._kept.pop(name, (0.0, None))
        if view is None:
            return
        self._sharing[id(view.keys)] -= 1
        if not self._sharing[id(view.keys)]:
            del self._sharing[id(view.keys)]
            self._keys -= len(view.keys)
