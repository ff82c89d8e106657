"""The log records of IceDB v3 (schema, markers, tombstones), and the errors that its programs catch.

They convert the records of `icedb.format` to the names and the JSON of v3. `icedb.log` exports them all.
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
    """The table has no log file, or none that is old enough."""

    def __init__(self) -> None:
        super().__init__("there are no log files up to that time. Insert rows first, or give a later time.")


class SchemaConflictException(SchemaConflict):
    """A conflict of a column's type with another: `column`, `current_type`, `new_type`, `message`."""

    def __init__(self, column: str, current: str | Sequence[str], new: str | None = None, *, message: str = "") -> None:
        """Take two types, or a list of types as the first argument."""
        types = [current] if isinstance(current, str) else list(current)
        current, new = types[0], new if new is not None else types[-1]
        self.message = message or f"column '{column}' is {current}, and {new} was given. Cast it, or rename it."
        super().__init__(self.message, column=column, types=(current, new))
        self.current_type = current
        self.new_type = new


@contextmanager
def v3_conflicts() -> Iterator[None]:
    """Convert SchemaConflict to the error that v3 programs catch."""
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
    """The DuckDB types of columns, in the order in which the columns were added."""

    def __init__(self) -> None:
        self._types: dict[str, str] = {}

    def __repr__(self) -> str:
        return self.toJSON()

    def __contains__(self, column: object) -> bool:
        return column in self._types

    def __getitem__(self, column: str) -> str:
        return self._types[column]

    def accumulate(self, columns: Sequence[str], types: Sequence[str]) -> bool:
        """Add columns, and return True if all of them were new. Adds nothing if it raises SchemaConflictException."""
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
        """Return the names."""
        return list(self._types)

    def types(self) -> list[str]:
        """Return the types, in the order of the names."""
        return list(self._types.values())

    def pairs(self) -> list[tuple[str, str]]:
        """Return names and types."""
        return list(self._types.items())

    def toJSON(self) -> str:
        """Encode the schema's line of a log file."""
        return json.dumps(self._types)


def schema_of(types: Mapping[str, str]) -> Schema:
    """Return columns and their types as a Schema."""
    schema = Schema()
    schema.accumulate(list(types), list(types.values()))
    return schema


@checks_arguments
class FileMarker:
    """A part in the log. `tombstone` is the time at which it was superseded, by the log file `vir_source_log_file`."""

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
        """Encode the marker's line of a log file."""
        return json.dumps(self._fields())


@checks_arguments
class LogTombstone:
    """A log file that another one replaced, and the time."""

    def __init__(self, path: str, createdMS: int) -> None:
        self.path = path
        self.createdMS = createdMS

    def __repr__(self) -> str:
        return self.toJSON()

    def toJSON(self) -> str:
        """Encode the tombstone's line of a log file."""
        return json.dumps({"p": self.path, "t": self.createdMS})


@checks_arguments
class LogMetadata:
    """The first line of a log file, with the line numbers of the rest."""

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
        """Encode the line."""
        tombstones = {} if self.tombstoneLineIndex is None else {"tmb": self.tombstoneLineIndex}
        first = {"v": self.version, "t": self.timestamp, "sch": self.schemaLineIndex, "f": self.fileLineIndex}
        return json.dumps(first | tombstones)


@checks_arguments
def FileMarkerFromJSON(line: str | Mapping[str, Any]) -> FileMarker:
    """Parse the marker in a line of a log file, or in its fields. Raises InvalidOption."""
    with _parsing("marker"):
        fields = _fields(line)
        return FileMarker(fields["p"], int(fields["t"]), int(fields["b"]), fields.get("tmb"))


@checks_arguments
def LogTombstoneFromJSON(line: str | Mapping[str, Any]) -> LogTombstone:
    """Parse the tombstone in a line of a log file, or in its fields. Raises InvalidOption."""
    with _parsing("tombstone"):
        fields = _fields(line)
        return LogTombstone(fields["p"], int(fields["t"]))


@checks_arguments
def LogMetadataFromJSON(line: str | Mapping[str, Any]) -> LogMetadata:
    """Parse the metadata in the first line of a log file, or in its fields. Raises InvalidOption."""
    with _parsing("metadata"):
        fields = _fields(line)
        return LogMetadata(fields["v"], fields["sch"], fields["f"], fields.get("tmb"), fields["t"])


def _fields(line: str | Mapping[str, Any]) -> Mapping[str, Any]:
    fields = line if isinstance(line, Mapping) else json.loads(line)
    if not isinstance(fields, Mapping):
        raise ValueError("it is no JSON object")
    return fields


@contextmanager
def _parsing(record: str) -> Iterator[None]:
    """Convert the errors of a line without such a record to InvalidOption."""
    try:
        yield
    except InvalidArgument as error:
        raise InvalidOption(f"the line is no {record} of a log file: {error}") from None
    except KeyError as error:
        raise InvalidOption(f"the line is no {record} of a log file: it has no {error}.") from None
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidOption(f"the line is no {record} of a log file: {error}.") from None


@checks_arguments
def get_log_file_info(name: str) -> tuple[int, bool]:
    """Return the time in a log file's name or key, and True if it has tombstones. Raises CorruptLog."""
    keys = Keys("")
    parsed = keys.parse_log_file(keys.log_prefix + name.rpartition("/")[2])
    return parsed.t_ms, parsed.merged
