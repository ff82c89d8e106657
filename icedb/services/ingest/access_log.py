"""The access log of the ingest service: one line of JSON for each request, without keys and events."""

from __future__ import annotations

import msgspec

from icedb.services.http.log_lines import record_line

__all__ = ["IngestAccessRecord", "access_line"]


class IngestAccessRecord(msgspec.Struct, kw_only=True):
    """A request and its response. Texts are as the client sent them."""

    #: When the request arrived, in unix milliseconds.
    time_ms: int
    request_id: str
    #: The client's address.
    client: str
    method: str
    path: str
    user_agent: str
    #: The ids of the header traceparent.
    trace_id: str | None = None
    span_id: str | None = None
    #: The authenticated tenant, or None.
    tenant: str | None = None
    table: str | None = None
    status: int = 0
    #: The error code of a rejected request.
    error: str | None = None
    #: Size of the body as it was sent.
    bytes: int = 0
    events: int = 0
    repeated: int = 0
    #: The id of the commit that has the events, as the response has it, and the key of its log file.
    commit: str | None = None
    log_file: str | None = None
    milliseconds: float = 0.0


def access_line(record: IngestAccessRecord) -> bytes:
    """Return a record as a line of the access log."""
    fields = msgspec.structs.asdict(record)
    return record_line(fields.pop("time_ms"), fields)
