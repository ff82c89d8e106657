"""A least-recently-used cache of views with a limit on memory."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Generic, TypeVar

from icedb.services.proxy.catalog.bucket_view import BucketView

__all__ = ["ENTRIES_MAX", "KEYS_MAX", "ViewCache"]

#: Keys of all views together: two pointers for each key, so 64 MB. Views of one snapshot share their keys.
KEYS_MAX = 4_000_000
ENTRIES_MAX = 4_096

_Name = TypeVar("_Name")


class ViewCache(Generic[_Name]):
    """Views by name. If there are too many keys or names, the least recently used views are dropped."""

    def __init__(self, *, keys_max: int = KEYS_MAX, entries_max: int = ENTRIES_MAX) -> None:
        self._keys_max, self._entries_max = keys_max, entries_max
        self._views: OrderedDict[_Name, tuple[float, BucketView]] = OrderedDict()
        #: Number of views that share a list of keys, by the identity of the list.
        self._sharing: Counter[int] = Counter()
        self._keys = 0

    def __len__(self) -> int:
        return len(self._views)

    def get(self, name: _Name, *, since: float = float("-inf")) -> BucketView | None:
        """Return the view of that name, or None if there is none that was stored at `since` or later."""
        stored_at, view = self._views.get(name, (0.0, None))
        if view is None or stored_at < since:
            return None
        self._views.move_to_end(name)
        return view

    def put(self, name: _Name, view: BucketView, *, at: float = 0.0) -> None:
        """Store a view, and replace a view of the same name."""
        self._drop(name)
        self._views[name] = at, view
        self._sharing[id(view.keys)] += 1
        if self._sharing[id(view.keys)] == 1:
            self._keys += len(view.keys)
        while len(self._views) > 1 and (self._keys > self._keys_max or len(self._views) > self._entries_max):
            self._drop(next(iter(self._views)))

    def clear(self) -> None:
        """Remove all views."""
        self._views.clear()
        self._sharing.clear()
        self._keys = 0

    def _drop(self, name: _Name) -> None:
        _, view = self._views.pop(name, (0.0, None))
        if view is None:
            return
        self._sharing[id(view.keys)] -= 1
        if not self._sharing[id(view.keys)]:
            del self._sharing[id(view.keys)]
            self._keys -= len(view.keys)
