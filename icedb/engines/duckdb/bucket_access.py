"""How somebody's DuckDB connection gets into a table's bucket, now and hours later.

A secret of DuckDB is seen by transactions that begin after it was made. A statement that is being bound has begun, so
what is renewed then is for the next one. Therefore a thread looks every minute whether the provider has new keys: it
has them some minutes before the old ones end.
"""

from __future__ import annotations

import logging
import threading
import weakref
from contextlib import suppress
from dataclasses import replace

import duckdb

from icedb.errors import IceDBError
from icedb.sql.connections import attach_s3, quote_name, quote_text, renew_access
from icedb.storage.credentials import Credentials, default_chain
from icedb.storage.location import Location

__all__ = ["Access"]

# A small part of the time before their end at which providers renew keys (`icedb.storage.credentials.RENEW_MS`).
LOOK_SECONDS = 60.0

_log = logging.getLogger(__name__)


class Access:
    """The secret of one table in one DuckDB instance, kept fresh until it is closed or the connection is.

    It does not keep the connection alive: when that is gone, though it has cursors, the secret stays as it is.
    """

    def __init__(self, con: duckdb.DuckDBPyConnection, location: Location) -> None:
        """Raises StoreUnavailable when DuckDB has no S3 extension, AccessDenied, and DuckDB's errors."""
        if location.scheme == "s3" and location.explicit_credentials is None and location.provider is None:
            location = replace(location, provider=default_chain(location.uri))  # one for all times: it knows their end
        self._location = location
        self._con = weakref.ref(con)
        self._known: Credentials | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        if location.scheme != "s3":
            return
        self._known = location.credentials()
        with con.cursor() as cursor:  # not in the caller's transaction
            attach_s3(cursor, location)
        if location.provider is not None:
            threading.Thread(target=_look_on, args=(weakref.ref(self), self._closed), daemon=True).start()

    def renew(self) -> bool:
        """Make the secret anew if the provider has other keys than before. False: the connection is gone.

        Raises AccessDenied.
        """
        if self._location.provider is None:
            return True
        con = self._con()
        with self._lock:
            found = self._location.credentials()
            if con is None or found == self._known:
                return con is not None
            try:
                with con.cursor() as cursor:
                    renew_access(cursor, self._location)
            except duckdb.ConnectionException:
                return False
            self._known = found
        return True

    def close(self, *, drop: bool) -> None:
        """Renew it no more. `drop` removes the secret."""
        self._closed.set()
        con = self._con()
        if not drop or con is None or self._location.scheme != "s3":
            return
        with suppress(duckdb.ConnectionException), con.cursor() as cursor:  # closed: nothing is left of it
            of_scope = f"list_contains(scope, {quote_text(self._location.uri)}) AND starts_with(name, 'icedb_')"
            for (name,) in cursor.execute(f"SELECT name FROM duckdb_secrets() WHERE {of_scope}").fetchall():
                cursor.execute(f"DROP TEMPORARY SECRET IF EXISTS {quote_name(name)}")


def _look_on(access: weakref.ref[Access], closed: threading.Event) -> None:
    """Renew the secret whenever there is something new, until it is closed."""
    while not closed.wait(LOOK_SECONDS):
        current = access()
        try:
            if current is None or not current.renew():
                return
        except (IceDBError, duckdb.Error) as error:  # the next look, or query, tries again
            _log.warning("a secret was not renewed: %s", error)
        del current
