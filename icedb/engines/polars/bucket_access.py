"""How Polars gets into a table's bucket: its names for our options, and keys for when a frame is collected."""

from __future__ import annotations

from typing import Any

from icedb.storage.credentials import Provider, default_chain
from icedb.storage.location import Location
from icedb.util.clock import SystemClock

__all__ = ["access"]

# Whoever gives keys knows how long they are good for, and is asked again after this.
KEPT_S = 10


def access(location: Location) -> dict[str, Any]:
    """Arguments of Polars' `scan_parquet`. Keys are not among the options, which are shown here and there.

    Raises AccessDenied when there are no credentials where they should come from.
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
    """Asked by Polars for the keys of now, again and again. Pickled, it has those of that moment, as a location has."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._fixed = location.explicit_credentials is not None
        self._ask: Provider = location.credentials if self._fixed else location.provider or default_chain(location.uri)

    def __reduce__(self) -> tuple[object, ...]:
        return _Credentials, (self._location,)

    def __repr__(self) -> str:
        return f"_Credentials({self._location.uri!r})"

    def is_anonymous(self) -> bool:
        """Whether requests go without a signature."""
        return self._ask() is None

    def __call__(self) -> tuple[dict[str, str | None], int | None]:
        """Keys by Polars' names, and until when (unix seconds) it need not ask again; None: for ever."""
        found = self._ask()
        if found is None:
            return {}, None
        keys: dict[str, str | None] = {
            "aws_access_key_id": found.access_key_id,
            "aws_secret_access_key": found.secret_access_key,
        }
        if found.session_token:
            keys["aws_session_token"] = found.session_token
        return keys, None if self._fixed else SystemClock().now_ms() // 1000 + KEPT_S
