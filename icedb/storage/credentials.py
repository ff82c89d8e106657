"""Who asks the store, also when that changes while a table is open.

A role's credentials are valid for an hour, a table object may live for weeks. So a table in S3 can be given a provider
instead of a key: a boto3 Session, or a function, the convention of obstore. It is asked before each request to the
store and for each connection of DuckDB, and answers from what it has until that is to be renewed.
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

__all__ = ["CredentialProvider", "Credentials", "Provider", "as_provider", "usual_chain", "usual_region"]

# What is valid for less than this is renewed: the request that it is for may take a while, and so may a clock's error.
RENEW_MS = 5 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Credentials:
    """An S3 key pair. Its repr says who, never the secret."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


class Session(Protocol):
    """A boto3 Session: what is used of it."""

    def get_credentials(self) -> Any:
        """Credentials that renew themselves, or None."""
        ...


#: What a caller may give: a boto3 Session, or a function that gives the keys `access_key_id`, `secret_access_key` and,
#: where there are any, `token` (or `session_token`) and `expires_at` (an aware datetime: shortly before it is asked
#: again), or None for requests without a signature.
CredentialProvider = Session | Callable[[], Mapping[str, Any] | None]
#: What a location has: None stands for requests without a signature.
Provider = Callable[[], Credentials | None]


def as_provider(given: CredentialProvider, *, table: str) -> Provider:
    """Raises InvalidOption for what is neither a Session nor a function."""
    if hasattr(given, "get_credentials"):
        return _OfSession(given, table)
    if callable(given):
        return _OfFunction(given, table)
    raise InvalidOption(
        f"{table}: credential_provider is a {type(given).__name__}; give a boto3 Session, or a function that returns "
        "a dict with access_key_id, secret_access_key, token and expires_at."
    )


def usual_chain(table: str) -> Provider:
    """What boto3 finds on this machine: profiles, SSO, the roles of instances and containers. Raises AccessDenied."""
    return _OfSession(_usual_session(table), table)


def usual_region(table: str) -> str | None:
    """The region of this machine's profile, if it has one. Raises AccessDenied when there is no such profile."""
    region: str | None = _usual_session(table).region_name
    return region


def _usual_session(table: str) -> Any:
    import boto3  # half a second that tables with given credentials need not spend
    from botocore.exceptions import BotoCoreError

    try:
        return boto3.Session()
    except BotoCoreError as error:
        raise _refused(table, error) from None


class _OfSession:
    """boto3 renews what is about to expire, and tells the same until then."""

    def __init__(self, session: Session, table: str) -> None:
        self._session, self._table = session, table

    def __call__(self) -> Credentials | None:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            found = self._session.get_credentials()
            frozen = None if found is None else found.get_frozen_credentials()
        except (BotoCoreError, ClientError) as error:
            raise _refused(self._table, error) from None
        if frozen is None or frozen.access_key is None or frozen.secret_key is None:
            return None
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token)


class _OfFunction:
    """A function is asked again shortly before that what it gave expires; each time, if it does not say when.

    If it fails then, what it gave before is used while it is valid, and the next request asks again.
    """

    def __init__(self, function: Callable[[], Mapping[str, Any] | None], table: str) -> None:
        self._function, self._table = function, table
        self._lock = threading.Lock()
        self._kept: Credentials | None = None
        self._expires_ms = 0.0

    def __call__(self) -> Credentials | None:
        with self._lock:
            if self._expires_ms - RENEW_MS <= SystemClock().now_ms():
                try:
                    self._kept, self._expires_ms = self._ask()
                except AccessDenied:
                    if self._expires_ms <= SystemClock().now_ms():
                        raise
            return self._kept

    def _ask(self) -> tuple[Credentials | None, float]:
        try:
            given = self._function()
        except Exception as error:  # noqa: BLE001  the caller's own: whatever it raises, there are no credentials
            raise _refused(self._table, error) from None
        return (None, math.inf) if given is None else _read(given, self._table)


def _read(given: Mapping[str, Any], table: str) -> tuple[Credentials, float]:
    """What a function gave, and when it expires (unix milliseconds; 0: it does not say). Raises AccessDenied.

    No value is quoted: any may be a secret.
    """
    answer = f"{table}: the credential_provider gave"
    if not isinstance(given, Mapping):
        raise AccessDenied(f"{answer} a {type(given).__name__}; give a dict, or None for requests without a signature.")
    for name in ("access_key_id", "secret_access_key"):
        if not given.get(name) or not isinstance(given[name], str):
            raise AccessDenied(
                f"{answer} no {name}. Give a dict with access_key_id and secret_access_key as text, or None in its "
                "place for requests without a signature."
            )
    expires_at = given.get("expires_at")
    if expires_at is not None and (not isinstance(expires_at, datetime) or expires_at.utcoffset() is None):
        found = "datetime without a timezone" if isinstance(expires_at, datetime) else type(expires_at).__name__
        raise AccessDenied(f"{answer} an expires_at that is a {found}. Give a datetime in UTC, or leave it out.")
    token = given.get("token") or given.get("session_token") or None
    credentials = Credentials(given["access_key_id"], given["secret_access_key"], token)
    return credentials, 0.0 if expires_at is None else expires_at.timestamp() * 1000


def _refused(table: str, error: Exception) -> AccessDenied:
    """Says no more than the kind of the error: its text is not ours, and may quote what was sent."""
    if type(error).__name__ == "ProfileNotFound":  # which quotes the profile's name alone
        return AccessDenied(
            f"{table}: there are no credentials: {str(error).rstrip('.')}. Correct AWS_PROFILE, or "
            "add the profile to ~/.aws."
        )
    return AccessDenied(
        f"{table}: there are no credentials ({type(error).__name__}). Check the session, profile or role that "
        "should give them: it may need a new login."
    )
