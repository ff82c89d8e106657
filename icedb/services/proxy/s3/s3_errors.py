"""What a client is told when it gets nothing: S3's own error codes, and the XML around them.

An `S3Error` says nothing of what lies behind the proxy: no bucket, key, address or credential of the store, and no text
of an error of ours. What happened in truth goes to the log.
"""

from __future__ import annotations

from xml.sax.saxutils import escape

from icedb.errors import IceDBError

__all__ = ["S3Error", "error_document"]

#: Code -> HTTP status and what a person reads, when nothing better is said. Source: "Error responses" of S3's API
#: reference.
_CODES = {
    "AccessDenied": (403, "Access Denied"),
    "AuthorizationHeaderMalformed": (400, "The authorization header that you provided is not valid."),
    "AuthorizationQueryParametersError": (400, "The authorization parameters of the query are not valid."),
    "EntityTooLarge": (400, "The request has a larger body than this endpoint takes."),
    "InternalError": (500, "We encountered an internal error. Please try again."),
    "InvalidAccessKeyId": (403, "The access key id that you provided does not exist in our records."),
    "InvalidArgument": (400, "Invalid argument."),
    "InvalidPartNumber": (416, "The requested partnumber is not satisfiable."),
    "InvalidRange": (416, "The requested range is not satisfiable."),
    "InvalidRequest": (400, "Invalid request."),
    "InvalidToken": (400, "The provided token is malformed or otherwise not valid."),
    "InvalidURI": (400, "The specified URI could not be parsed."),
    "MethodNotAllowed": (405, "The specified method is not allowed against this resource."),
    "NoSuchBucket": (404, "The specified bucket does not exist."),
    "NoSuchKey": (404, "The specified key does not exist."),
    "NoSuchVersion": (404, "The specified version does not exist."),
    "NotImplemented": (501, "What the request asks for is not implemented here."),
    "PreconditionFailed": (412, "At least one of the preconditions that you specified did not hold."),
    "RequestHeaderSectionTooLarge": (400, "The request's headers are larger than this endpoint takes."),
    "RequestTimeTooSkewed": (403, "The difference between the request time and the server's time is too large."),
    "ServiceUnavailable": (503, "The service is not able to handle the request. Try again later."),
    "SignatureDoesNotMatch": (
        403,
        "The request signature that we calculated does not match the signature that you provided. Check your key and "
        "signing method.",
    ),
    "SlowDown": (503, "Please reduce your request rate."),
    "XAmzContentSHA256Mismatch": (400, "The provided 'x-amz-content-sha256' header does not match what was computed."),
}


class S3Error(IceDBError):
    """An answer of S3 that is an error. Not part of the public tree: only clients of the proxy meet it."""

    def __init__(self, code: str, message: str = "", *, headers: tuple[tuple[str, str], ...] = ()) -> None:
        status, usual = _CODES[code]
        super().__init__(message or usual)
        self.code = code
        self.status = status
        self.message = message or usual
        #: Further headers of the answer; what may go better later says when.
        self.headers = (*headers, ("Retry-After", "1")) if status == 503 else headers


def error_document(error: S3Error, *, resource: str, request_id: str) -> bytes:
    """The answer's body. `resource` is the path as the client asked for it."""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{error.code}</Code><Message>{escape(error.message)}</Message>"
        f"<Resource>{escape(_printable(resource))}</Resource><RequestId>{request_id}</RequestId></Error>"
    ).encode()


def _printable(text: str) -> str:
    """XML 1.0 cannot say control characters, not even escaped."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
