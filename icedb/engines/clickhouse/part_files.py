"""ClickHouse's table functions `file` and `s3` over exactly the live parts.

ClickHouse treats a list of files as a pattern, and a pattern that matches too few files is no error. So either each
file is fetched by its name, or the query counts the files.

A session receives the keys for S3 as a named collection, so that no query or view contains them.
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
from icedb.storage.parts import Part
from icedb.transaction.table_handle import Handle

__all__ = ["LOST", "ChdbSession", "part_relations"]

#: The text of ClickHouse's error if a file of a query does not exist.
LOST = "parts of this snapshot are gone: take a new snapshot, and attach it again"

# Characters that ClickHouse interprets as a pattern, inside and outside of the braces that list the parts.
_PATTERN = re.compile(r"[{}*?,\[\]\\\n\r]")
_OUTSIDE = re.compile(r"[{}*?\[\]\\\n\r]")


class ChdbSession(Protocol):
    """A `chdb.session.Session`, or an object with the same `query`."""

    def query(self, sql: str, fmt: str = ..., /) -> Any:
        """Run a statement and return its result in this format of ClickHouse."""
        ...


def part_relations(handle: Handle, parts: Sequence[Part], structure: str, session: ChdbSession | None) -> list[str]:
    """Return table expressions for FROM that together contain the rows of these parts. There must be at least one part.

    `structure` is ClickHouse's text for the columns and types to read. `session` receives the keys for S3. Raises
    InvalidOption if the table is in S3 and there is no session.
    """
    if handle.location.scheme != "s3":
        return [_in_files(handle, parts, structure)]
    if session is None:
        raise InvalidOption(
            f"{handle.table}: ClickHouse needs keys to read S3. Pass session=, the chdb.session.Session that will "
            "run the query."
        )
    return _in_s3(handle, parts, structure, _named_collection(session, handle.location))


def _in_files(handle: Handle, parts: Sequence[Part], structure: str) -> str:
    copied = handle.location.scheme != "file"
    paths = handle.part_paths.readable(parts) if copied else handle.part_paths.original(parts)
    pattern = quote_text(_pattern(paths, _any_character))
    rows = f"file({pattern}, 'Parquet', {quote_text(structure)}, 'none')"
    return f"{rows} WHERE {_all_exist(f'file({pattern}, One)', len(paths))}"


def _in_s3(handle: Handle, parts: Sequence[Part], structure: str, collection: str) -> list[str]:
    """ClickHouse fetches listed keys one by one, and a missing key is an error. Keys with pattern characters are
    queried separately, with a count of the files.
    """
    location, prefix = handle.location, handle.keys.data_prefix
    listed: list[str] = []
    patterns: list[str] = []
    for part in parts:
        is_pattern = _OUTSIDE.search(prefix) or _PATTERN.search(part.key.removeprefix(prefix))
        (patterns if is_pattern else listed).append(part.key)
    format_ = f"format = 'Parquet', structure = {quote_text(structure)}, compression_method = 'none'"
    rows = []
    if listed:
        url = quote_text(_url(location, _pattern(listed, str)))
        rows.append(f"s3({collection}, url = {url}, {format_})")
    for key in patterns:
        url = quote_text(_url(location, _any_character(key)))
        complete = _all_exist(f"s3({collection}, url = {url}, format = 'One')", 1)
        rows.append(f"s3({collection}, url = {url}, {format_}) WHERE {complete}")
    return rows


def _all_exist(files: str, count: int) -> str:
    """Return a condition that fails unless `count` files exist. `files` has a row for each file, without reading it."""
    return f"(SELECT throwIf(count() != {count}, {quote_text(LOST)}) FROM {files}) = 0"


def _any_character(path: str) -> str:
    """Replace pattern characters by `?` (any character), because ClickHouse has no escape for them."""
    return _OUTSIDE.sub("?", path)


def _pattern(paths: Sequence[str], escape: Callable[[str], str]) -> str:
    """Return one pattern for these paths. Their common prefix must be outside of the braces."""
    if len(paths) == 1:
        return escape(paths[0])
    shared = _shared_folder(paths)
    listed = ",".join(_PATTERN.sub("?", path.removeprefix(shared)) for path in paths)
    return f"{escape(shared)}{{{listed}}}"


def _shared_folder(paths: Sequence[str]) -> str:
    first, last = min(paths), max(paths)  # a common prefix of these two is common to all
    same = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[: first.rfind("/", 0, same) + 1]


def _url(location: Location, pattern: str) -> str:
    """Return the URL of a key or pattern. ClickHouse decodes a URL before it interprets keys and patterns."""
    encoded = quote(pattern, safe="/={},")
    scheme, _, host = (location.endpoint or "").partition("://")
    if not host:
        return f"https://s3.{location.region or 'us-east-1'}.amazonaws.com/{location.root}/{encoded}"
    if location.virtual_hosted:
        return f"{scheme}://{location.root}.{host}/{encoded}"
    return f"{scheme}://{host}/{location.root}/{encoded}"


def _named_collection(session: ChdbSession, location: Location) -> str:
    """Store the table's current credentials in ClickHouse as a named collection, and return its name.

    Existing views that use the collection then use these credentials too. Raises AccessDenied.
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
    settings = ", ".join(f"{key} = {value}" for key, value in values.items())
    try:
        session.query(f"CREATE NAMED COLLECTION IF NOT EXISTS {name} AS {settings}")
        session.query(f"ALTER NAMED COLLECTION {name} SET {settings}")
    except RuntimeError as error:
        code = str(error).partition("DB::Exception")[0].strip()  # the rest may quote the statement
        raise AccessDenied(
            f"{location.uri}: ClickHouse rejected the named collection with the keys for S3 ({code[:40]}). Allow the "
            "session to create and alter named collections."
        ) from None
    return name
