"""An S3 request as it was received, before authentication."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from urllib.parse import unquote_to_bytes

from icedb.services.http.server_settings import HEAD_BYTES_MAX
from icedb.services.proxy.s3.s3_errors import S3Error

__all__ = ["S3Request"]

#: Clients send some twenty headers and a dozen parameters. The limits bound the work before authentication.
_HEADERS_MAX = 100
_PARAMETERS_MAX = 100


@dataclass(frozen=True)
class S3Request:
    """Method, address and headers, encoded as they were sent."""

    method: str
    #: Percent-encoded, from the first slash to before the question mark.
    path: str
    #: Percent-encoded text after the question mark, or an empty string.
    query: str
    #: Headers in the order of the request, with names in lower case, which may repeat.
    headers: tuple[tuple[str, str], ...]

    def check_size(self) -> None:
        """Raise S3Error (RequestHeaderSectionTooLarge, InvalidArgument) if the head exceeds a limit."""
        head_bytes = len(self.path) + len(self.query) + sum(len(n) + len(v) for n, v in self.headers)
        if head_bytes > HEAD_BYTES_MAX or len(self.headers) > _HEADERS_MAX:
            raise S3Error("RequestHeaderSectionTooLarge")
        if self.query.count("&") >= _PARAMETERS_MAX:
            raise S3Error("InvalidArgument", f"A request has at most {_PARAMETERS_MAX} parameters.")

    def header(self, name: str) -> str | None:
        """Return the value of a header, or None. Raises S3Error (InvalidRequest) if it repeats."""
        values = [v for n, v in self.headers if n == name]
        if len(values) > 1:
            raise S3Error("InvalidRequest", f"The header {name} occurs more than once.")
        return values[0] if values else None

    @cached_property
    def decoded_path(self) -> str:
        """The path as text. Raises S3Error (InvalidURI) if it is not UTF-8."""
        return _decoded(self.path)

    @cached_property
    def parameters(self) -> tuple[tuple[str, str], ...]:
        """The decoded names and values of the query, in order. Raises S3Error (InvalidURI) if they are not UTF-8."""
        pairs = (piece.partition("=") for piece in self.query.split("&") if piece)
        return tuple((_decoded(n.replace("+", " ")), _decoded(v.replace("+", " "))) for n, _, v in pairs)

    def parameter(self, name: str) -> str | None:
        """Return the value of a parameter, or None. Raises S3Error (InvalidArgument) if it repeats."""
        values = [v for n, v in self.parameters if n == name]
        if len(values) > 1:
            raise S3Error("InvalidArgument", f"The parameter {name} occurs more than once.")
        return values[0] if values else None


def _decoded(text: str) -> str:
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise S3Error("InvalidURI") from None
