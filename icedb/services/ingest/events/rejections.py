"""The exception that becomes an error response."""

from __future__ import annotations

__all__ = ["RequestRejected"]

#: Default error code by status.
_ERRORS = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_media_type",
    429: "slow_down",
    431: "headers_too_large",
    500: "internal_error",
    503: "unavailable",
}


class RequestRejected(Exception):
    """An error response instead of a commit.

    `message` is for people. `error` is the code for programs, if the status alone does not determine it.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        error: str | None = None,
        retry_after_seconds: int | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error = error or _ERRORS[status]
        self.message = message
        after = () if retry_after_seconds is None else (("retry-after", str(retry_after_seconds)),)
        self.headers = (*headers, *after)
