"""One line of JSON for each request: who asked for what, and what became of it.

What would let a reader of the log ask in a tenant's place is not in it: signatures and credentials of presigned
addresses are taken out, and the header Authorization is no field.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

import msgspec

from icedb.services.http.log_lines import LineSink, record_line

__all__ = ["ProxyAccessLog", "ProxyAccessRecord", "redact_query"]

#: Lower case. Parameters of presigned addresses, of signature version 4 and of the one before.
_SECRET_PARAMETERS = frozenset(
    {"x-amz-signature", "x-amz-credential", "x-amz-security-token", "awsaccesskeyid", "signature"}
)


class ProxyAccessRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a request when its answer is over; texts as the client sent them."""

    #: Unix milliseconds, when the request came.
    time_ms: int
    request_id: str
    #: The client's address.
    client: str
    #: Of whoever proved it, else None.
    tenant: str | None
    access_key_id: str | None
    method: str
    host: str
    path: str
    query: str
    #: The header Range.
    range: str | None
    status: int
    #: Of S3's error, or nothing.
    code: str
    #: Of the answer's body, as far as it was sent.
    bytes: int
    milliseconds: float
    user_agent: str


class ProxyAccessLog:
    """Gives each record to `lines`, as one line."""

    def __init__(self, lines: LineSink) -> None:
        self._lines = lines

    def write(self, record: ProxyAccessRecord) -> None:
        """Give the line of a record away."""
        said = msgspec.structs.asdict(record)
        said["query"] = redact_query(record.query)
        said["path"] = _without_question(record.path)
        said["milliseconds"] = round(record.milliseconds, 1)
        self._lines.write(record_line(said.pop("time_ms"), said))


def redact_query(query: str) -> str:
    """A percent-encoded query with `...` for what would let somebody else ask in the client's place."""
    return "&".join(map(_without_secret, query.split("&")))


def _without_question(path: str) -> str:
    """A path without what follows an encoded question mark: somebody may have encoded a whole presigned address."""
    found = re.search("%3f", path, re.IGNORECASE)
    return path if found is None else f"{path[: found.start()]}%3F..."


def _without_secret(piece: str) -> str:
    name = unquote(piece).partition("=")[0]
    return f"{name}=..." if name.strip().lower() in _SECRET_PARAMETERS else piece
