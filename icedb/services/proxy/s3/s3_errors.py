"""The error codes of S3, and the XML documents of error responses.

An `S3Error` reveals nothing behind the proxy: no bucket, key, address or credential of the store, and no message of
another error. The actual error goes to the log.
"""

from __future__ import annotations

from xml.sax.saxutils import escape

from icedb.errors import IceDBError

__all__ = ["S3Error", "error_document"]

#: Code -> HTTP status and default message. Source: "Error responses" of S3's API reference.
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
    "NotImplemented": (501, "The requested feature is not implemented here."),
    "PreconditionFailed": (412, "At least one of the preconditions that you specified did not hold."),
    "RequestHeaderSectionTooLarge": (400, "The request's headers are larger than this endpoint takes."),
    "RequestTimeout": (400, "The body of the request did not arrive in time."),
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
    """An error response of S3. Not part of the public error tree: only clients of the proxy get it."""

    def __init__(self, code: str, message: str = "", *, headers: tuple[tuple[str, str], ...] = ()) -> None:
        status, default = _CODES[code]
        super().__init__(message or default)
        self.code = code
        self.status = status
        self.message = message or default
        #: Further headers of the response, with Retry-After if a retry may succeed.
        self.headers = (*headers, ("Retry-After", "1")) if status == 503 else headers


def error_document(error: S3Error, *, resource: str, request_id: str) -> bytes:
    """Return the body of an error response. `resource` is the path of the request."""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{error.code}</Code><Message>{escape(error.message)}</Message>"
        f"<Resource>{escape(_printable(resource))}</Resource><RequestId>{request_id}</RequestId></Error>"
    ).encode()


def _printable(text: str) -> str:
    """Replace control characters, which XML 1.0 does not allow even if they are escaped."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
