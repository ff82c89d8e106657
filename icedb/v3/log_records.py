"""What a log holds, as programs of IceDB v3 know it: schema, markers, tombstones, and the errors they catch.

These are clothes for the records of `icedb.format`, with the names and the JSON that v3 programs rely on. `icedb.log`
offers them all.
"""

# ruff: noqa: N802, N803  (the names are those of IceDB v3)
from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from icedb.errors import InvalidArgument, InvalidOption, InvalidRequestError, SchemaConflict
from icedb.format.keys import Keys
from icedb.util.arguments import checks_arguments
from icedb.util.clock import SystemClock

__all__ = [
    "FileMarker",
    "FileMarkerFromJSON",
    "LogMetadata",
    "LogMetadataFromJSON",
    "LogTombstone",
    "LogTombstoneFromJSON",
    "NoLogFilesException",
    "Schema",
    "SchemaConflictException",
    "get_log_file_info",
    "schema_of",
    "v3_conflicts",
]


class NoLogFilesException(InvalidRequestError, LookupError):
    """There is no log file, or none that is old enough."""

    def __init__(self) -> None:
        super().__init__("there are no log files up to that time: nothing was inserted there yet.")


class SchemaConflictException(SchemaConflict):
    """A column has one type, and something brings another: `column`, `current_type`, `new_type`, `message`."""

    def __init__(self, column: str, current: str | Sequence[str], new: str | None = None, *, message: str = "") -> None:
        """Two types, or a list of them in the place of the first."""
        types = [current] if isinstance(current, str) else list(current)
        current, new = types[0], new if new is not None else types[-1]
        self.message = message or f"column '{column}' is {current}, and {new} was given. Cast it, or rename it."
        super().__init__(self.message, column=column, types=(current, new))
        self.current_type = current
        self.new_type = new


@contextmanager
def v3_conflicts() -> Iterator[None]:
    """Conflicts of types as the error that v3 programs catch."""
    try:
        yield
    except SchemaConflictException:
        raise
    except SchemaConflict as error:
        conflict = SchemaConflictException(error.column, *error.types, message=str(error))
        conflict.log_files = error.log_files
        raise conflict from None


@checks_arguments
class Schema:
    """Column to DuckDB type, in the order in which the columns came."""

    def __init__(self) -> None:
        self._types: dict[str, str] = {}

    def __repr__(self) -> str:
        return self.toJSON()

    def __contains__(self, column: object) -> bool:
        return column in self._types

    def __getitem__(self, column: str) -> str:
        return self._types[column]

    def accumulate(self, columns: Sequence[str], types: Sequence[str]) -> bool:
        """Add columns; whether all of them were new. Raises SchemaConflictException, and nothing is added then."""
        if len(columns) != len(types):
            raise InvalidOption(f"{len(columns)} columns and {len(types)} types: give a type for each column.")
        united = dict(self._types)
        for column, type_ in zip(columns, types, strict=True):
            if united.setdefault(column, type_) != type_:
                raise SchemaConflictException(column, united[column], type_)
        all_new = self._types.keys().isdisjoint(columns)
        self._types = united
        return all_new

    def columns(self) -> list[str]:
        """The names."""
        return list(self._types)

    def types(self) -> list[str]:
        """The types, in the order of the names."""
        return list(self._types.values())

    def pairs(self) -> list[tuple[str, str]]:
        """Names and types."""
        return list(self._types.items())

    def toJSON(self) -> str:
        """As a log file of v3 has it."""
        return json.dumps(self._types)


def schema_of(types: Mapping[str, str]) -> Schema:
    """Columns and their types as a Schema."""
    schema = Schema()
    schema.accumulate(list(types), list(types.values()))
    return schema


