"""Postgres addresses, and the few questions the stack asks a server.

An address with its password goes to the environment of Dagster's processes and nowhere else; whatever is logged,
shown or raised is passed through `redacted` or `without_password` first. Errors of the driver are rephrased, not
chained, for the same reason.
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

# SQLAlchemy 2.1 understands a bare `postgresql://` as psycopg 3; Dagster brings psycopg2.
DRIVER = "postgresql+psycopg2"
CONNECT_TIMEOUT_S = 5


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says of itself, and how long one question and its answer take."""

    version: str
    latency_ms: float


def dagster_url(url: str) -> str:
    """A Postgres address, as the user wrote it, in the form Dagster needs."""
    parsed = _parse(url)
    if parsed.get_backend_name() not in {"postgresql", "postgres"}:
        raise StackError(
            f"{redacted(url)} is not the address of a Postgres: use postgresql://user:password@host/database"
        )
    return parsed.set(drivername=DRIVER).render_as_string(hide_password=False)


def local_url(*, port: int, password: str, database: str) -> str:
    """The address of a database in the embedded server."""
    return f"{DRIVER}://postgres:{password}@127.0.0.1:{port}/{database}"


def redacted(url: str) -> str:
    """The address as it may be shown."""
    parsed = _parse(url)
    # libpq also takes the password as a parameter of the query.
    query = {key: "***" if "password" in key else value for key, value in parsed.query.items()}
    return parsed.set(drivername="postgresql", query=query).render_as_string(hide_password=True)


def without_password(text: str, *, url: str) -> str:
    """A text of somebody else's making, such as a log, without this address' password."""
    parsed = _parse(url)
    of_query = (value for key, value in parsed.query.items() if "password" in key)
    for secret in filter(None, [parsed.password, *of_query]):
        plain = str(secret)
        # A log may quote the address itself, in which the password is encoded.
        for written in (plain, quote(plain, safe=""), quote(plain), quote_plus(plain)):
            text = text.replace(written, "***")
    return text


def try_connection(url: str) -> str | None:
    """Connect once. None when that worked, otherwise what the server or the network said."""
    answer = query_server_info(url)
    return answer if isinstance(answer, str) else None


def query_server_info(url: str) -> ServerInfo | str:
    """Connect once and ask. What the server or the network said, when that did not work."""
    from sqlalchemy import create_engine, text
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    engine = create_engine(url, poolclass=NullPool, connect_args={"connect_timeout": CONNECT_TIMEOUT_S})
    try:
        with engine.connect() as connection:
            version = str(connection.execute(text("SHOW server_version")).scalar_one())
            began = time.monotonic()
            connection.execute(text("SELECT 1"))
            return ServerInfo(version=version, latency_ms=(time.monotonic() - began) * 1000)
    except (SQLAlchemyError, UnicodeError) as error:
        reason = str(getattr(error, "orig", None) or error)
        return " ".join(without_password(reason, url=url).split())


def check_connection(url: str, *, named: str) -> None:
    """Raise a StackError unless the server answers."""
    problem = try_connection(url)
    if problem is not None:
        raise StackError(f"no connection to the Postgres of {named}, {redacted(url)}: {problem}")


def ensure_database(url: str, *, name: str) -> None:
    """Create a database on the server of `url`, unless it has it."""
    from sqlalchemy import create_engine, text
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            found = connection.execute(text("SELECT 1 FROM pg_database WHERE datname = :name"), {"name": name}).first()
            if found is None:
                connection.execute(text(f'CREATE DATABASE "{name}"'))
    except SQLAlchemyError as error:
        reason = " ".join(without_password(str(error), url=url).split())
        raise StackError(f"no database {name} on {redacted(url)}: {reason}") from None


def _parse(url: str) -> "URL":
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url)
    except (ArgumentError, ValueError):  # a port that is no number is a ValueError
        raise StackError(
            "the Postgres address cannot be read: it has to look like postgresql://user:password@host:5432/database, "
            "with special characters of the password percent-encoded"
        ) from None
