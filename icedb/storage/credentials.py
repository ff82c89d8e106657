"""Credentials for S3, which may change while a table is open.

Credentials of a role are valid for about an hour, but a table object may live for weeks. So a table in S3 accepts a
credential provider instead of a key: a boto3 Session, or a function as in obstore. It is called before each request to
the store and for each connection of DuckDB. It returns cached credentials until they have to be renewed.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from icedb.errors import AccessDenied, InvalidOption
from icedb.util.clock import SystemClock

__all__ = ["CredentialProvider", "Credentials", "Provider", "as_provider", "default_chain", "default_region"]

# Credentials that expire sooner than this are renewed: the request may take some time, and clocks may differ.
RENEW_MS = 5 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Credentials:
    """An S3 key pair. The repr shows no secret."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


class Session(Protocol):
    """The part of a boto3 Session that is used."""

    def get_credentials(self) -> Any:
        """Return credentials that renew themselves, or None."""
        ...


#: A boto3 Session, or a function. The function returns the keys `access_key_id`, `secret_access_key` and optionally
#: `token` (or `session_token`) and `expires_at` (an aware datetime, shortly before which it is called again), or None
#: for unsigned requests.
CredentialProvider = Session | Callable[[], Mapping[str, Any] | None]
#: Returns the current credentials; None for unsigned requests.
Provider = Callable[[], Credentials | None]


def as_provider(provider: CredentialProvider, *, table: str) -> Provider:
    """Wrap a Session or a function. Raises InvalidOption for anything else."""
    if hasattr(provider, "get_credentials"):
        return _SessionProvider(provider, table)
    if callable(provider):
        return _FunctionProvider(provider, table)
    raise InvalidOption(
        f"{table}: credential_provider is a {type(provider).__name__}; give a boto3 Session, or a function that "
        "returns a dict with access_key_id, secret_access_key, token and expires_at."
    )


def default_chain(table: str) -> Provider:
    """Return boto3's default chain: profiles, SSO, the roles of instances and containers. Raises AccessDenied."""
    return _SessionProvider(_default_session(table), table)


def default_region(table: str) -> str | None:
    """Return the region of the current AWS profile, or None. Raises AccessDenied if the profile does not exist."""
    region: str | None = _default_session(table).region_name
    return region


def _default_session(table: str) -> Any:
    import boto3  # takes half a second, which tables with explicit credentials do not need
    from botocore.exceptions import BotoCoreError

    try:
        return boto3.Session()
    except BotoCoreError as error:
        raise _no_credentials(table, error) from None


class _SessionProvider:
    """The credentials of a boto3 Session, which caches and renews them itself."""

    def __init__(self, session: Session, table: str) -> None:
        self._session, self._table = session, table

    def __call__(self) -> Credentials | None:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            credentials = self._session.get_credentials()
            frozen = None if credentials is None else credentials.get_frozen_credentials()
        except (BotoCoreError, ClientError) as error:
            raise _no_credentials(self._table, error) from None
        if frozen is None or frozen.access_key is None or frozen.secret_key is None:
            return None
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token)


class _FunctionProvider:
    """The credentials of a function, which is called again shortly before they expire, or each time without expiry.

    If the function fails, the earlier credentials are used while they are valid. The next request calls it again.
    """

    def __init__(self, function: Callable[[], Mapping[str, Any] | None], table: str) -> None:
        self._function, self._table = function, table
        self._lock = threading.Lock()
        self._cached: Credentials | None = None
        self._expires_ms = 0.0

    def __call__(self) -> Credentials | None:
        with self._lock:
            if self._expires_ms - RENEW_MS <= SystemClock().now_ms():
                try:
                    self._cached, self._expires_ms = self._call()
                except AccessDenied:
                    if self._expires_ms <= SystemClock().now_ms():
                        raise
            return self._cached

    def _call(self) -> tuple[Credentials | None, float]:
        try:
            values = self._function()
        except Exception as error:  # noqa: BLE001  the caller's function may raise anything
            raise _no_credentials(self._table, error) from None
        return (None, math.inf) if values is None else _parse(values, self._table)


def _parse(values: Mapping[str, Any], table: str) -> tuple[Credentials, float]:
    """Parse the result of a function, and its expiry (0: unknown). Raises AccessDenied, which quotes no value."""
    result = f"{table}: the credential_provider gave"
    if not isinstance(values, Mapping):
        raise AccessDenied(f"{result} a {type(values).__name__}; give a dict, or None for unsigned requests.")
    for name in ("access_key_id", "secret_access_key"):
        if not values.get(name) or not isinstance(values[name], str):
            raise AccessDenied(
                f"{result} no {name}. Give a dict with access_key_id and secret_access_key as text, or None "
                "instead of the dict for unsigned requests."
            )
    expires_at = values.get("expires_at")
    if expires_at is not None and (not isinstance(expires_at, datetime) or expires_at.utcoffset() is None):
        kind = "datetime without a timezone" if isinstance(expires_at, datetime) else type(expires_at).__name__
        raise AccessDenied(f"{result} an expires_at that is a {kind}. Give a datetime in UTC, or leave it out.")
    token = values.get("token") or values.get("session_token") or None
    credentials = Credentials(values["access_key_id"], values["secret_access_key"], token)
    return credentials, 0.0 if expires_at is None else expires_at.timestamp() * 1000


def _no_credentials(table: str, error: Exception) -> AccessDenied:
    """Describe an error by its type only, because its text may quote what was sent."""
    if type(error).__name__ == "ProfileNotFound":  # quotes only the profile's name
        return AccessDenied(
            f"{table}: there are no credentials: {str(error).rstrip('.')}. Correct AWS_PROFILE, or "
            "add the profile to ~/.aws."
        )
    return AccessDenied(
        f"{table}: there are no credentials ({type(error).__name__}). Check the session, profile or role that "
        "should give them: it may need a new login."
    )
