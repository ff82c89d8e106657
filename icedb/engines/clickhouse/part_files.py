"""Parts as what ClickHouse opens: its functions `file` and `s3`, with exactly these files.

A list of files is a pattern to ClickHouse, and a pattern that finds too little is no error. So either each file is got
by its name, or those that are there are counted.

Keys for S3 are given to a session as a named collection, so that they are in the text of no query and no view.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from urllib.parse import quote

from icedb.engines.clickhouse.types import quote_text
from icedb.errors import AccessDenied, InvalidOption
from icedb.storage.location import Location
from icedb.transaction.table_handle import Handle, Part

__all__ = ["LOST", "Session", "rows_of"]

#: What a query over files says, in ClickHouse's error, when one is not there.
LOST = "parts of this snapshot are gone: take a new snapshot, and attach it again"

# What ClickHouse takes for a pattern, between and outside of the braces in which the parts are listed.
_PATTERN = re.compile(r"[{}*?,\[\]\\\n\r]")
_OUTSIDE = re.compile(r"[{}*?\[\]\\\n\r]")


class Session(Protocol):
    """A `chdb.session.Session`, or what else has its `query`."""

    def query(self, sql: str, fmt: str = ..., /) -> Any:
        """Run a statement; its answer is in that format of ClickHouse's."""
        ...


def rows_of(handle: Handle, parts: Sequence[Part], structure: str, session: Session | None) -> list[str]:
    """What stands after FROM for the rows of these parts, of which there are some; together they are all.

    `structure` is ClickHouse's text for the columns and types to read. `session` is given the keys for S3.
    Raises InvalidOption when it is needed and there is none.
    """
    if handle.location.scheme != "s3":
        return [_in_files(handle, parts, structure)]
    if session is None:
        raise InvalidOption(
            f"{handle.table}: ClickHouse needs keys to read S3. Give session=, the chdb.session.Session that will "
            "run the query."
        )
    return _in_s3(handle, parts, structure, _named_collection(session, handle.location))


def _in_files(handle: Handle, parts: Sequence[Part], structure: str) -> str:
    copied = handle.location.scheme != "file"
    paths = handle.readable_paths(parts) if copied else handle.own_paths(parts)
    pattern = quote_text(_pattern(paths, _any_character))
    rows = f"file({pattern}, 'Parquet', {quote_text(structure)}, 'none')"
    return f"{rows} WHERE {_all_there(f'file({pattern}, One)', len(paths))}"


def _in_s3(handle: Handle, parts: Sequence[Part], structure: str, collection: str) -> list[str]:
    """Listed keys are got one by one, and one that is missing is an error. A key that looks like a pattern is one."""
    location, prefix = handle.location, handle.keys.data_prefix
    listed: list[str] = []
    odd: list[str] = []
    for part in parts:
        is_odd = _OUTSIDE.search(prefix) or _PATTERN.search(part.key.removeprefix(prefix))
        (odd if is_odd else listed).append(part.key)
    format_ = f"format = 'Parquet', structure = {quote_text(structure)}, compression_method = 'none'"
    found = []
    if listed:
        url = quote_text(_url(location, _pattern(listed, str)))
        found.append(f"s3({collection}, url = {url}, {format_})")
    for key in odd:
        url = quote_text(_url(location, _any_character(key)))
        there = _all_there(f"s3({collection}, url = {url}, format = 'One')", 1)
        found.append(f"s3({collection}, url = {url}, {format_}) WHERE {there}")
    return found


def _all_there(files: str, count: int) -> str:
    """A condition that fails unless so many files are there: `files` gives a row for each, without reading it."""
    return f"(SELECT throwIf(count() != {count}, {quote_text(LOST)}) FROM {files}) = 0"


def _any_character(path: str) -> str:
    """ClickHouse has no way to write these as they are, but one to say: any character."""
    return _OUTSIDE.sub("?", path)


def _pattern(paths: Sequence[str], escape: Callable[[str], str]) -> str:
    """These paths in one pattern; of braces, what they begin with must be outside."""
    if len(paths) == 1:
        return escape(paths[0])
    shared = _shared_folder(paths)
    listed = ",".join(_PATTERN.sub("?", path.removeprefix(shared)) for path in paths)
    return f"{escape(shared)}{{{listed}}}"


def _shared_folder(paths: Sequence[str]) -> str:
    first, last = min(paths), max(paths)  # what these two share, all do
    same = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[: first.rfind("/", 0, same) + 1]


def _url(location: Location, pattern: str) -> str:
    """ClickHouse decodes the address before it looks for keys and patterns in it."""
    encoded = quote(pattern, safe="/={},")
    scheme, _, host = (location.endpoint or "").partition("://")
    if not host:
        return f"https://s3.{location.region or 'us-east-1'}.amazonaws.com/{location.root}/{encoded}"
    if location.virtual_hosted:
        return f"{scheme}://{location.root}.{host}/{encoded}"
    return f"{scheme}://{host}/{location.root}/{encoded}"


def _named_collection(session: Session, location: Location) -> str:
    """The name under which ClickHouse knows how to get into the table's store, with the credentials of now.

    Views that use it already have these, too. Raises AccessDenied.
    """
    digest = hashlib.sha256(f"{location.endpoint}\n{location.uri}".encode()).hexdigest()[:16]
    name = f"icedb_{digest}"
    credentials = location.credentials()
    values = {
        "access_key_id": quote_text(credentials.access_key_id if credentials else ""),
        "secret_access_key": quote_text(credentials.secret_access_key if credentials else ""),
        "session_token": quote_text((credentials.session_token if credentials else None) or ""),
        "no_sign_request": "0" if credentials else "1",
    }
    said = ", ".join(f"{key} = {value}" for key, value in values.items())
    try:
        session.query(f"CREATE NAMED COLLECTION IF NOT EXISTS {name} AS {said}")
        session.query(f"ALTER NAMED COLLECTION {name} SET {said}")
    except RuntimeError as error:
        code = str(error).partition("DB::Exception")[0].strip()  # the rest may quote the statement
        raise AccessDenied(
            f"{location.uri}: ClickHouse did not take the keys for S3 as a named collection ({code[:40]}). Let the "
            "session create and alter named collections."
        ) from None
    return name
