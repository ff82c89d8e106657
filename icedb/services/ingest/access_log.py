"""One line of JSON for each request: who sent how much, and what became of it. Keys and events are in none."""

from __future__ import annotations

import msgspec

from icedb.services.http.log_lines import LineSink, record_line

__all__ = ["IngestAccessLog", "IngestAccessRecord"]


class IngestAccessRecord(msgspec.Struct, kw_only=True):
    """What is known of a request when its answer is over; texts as the client sent them."""

    #: Unix milliseconds, when the request came.
    time_ms: int
    request_id: str
    #: The client's address.
    client: str
    method: str
    path: str
    user_agent: str
    #: Of whoever proved it, else None.
    tenant: str | None = None
    table: str | None = None
    status: int = 0
    #: Of a refusal: its name for programs.
    error: str | None = None
    #: Of the body, as it was sent.
    bytes: int = 0
    events: int = 0
    repeated: int = 0
    #: The commit that has the events, as the client was answered, and its log file.
    commit: str | None = None
    log_file: str | None = None
    milliseconds: float = 0.0


class IngestAccessLog:
    """Gives each record to `lines`, as one line."""

    def __init__(self, lines: LineSink) -> None:
        self._lines = lines

    def write(self, record: IngestAccessRecord) -> None:
        """Give the line of a record away."""
        said = msgspec.structs.asdict(record)
        self._lines.write(record_line(said.pop("time_ms"), said))
