"""The trace of a request: the header `traceparent` of W3C Trace Context, by which a log line belongs to a trace.

The services log the ids and start no spans of their own. A header that is not valid is ignored, as the standard
requires.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["NO_TRACE", "TraceContext", "trace_context"]

#: Version, trace id, parent id and flags. A later version may append fields; version `ff` is not allowed.
_TRACEPARENT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The ids of a trace and of the client's span in it, in hexadecimal digits; None without a valid header."""

    trace_id: str | None = None
    span_id: str | None = None


NO_TRACE = TraceContext()


def trace_context(headers: Iterable[tuple[str, str]]) -> TraceContext:
    """Return the trace that a request's headers name. The names of the headers are in lower case."""
    values = [value for name, value in headers if name == "traceparent"]
    match = _TRACEPARENT.fullmatch(values[0].strip(" \t")) if len(values) == 1 else None
    if match is None or (match[1] == "00" and match[4] is not None):
        return NO_TRACE
    return TraceContext(match[2], match[3])
