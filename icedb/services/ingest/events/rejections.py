"""How a client is told that nothing of its request was taken, or that it is not known."""

from __future__ import annotations

__all__ = ["RequestRejected"]

#: The name of the error for programs, by status.
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
    """An answer that is no 2xx: status, a name for programs, and a message for people.

    `error`: the name, where the status alone does not say it. `retry_after_seconds`: when it makes sense to send the
    same again. `headers`: what else the answer has.
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
