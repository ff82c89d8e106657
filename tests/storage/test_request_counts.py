"""Counts of the requests of a process: by operation, with bytes, and with the errors of a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from icedb.errors import StoreUnavailable
from icedb.storage.location import parse_location
from icedb.storage.obstore_store import ObjectExists, ObjectNotFound, ObjectStore, fetch, open_store
from icedb.storage.request_counts import REQUEST_COUNTS, OperationCount
from tests.support.object_stores.stores import Place

BODY = b"x" * 1_500


@contextmanager
def counted() -> Iterator[dict[str, tuple[int, int, int]]]:
    """Yield a mapping that receives requests, errors and bytes of each operation that the block used."""
    before, used = REQUEST_COUNTS.read(), dict[str, tuple[int, int, int]]()
    yield used
    for name, now in REQUEST_COUNTS.read().items():
        old: OperationCount = before[name]
        if now.requests > old.requests:
            assert now.seconds > old.seconds
            used[name] = now.requests - old.requests, now.errors - old.errors, now.bytes - old.bytes


def opened(place: Place) -> tuple[ObjectStore, str]:
    store = open_store(parse_location(place.uri, place.storage_options))
    return store, f"{store.location.prefix}/_data/part".lstrip("/")


def test_each_request_is_counted_with_its_bytes(place: Place, tmp_path: Path) -> None:
    store, key = opened(place)
    with counted() as used:
        store.create(key, BODY)
        with pytest.raises(ObjectExists):
            store.create(key, BODY)
        store.get(key)
        fetch(store, key, tmp_path / "copy")
        store.get_many([key, f"{key}-absent"])
        store.head(key)
        with pytest.raises(ObjectNotFound):
            store.head(f"{key}-absent")
        store.list(key.rpartition("/")[0] + "/")
        store.copy(key, f"{key}-2")
        store.delete([key, f"{key}-2"])
    size = len(BODY)
    assert used == {
        "put": (2, 0, 2 * size),
        "get": (4, 0, 3 * size),
        "head": (2, 0, 0),
        "list": (1, 0, 0),
        "copy": (1, 0, 0),
        "delete": (1, 0, 0),
    }, "an absent object, and one that exists already, are no errors"


def test_a_failed_request_is_an_error(local: Place) -> None:
    store, key = opened(local)
    store.create(key, BODY)
    Path(local.uri).rename(f"{local.uri}-unmounted")
    with counted() as used, pytest.raises(StoreUnavailable):
        store.get(key)
    assert used == {"get": (1, 1, 0)}
