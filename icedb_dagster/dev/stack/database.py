"""Postgres addresses, and the queries that the stack sends to a server.

An address with its password goes into the environment of Dagster's processes, and nowhere else. Text that is logged,
shown or raised passes through `redacted` or `without_password` first. For the same reason, driver errors are rephrased,
not chained.
"""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

from icedb.errors import StackError

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

__all__ = [
    "ServerInfo",
    "query_server_info",
    "check_connection",
    "dagster_url",
    "ensure_database",
    "local_url",
    "redacted",
    "try_connection",
    "without_password",
]

# SQLAlchemy 2.1 uses psycopg 3 for a bare `postgresql://`, but Dagster installs psycopg2.
DRIVER = "postgresql+psycopg2"
CONNECT_TIMEOUT_S = 5


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A server's version, the latency of one query, and the data folder on its machine; None if that is not visible."""

    version: str
    latency_ms: float
    data_folder: str | None = None


def dagster_url(url: str) -> str:
    """Return a user's Postgres address in the form that Dagster needs."""
    parsed = _parse(url)
    if parsed.get_backend_name() not in {"postgresql", "postgres"}:
        raise StackError(f"{redacted(url)} is not a Postgres address. Use postgresql://user:password@host/database")
    return parsed.set(drivername=DRIVER).render_as_string(hide_password=False)


def local_url(*, port: int, password: str, database: str) -> str:
    """Return the address of a database in the embedded server."""
    return f"{DRIVER}://postgres:{password}@127.0.0.1:{port}/{database}"


def redacted(url: str) -> str:
    """Return the address without its password, for display."""
    parsed = _parse(url)
    # libpq also accepts the password as a query parameter.
    query = {key: "***" if "password" in key else value for key, value in parsed.query.items()}
    return parsed.set(drivername="postgresql", query=query).render_as_string(hide_password=True)


def without_password(text: str, *, url: str) -> str:
    """Return a foreign text, such as a log, without this address's password."""
    parsed = _parse(url)
    of_query = (value for key, value in parsed.query.items() if "password" in key)
    for secret in filter(None, [parsed.password, *of_query]):
        plain = str(secret)
        # A log may quote the address, in which the password is percent-encoded.
        for written in (plain, quote(plain, safe=""), quote(plain), quote_plus(plain)):
            text = text.replace(written, "***")
    return text


def try_connection(url: str) -> str | None:
    """Connect once. Return None on success, else the error of the server or the network."""
    info = query_server_info(url)
    return info if isinstance(info, str) else None


def query_server_info(url: str) -> ServerInfo | str:
    """Connect once and query. Return the error of the server or the network if that fails."""
    from sqlalchemy import create_engine, text
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    engine = create_engine(url, poolclass=NullPool, connect_args={"connect_timeout": CONNECT_TIMEOUT_S})
    try:
        with engine.connect() as connection:
            version = str(connection.execute(text("SHOW server_version")).scalar_one())
            began = time.monotonic()
            connection.execute(text("SELECT 1"))
            latency_ms = (time.monotonic() - began) * 1000
            folder = connection.execute(text("SELECT setting FROM pg_settings WHERE name = 'data_directory'")).scalar()
            return ServerInfo(version, latency_ms, folder)
    except (SQLAlchemyError, UnicodeError) as error:
        reason = str(getattr(error, "orig", None) or error)
        return " ".join(without_password(reason, url=url).split())


def check_connection(url: str, *, named: str) -> None:
    """Raise a StackError unless the server answers."""
    problem = try_connection(url)
    if problem is not None:
        raise StackError(f"no connection to the Postgres of {named}, {redacted(url)}: {problem}")


def ensure_database(url: str, *, name: str) -> None:
    """Create a database on the server of `url`, unless it exists."""
    from sqlalchemy import create_engine, text
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            row = connection.execute(text("SELECT 1 FROM pg_database WHERE datname = :name"), {"name": name}).first()
            if row is None:
                connection.execute(text(f'CREATE DATABASE "{name}"'))
    except SQLAlchemyError as error:
        reason = " ".join(without_password(str(error), url=url).split())
        raise StackError(f"the database {name} could not be created on {redacted(url)}: {reason}") from None


def _parse(url: str) -> "URL":
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url)
    except (ArgumentError, ValueError):  # a non-numeric port is a ValueError
        raise StackError(
            "the Postgres address cannot be parsed. Use postgresql://user:password@host:5432/database, "
            "with special characters of the password percent-encoded"
        ) from None