@checks_arguments
class FileMarker:
    """A part in the log. `tombstone` is when it was superseded; `vir_source_log_file` the log file that says so."""

    def __init__(self, path: str, createdMS: int, fileBytes: int, tombstone: int | None = None) -> None:
        self.path = path
        self.createdMS = createdMS
        self.fileBytes = fileBytes
        self.tombstone = tombstone
        self.vir_source_log_file: str | None = None

    def __repr__(self) -> str:
        source = {} if self.vir_source_log_file is None else {"vir_source_log_file": self.vir_source_log_file}
        return json.dumps(self._fields() | source)

    def _fields(self) -> dict[str, object]:
        tombstone = {} if self.tombstone is None else {"tmb": self.tombstone}
        return {"p": self.path, "b": self.fileBytes, "t": self.createdMS, **tombstone}

    def json(self) -> str:
        """Its line of a log file."""
        return json.dumps(self._fields())


@checks_arguments
class LogTombstone:
    """A log file that another one replaced, and when."""

    def __init__(self, path: str, createdMS: int) -> None:
        self.path = path
        self.createdMS = createdMS

    def __repr__(self) -> str:
        return self.toJSON()

    def toJSON(self) -> str:
        """Its line of a log file."""
        return json.dumps({"p": self.path, "t": self.createdMS})


@checks_arguments
class LogMetadata:
    """The first line of a log file: where the rest is."""

    def __init__(
        self,
        version: int | str,
        schemaLineIndex: int,
        fileLineIndex: int,
        tombstoneLineIndex: int | None = None,
        timestamp: int | None = None,
    ) -> None:
        self.version = version
        self.schemaLineIndex = schemaLineIndex
        self.fileLineIndex = fileLineIndex
        self.tombstoneLineIndex = tombstoneLineIndex
        self.timestamp = SystemClock().now_ms() if timestamp is None else timestamp

    def __repr__(self) -> str:
        return self.toJSON()

    def toJSON(self) -> str:
        """The line itself."""
        tombstones = {} if self.tombstoneLineIndex is None else {"tmb": self.tombstoneLineIndex}
        first = {"v": self.version, "t": self.timestamp, "sch": self.schemaLineIndex, "f": self.fileLineIndex}
        return json.dumps(first | tombstones)


@checks_arguments
def FileMarkerFromJSON(line: str | Mapping[str, Any]) -> FileMarker:
    """The marker in a line of a log file, or in its fields. Raises InvalidOption."""
    with _is_no("marker"):
        fields = _fields(line)
        return FileMarker(fields["p"], int(fields["t"]), int(fields["b"]), fields.get("tmb"))


@checks_arguments
def LogTombstoneFromJSON(line: str | Mapping[str, Any]) -> LogTombstone:
    """The tombstone in a line of a log file, or in its fields. Raises InvalidOption."""
    with _is_no("tombstone"):
        fields = _fields(line)
        return LogTombstone(fields["p"], int(fields["t"]))


@checks_arguments
def LogMetadataFromJSON(line: str | Mapping[str, Any]) -> LogMetadata:
    """The metadata in the first line of a log file, or in its fields. Raises InvalidOption."""
    with _is_no("metadata"):
        fields = _fields(line)
        return LogMetadata(fields["v"], fields["sch"], fields["f"], fields.get("tmb"), fields["t"])


def _fields(line: str | Mapping[str, Any]) -> Mapping[str, Any]:
    fields = line if isinstance(line, Mapping) else json.loads(line)
    if not isinstance(fields, Mapping):
        raise ValueError("it is no JSON object")
    return fields


@contextmanager
def _is_no(what: str) -> Iterator[None]:
    """Errors of a line that says something else, as InvalidOption."""
    try:
        yield
    except InvalidArgument as error:
        raise InvalidOption(f"the line is no {what} of a log file: {error}") from None
    except KeyError as error:
        raise InvalidOption(f"the line is no {what} of a log file: it has no {error}.") from None
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidOption(f"the line is no {what} of a log file: {error}.") from None


@checks_arguments
def get_log_file_info(name: str) -> tuple[int, bool]:
    """Parse the name or key of a log file: its time, and whether it has tombstones. Raises CorruptLog."""
    keys = Keys("")
    found = keys.parse_log_file(keys.log_prefix + name.rpartition("/")[2])
    return found.t_ms, found.merged
