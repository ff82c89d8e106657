"""Counts of the requests that this process makes to object stores, by operation.

A store charges for requests and for transferred bytes, so these counts times its prices are the cost of a process.
They are exported as metrics. Requests of DuckDB, which reads parts (data files) itself, are not included, nor are
retries within obstore.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, get_args

from icedb.storage.object_store import ObjectExists, ObjectNotFound

__all__ = ["REQUEST_COUNTS", "Operation", "OperationCount", "RequestCounts", "RequestInProgress"]

#: The requests of a store. A `list` returns a thousand keys, and a `delete` removes as many.
Operation = Literal["get", "put", "head", "list", "delete", "copy"]


@dataclass(frozen=True, slots=True)
class OperationCount:
    """The requests of one operation since the start of the process."""

    requests: int = 0
    #: Failed requests. A missing object, and one that exists already, are no errors.
    errors: int = 0
    #: Time until the responses, in seconds.
    seconds: float = 0.0
    #: Bytes of the objects that were read or written.
    bytes: int = 0


@dataclass(slots=True)
class RequestInProgress:
    """A request. The caller sets `bytes`, and `requests` if the store was requested several times."""

    bytes: int = 0
    requests: int = 1


class RequestCounts:
    """The counts of all operations. Threads can share it."""

    def __init__(self) -> None:
        self._counts: dict[Operation, OperationCount] = {name: OperationCount() for name in get_args(Operation)}
        self._lock = threading.Lock()

    @contextmanager
    def request(self, operation: Operation) -> Iterator[RequestInProgress]:
        """Count the request that the block makes, with its time and its outcome."""
        request, started, errors = RequestInProgress(), time.perf_counter(), 0
        try:
            yield request
        except (ObjectExists, ObjectNotFound):
            raise
        except Exception:  # not GeneratorExit or CancelledError: then the caller needs no more of the response
            errors = 1
            raise
        finally:
            self._add(operation, request.requests, errors, time.perf_counter() - started, request.bytes)

    def add_bytes(self, operation: Operation, size: int) -> None:
        """Count bytes of a response that arrive after its head."""
        self._add(operation, 0, 0, 0.0, size)

    def read(self) -> Mapping[Operation, OperationCount]:
        """Return the counts since the start of the process."""
        with self._lock:
            return dict(self._counts)

    def _add(self, operation: Operation, requests: int, errors: int, seconds: float, size: int) -> None:
        with self._lock:
            count = self._counts[operation]
            self._counts[operation] = replace(
                count,
                requests=count.requests + requests,
                errors=count.errors + errors,
                seconds=count.seconds + seconds,
                bytes=count.bytes + size,
            )


#: The requests of this process.
REQUEST_COUNTS = RequestCounts()
