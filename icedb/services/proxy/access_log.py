"""The access log of the proxy: one line of JSON for each request.

A reader of the log must not be able to send requests as a tenant. So signatures and credentials of presigned URLs are
redacted, and the header Authorization is not a field.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

import msgspec

from icedb.services.http.log_lines import record_line

__all__ = ["ProxyAccessRecord", "access_line", "redact_query"]

#: Parameters in lower case: of presigned URLs of signature versions 4 and 2, and of the form for a token of the Iceberg
#: catalog, which a client may send in the query by mistake.
_SECRET_PARAMETERS = frozenset(
    {"x-amz-signature", "x-amz-credential", "x-amz-security-token", "awsaccesskeyid", "signature"}
    | {"client_secret", "access_token", "token", "credential"}
)


class ProxyAccessRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A request and its response. Texts are as the client sent them."""

    #: When the request arrived, in unix milliseconds.
    time_ms: int
    request_id: str
    #: The client's address.
    client: str
    #: The authenticated tenant, or None.
    tenant: str | None
    access_key_id: str | None
    method: str
    host: str
    path: str
    query: str
    #: The header Range.
    range: str | None
    status: int
    #: The S3 error code, or an empty string.
    code: str
    #: Bytes of the response's body that were sent.
    bytes: int
    milliseconds: float
    user_agent: str
    #: The ids of the header traceparent, or None.
    trace_id: str | None = None
    span_id: str | None = None


def access_line(record: ProxyAccessRecord) -> bytes:
    """Return a record as a line of the access log."""
    fields = msgspec.structs.asdict(record)
    fields["query"] = redact_query(record.query)
    fields["path"] = _redact_path(record.path)
    fields["milliseconds"] = round(record.milliseconds, 1)
    return record_line(fields.pop("time_ms"), fields)


def redact_query(query: str) -> str:
    """Replace the values of secret parameters in a percent-encoded query with `...`."""
    return "&".join(map(_redact_parameter, query.split("&")))


def _redact_path(path: str) -> str:
    """Redact a path after an encoded question mark: a client may have encoded a whole presigned URL."""
    match = re.search("%3f", path, re.IGNORECASE)
    return path if match is None else f"{path[: match.start()]}%3F..."


def _redact_parameter(piece: str) -> str:
    name = unquote(piece).partition("=")[0]
    return f"{name}=..." if name.strip().lower() in _SECRET_PARAMETERS else piece
