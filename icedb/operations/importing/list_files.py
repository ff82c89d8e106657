"""List the files of an import: a folder, a bucket's prefix, one file or a glob.

No file is opened. Paths are read in Hive style, as the `name=value` folders right above a file. As in Hadoop, names
that begin with `_` or `.` are no data.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

from icedb.errors import InvalidOption
from icedb.format.keys import NULL_VALUE
from icedb.storage.location import Location, parse_beside
from icedb.storage.obstore_store import ObjectInfo, ObjectNotFound, ObjectStore, open_store
from icedb.transaction.table_place import is_table

__all__ = ["Origin", "ImportSource", "SourceFile", "open_source", "was_listed"]

_GLOB = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to import. `key` is its name in its store; `path` is the path for DuckDB and messages."""

    key: str
    path: str
    bytes: int
    stored_ms: int
    #: The columns and values of the `name=value` folders right above it, in order; null is None.
    values: Mapping[str, str | None]
    #: How many of these folders are below the caller's address.
    below: int
    #: Its key in the table's store, if it is there.
    table_key: str | None
    #: Identifies the file and its current content: 16 hexadecimal digits.
    id: str

    @property
    def folders(self) -> str:
        """The `name=value` folders, for messages."""
        return "/".join(f"{name}={NULL_VALUE if value is None else value}" for name, value in self.values.items())


@dataclass(frozen=True, slots=True)
class Origin:
    """The location of the files of an import, which can be sent to another process. `own`: in the table's own store."""

    location: Location
    own: bool

    def store(self, table: ObjectStore) -> ObjectStore:
        """Return the store of the files, given the table's store."""
        return table if self.own else open_store(self.location)


@dataclass(frozen=True, slots=True)
class ImportSource:
    """The files at an address, by path, and their location."""

    uri: str
    origin: Origin
    files: tuple[SourceFile, ...]
    #: The normalized address and pattern, independent of the caller's spelling.
    name: str


def open_source(
    source: str | os.PathLike[str], storage_options: Mapping[str, str] | None, *, table: ObjectStore
) -> ImportSource:
    """List the files at an address. `table` is the store of the target table, with its credentials.

    Raises InvalidOption if there are no files or they belong to another table, InvalidURI, and the store's errors.
    """
    address = os.fspath(source)
    base, pattern = _split_glob(address)
    home = table.location
    location = parse_beside(base, home, storage_options)
    if location.scheme == "file" and Path(location.root).is_file():
        pattern, location = Path(location.root).name, replace(location, root=str(Path(location.root).parent))
    same = location.scheme != "file" and location.access == home.access
    store = Origin(location, same).store(table)
    _refuse_other_table(store, location, home, address)
    root, infos = _list(store, location)
    if links := [i.key for i in infos if i.is_link and not _is_hidden(i.key.removeprefix(root).split("/"))]:
        raise InvalidOption(
            f"{home.uri}: '{location.root_uri}/{links[0]}' is a symbolic link, which imports do not follow. Replace "
            "the link by the file or folder itself, or import the address of its target."
        )
    accepts = _matcher(pattern)
    files = tuple(
        _file(info, location, home, root=root, same=same)
        for info in infos
        if _is_data(info, root) and accepts(info.key.removeprefix(root))
    )
    if not files:
        raise InvalidOption(
            f"{home.uri}: there are no files to import at '{address}'{_left_out(infos, root)}. Correct the address."
        )
    return ImportSource(address, Origin(location, same), files, f"{location.root_uri}/{root}{pattern}")


def _split_glob(address: str) -> tuple[str, str]:
    """Return the address before the first segment with a wildcard, and the rest, which is empty without a wildcard."""
    scheme, separator, rest = address.partition("://")
    head, rest = (scheme + separator, rest) if separator else ("", address)
    segments = rest.split("/")
    first = next((n for n, segment in enumerate(segments) if _GLOB & set(segment)), None)
    if first is None:
        return address, ""
    folder = "/".join(segments[:first])
    if not folder and not separator:
        folder = "/" if address.startswith("/") else "."
    return head + folder, "/".join(segments[first:])


class _Matcher:
    """Whether a path below the address matches a glob: `*`, `?`, `[...]` within a segment, `**` for any segments."""

    def __init__(self, pattern: str) -> None:
        self._regex = re.compile(_regex(pattern)) if pattern else None

    def __call__(self, path: str) -> bool:
        return self._regex is None or self._regex.fullmatch(path) is not None


