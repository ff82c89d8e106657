"""A request as it came over the wire, before anything of it is believed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from urllib.parse import unquote_to_bytes

from icedb.services.http.server_settings import HEAD_BYTES_MAX
from icedb.services.proxy.s3.s3_errors import S3Error

__all__ = ["S3Request"]

#: Clients send some twenty headers and a dozen parameters. Each that is more costs work before it is known who asks.
_HEADERS_MAX = 100
_PARAMETERS_MAX = 100


@dataclass(frozen=True)
class S3Request:
    """Method, address and headers, still encoded as they were sent."""

    method: str
    #: Percent-encoded; from the first slash to before the question mark.
    path: str
    #: Percent-encoded; what follows the question mark, or nothing.
    query: str
    #: Names in lower case, in the order of the request; a name may come more than once.
    headers: tuple[tuple[str, str], ...]

    def check_size(self) -> None:
        """Raises S3Error (RequestHeaderSectionTooLarge, InvalidArgument) when there is more than anybody needs."""
        head_bytes = len(self.path) + len(self.query) + sum(len(n) + len(v) for n, v in self.headers)
        if head_bytes > HEAD_BYTES_MAX or len(self.headers) > _HEADERS_MAX:
            raise S3Error("RequestHeaderSectionTooLarge")
        if self.query.count("&") >= _PARAMETERS_MAX:
            raise S3Error("InvalidArgument", f"A request has at most {_PARAMETERS_MAX} parameters.")

    def header(self, name: str) -> str | None:
        """The value of a header that may come once. Raises S3Error (InvalidRequest) when it came more often."""
        values = [v for n, v in self.headers if n == name]
        if len(values) > 1:
            raise S3Error("InvalidRequest", f"The header {name} came more than once.")
        return values[0] if values else None

    @cached_property
    def decoded_path(self) -> str:
        """The path as text. Raises S3Error (InvalidURI) when it is no UTF-8."""
        return _decoded(self.path)

    @cached_property
    def parameters(self) -> tuple[tuple[str, str], ...]:
        """The query's names and values, decoded, in its order. Raises S3Error (InvalidURI) when they are no UTF-8."""
        pairs = (piece.partition("=") for piece in self.query.split("&") if piece)
        return tuple((_decoded(n.replace("+", " ")), _decoded(v.replace("+", " "))) for n, _, v in pairs)

    def parameter(self, name: str) -> str | None:
        """The value of a parameter that may come once. Raises S3Error (InvalidArgument) when it came more often."""
        values = [v for n, v in self.parameters if n == name]
        if len(values) > 1:
            raise S3Error("InvalidArgument", f"The parameter {name} came more than once.")
        return values[0] if values else None


def _decoded(text: str) -> str:
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise S3Error("InvalidURI") from None
