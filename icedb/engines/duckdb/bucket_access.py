"""Access of the caller's DuckDB connection to a table's bucket, with credentials that are renewed.

A transaction sees only secrets that were created before it began. A secret that is renewed while a statement is bound
is visible to the next statement. Therefore a thread checks every minute whether the provider has new keys. Providers
renew keys some minutes before the old ones expire.
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

__all__ = ["BucketSecret"]

# A small fraction of the time before expiry at which providers renew keys (`icedb.storage.credentials.RENEW_MS`).
LOOK_SECONDS = 60.0

_log = logging.getLogger(__name__)


class BucketSecret:
    """The secret of one table in one DuckDB instance, renewed until it or the connection is closed.

    It does not keep the connection alive. If the connection is gone but has cursors, the secret is not renewed any
    more.
    """

    def __init__(self, con: duckdb.DuckDBPyConnection, location: Location) -> None:
        """Create the secret. Raises StoreUnavailable without the S3 extension, AccessDenied, and DuckDB's errors."""
        if location.scheme == "s3" and location.explicit_credentials is None and location.provider is None:
            location = replace(location, provider=default_chain(location.uri))  # one provider, which tracks the expiry
        self._location = location
        self._con = weakref.ref(con)
        self._current: Credentials | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        if location.scheme != "s3":
            return
        self._current = location.credentials()
        with con.cursor() as cursor:  # not in the caller's transaction
            attach_s3(cursor, location)
        if location.provider is not None:
            threading.Thread(target=_keep_renewed, args=(weakref.ref(self), self._closed), daemon=True).start()

    def renew(self) -> bool:
        """Recreate the secret if the provider has other keys than before. Return False if the connection is gone.

        Raises AccessDenied.
        """
        if self._location.provider is None:
            return True
        con = self._con()
        with self._lock:
            credentials = self._location.credentials()
            if con is None or credentials == self._current:
                return con is not None
            try:
                with con.cursor() as cursor:
                    renew_access(cursor, self._location)
            except duckdb.ConnectionException:
                return False
            self._current = credentials
        return True

    def close(self, *, drop: bool) -> None:
        """Stop the renewal. `drop` removes the secret."""
        self._closed.set()
        con = self._con()
        if not drop or con is None or self._location.scheme != "s3":
            return
        with suppress(duckdb.ConnectionException), con.cursor() as cursor:  # a closed connection has no secrets
            of_scope = f"list_contains(scope, {quote_text(self._location.uri)}) AND starts_with(name, 'icedb_')"
            for (name,) in cursor.execute(f"SELECT name FROM duckdb_secrets() WHERE {of_scope}").fetchall():
                cursor.execute(f"DROP TEMPORARY SECRET IF EXISTS {quote_name(name)}")


def _keep_renewed(access: weakref.ref[BucketSecret], closed: threading.Event) -> None:
    """Renew the secret whenever the keys change, until it is closed."""
    while not closed.wait(LOOK_SECONDS):
        current = access()
        try:
            if current is None or not current.renew():
                return
        except (IceDBError, duckdb.Error) as error:  # the next check or query tries again
            _log.warning("the DuckDB secret for a table was not renewed: %s", error)
        del current
