"""Access of Polars to a table's bucket: options under Polars' names, and credentials that are current when a frame is
collected.
"""

from __future__ import annotations

from typing import Any

from icedb.storage.credentials import Provider, default_chain
from icedb.storage.location import Location
from icedb.util.clock import SystemClock

__all__ = ["access"]

# Polars requests the keys again after this time, because only the provider knows how long they are valid.
KEPT_S = 10


def access(location: Location) -> dict[str, Any]:
    """Return keyword arguments for Polars' `scan_parquet`.

    The options contain no keys, because Polars prints options in places. Raises AccessDenied if the configured source
    has no credentials.
    """
    if location.scheme != "s3":
        return {"credential_provider": None}
    options = {
        "aws_region": location.region or "us-east-1",
        "aws_virtual_hosted_style_request": str(location.virtual_hosted).lower(),
    }
    if location.endpoint:
        options["aws_endpoint_url"] = location.endpoint
        options["aws_allow_http"] = str(location.endpoint.startswith("http://")).lower()
    provider = _Credentials(location)
    if provider.is_anonymous():
        return {"storage_options": options | {"aws_skip_signature": "true"}, "credential_provider": None}
    return {"storage_options": options, "credential_provider": provider}


class _Credentials:
    """A credential provider that Polars calls repeatedly. Its pickle contains the credentials of that moment."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._fixed = location.explicit_credentials is not None
        self._provide: Provider = (
            location.credentials if self._fixed else location.provider or default_chain(location.uri)
        )

    def __reduce__(self) -> tuple[object, ...]:
        return _Credentials, (self._location,)

    def __repr__(self) -> str:
        return f"_Credentials({self._location.uri!r})"

    def is_anonymous(self) -> bool:
        """Whether requests are unsigned."""
        return self._provide() is None

    def __call__(self) -> tuple[dict[str, str | None], int | None]:
        """Return keys by Polars' names, and when Polars must call again (unix seconds). None: never."""
        credentials = self._provide()
        if credentials is None:
            return {}, None
        keys: dict[str, str | None] = {
            "aws_access_key_id": credentials.access_key_id,
            "aws_secret_access_key": credentials.secret_access_key,
        }
        if credentials.session_token:
            keys["aws_session_token"] = credentials.session_token
        return keys, None if self._fixed else SystemClock().now_ms() // 1000 + KEPT_S