def _matcher(pattern: str) -> _Matcher:
    try:
        return _Matcher(pattern)
    except re.error:
        raise InvalidOption(f"'{pattern}' is not a valid glob. Use *, ?, [abc] and **.") from None


def _regex(pattern: str) -> str:
    regex = ""
    segments = pattern.split("/")
    for number, segment in enumerate(segments):
        last = number == len(segments) - 1
        if segment == "**":
            regex += ".*" if last else "(?:[^/]+/)*"
            continue
        for piece in re.findall(r"\[[!^]?\]?[^]]*\]|.", segment):
            if piece in ("*", "?"):
                regex += {"*": "[^/]*", "?": "[^/]"}[piece]
            elif len(piece) > 1:
                regex += "[" + ("^" if piece[1] in "!^" else "") + piece[1:-1].lstrip("!^").replace("\\", r"\\") + "]"
            else:
                regex += re.escape(piece)
        regex += "" if last else "/"
    return regex


def _list(store: ObjectStore, location: Location) -> tuple[str, list[ObjectInfo]]:
    """Return the common prefix of the keys at a location, and the objects there. An object's own key lists one."""
    root = f"{location.prefix}/" if location.prefix else ""
    objects = store.list(root)
    if not objects and location.prefix:
        with suppress(ObjectNotFound):
            return location.prefix.rpartition("/")[0] + "/", [store.head(location.prefix)]
    return root, objects


def was_listed(name: str, file: SourceFile, source: ImportSource) -> bool:
    """Whether an import of that name listed this file if it existed: the same source, or a folder above the file."""
    if name == source.name:
        return True
    return name.endswith("/") and file.path.startswith(name) and not _is_hidden(file.path.removeprefix(name).split("/"))


def _is_hidden(segments: Sequence[str]) -> bool:
    return any(s.startswith(("_", ".")) and "=" not in s for s in segments) or segments[-1].startswith(("_", "."))


def _is_data(info: ObjectInfo, root: str) -> bool:
    segments = info.key.removeprefix(root).split("/")
    if _is_hidden(segments):
        return False
    # Consoles and Hadoop put such objects as placeholders of folders.
    is_folder = info.bytes == 0 and ("." not in segments[-1] or segments[-1].endswith("_$folder$"))
    return not is_folder


def _left_out(infos: Sequence[ObjectInfo], root: str) -> str:
    """Return the number of hidden files for a message: a table's own folder, for example, has only hidden files."""
    hidden = sum(_is_hidden(info.key.removeprefix(root).split("/")) for info in infos)
    return f" ({hidden} in or with names that begin with _ or . are left out, as no data)" if hidden else ""


def _file(info: ObjectInfo, location: Location, home: Location, *, root: str, same: bool) -> SourceFile:
    path = f"{location.root_uri}/{info.key}"
    above = path.split("/")[:-1]
    values: dict[str, str | None] = {}
    for segment in _trailing(above):
        name, _, value = segment.partition("=")
        values[unquote(name)] = None if value == NULL_VALUE else unquote(value)
    below = min(len(values), info.key.removeprefix(root).count("/"))
    table_key = info.key if same else None
    if location.scheme == home.scheme == "file" and path.startswith(f"{home.root}/"):
        table_key = path.removeprefix(f"{home.root}/")
    identity = "\0".join((location.endpoint or "", path, str(info.bytes), str(info.stored_ms)))
    file_id = hashlib.sha256(identity.encode(errors="surrogateescape")).hexdigest()[:16]
    return SourceFile(info.key, path, info.bytes, info.stored_ms, values, below, table_key, file_id)


def _trailing(segments: list[str]) -> Iterator[str]:
    first = len(segments)
    while first and segments[first - 1].partition("=")[0] and "=" in segments[first - 1]:
        first -= 1
    yield from segments[first:]


def _refuse_other_table(store: ObjectStore, location: Location, home: Location, address: str) -> None:
    """Raise InvalidOption for the parts of another table, because some of them may be superseded."""
    path = f"{location.root_uri}/{location.prefix}".rstrip("/") + "/"
    before, data, _ = path.rpartition("/_data/")
    if not data or f"{before}/" == f"{home.uri}/":
        return
    is_folder = location.scheme == "file"
    above = replace(
        location,
        root=before if is_folder else location.root,
        prefix="" if is_folder else before.removeprefix(f"{location.root_uri}/"),
    )
    if is_table(store.sibling(above)):
        raise InvalidOption(
            f"{home.uri}: '{address}' has the parts of another table, and some of them may be superseded. Insert the "
            "result of a query of that table instead."
        )
