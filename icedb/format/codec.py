"""The encoding of log files: newline-delimited JSON in UTF-8, without a newline at the end.

The lines are in the order that every v3 reader expects: header, schema, log tombstones, part markers. A body that is
not a valid log file raises CorruptLog, which names the object and the reason. The decoder never guesses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from icedb.errors import CorruptLog
from icedb.format.keys import Keys, has_unsafe_segment
from icedb.format.operation_names import decode_operation, decode_operations, encode_operations
from icedb.format.records import COLUMNS_MIN, Header, LogFile, LogTombstoneRecord, Marker, PackedMarkers
from icedb.format.table_spec import decode_spec

__all__ = ["VERSION", "decode", "encode"]

VERSION = 1

# Bytes decoded at a time: the markers are still in the processor's cache when they are packed into columns.
_PIECE_BYTES = 1 << 19

# Messages quote at most this much of a text from a log file.
TEXT_CHARS = 200

_encoder = msgspec.json.Encoder()
_header = msgspec.json.Decoder(Header)
_schema = msgspec.json.Decoder(dict[str, str])
_tombstones = msgspec.json.Decoder(LogTombstoneRecord)
_markers = msgspec.json.Decoder(Marker)
# A line that is nested too deeply raises RecursionError.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def encode(file: LogFile) -> bytes:
    """Encode a log file."""
    part_line = 2 + len(file.tombstones)
    header = Header(
        version=VERSION,
        t_ms=file.t_ms,
        schema_line=1,
        part_line=part_line,
        tombstone_line=2 if file.tombstones else None,
        epoch=file.epoch,
        live_epochs=file.live_epochs if file.epoch is not None else None,
        void=file.void,
        horizon_ms=file.horizon_ms,
        txn=file.txn,
        line_count=part_line + len(file.markers),
        foreign_ms=file.foreign_ms,
        spec=file.spec,
        schema_ms=file.schema_ms,
        column_ms=file.column_ms,
        operation=msgspec.Raw(_encoder.encode(file.operation)) if file.operation else msgspec.UNSET,
        operations=encode_operations(file.operations),
    )
    lines = [header, file.schema, *file.tombstones, *file.markers]
    return b"\n".join(map(_encoder.encode, lines))


def decode(body: bytes, key: str, keys: Keys) -> LogFile:
    """Decode the log file that was read from `key`. Raises CorruptLog if it is not a log file of this table."""
    if not body.isascii():
        _check_text(body, key)
    header = _decode_header(body, key)
    if body.endswith(b"\n"):
        raise _damaged(key, "it ends in a newline, so its last lines are cut off")
    lines = body.count(b"\n") + 1
    if header.line_count not in (None, lines):
        raise _damaged(key, f"it has {lines} lines instead of {header.line_count}, so its last lines are cut off")
    parts_from = header.part_line or 0
    tombstones_from = parts_from if header.tombstone_line is None else header.tombstone_line
    if header.line_count is not None and not header.schema_line == tombstones_from - 1 < parts_from <= lines:
        raise _damaged(key, "the sections that its header names are not in order")
    tombstone_at = _offset(body, header.tombstone_line, key) if header.tombstone_line is not None else None
    part_at = len(body) if header.part_line is None else _offset(body, header.part_line, key)
    try:
        schema = _schema.decode(_line(body, header.schema_line, key))
        tombstones = _tombstones.decode_lines(body[tombstone_at:part_at]) if tombstone_at is not None else []
        markers = _decode_markers(body, part_at, count=lines - parts_from)
    except _UNREADABLE as error:
        raise _damaged(key, f"a line is cut or is not what its section says ({error})") from None
    file = LogFile(
        t_ms=header.t_ms,
        schema=schema,
        markers=markers,
        tombstones=tuple(tombstones),
        epoch=header.epoch,
        live_epochs=header.live_epochs or (),
        void=header.void,
        horizon_ms=header.horizon_ms,
        txn=header.txn,
        foreign_ms=header.foreign_ms,
        spec=header.spec,
        schema_ms=header.schema_ms,
        column_ms=header.column_ms,
        operation=decode_operation(header.operation),
        operations=decode_operations(header.operations),
    )
    _check(file, key, keys)
    return file


def _check_text(body: bytes, key: str) -> None:
    """Raise CorruptLog unless the bytes are UTF-8. The decoder does not check statistics and unknown keys."""
    try:
        for piece in _pieces(body, 0):
            str(piece, "utf-8")
    except UnicodeDecodeError:
        raise _damaged(key, "it is not UTF-8 text") from None


def _decode_header(body: bytes, key: str) -> Header:
    try:
        header = _header.decode(_line(body, 0, key))
    except _UNREADABLE as error:
        raise _damaged(key, f"its first line is not a header ({error})") from None
    if str(header.version) != str(VERSION):
        version = repr(header.version)[:TEXT_CHARS]
        raise _damaged(key, f"it has version {version}, and this program reads version {VERSION}")
    if header.epoch is not None and (header.epoch < 1 or header.epoch not in (header.live_epochs or ())):
        raise _damaged(key, "its epoch is not among its live epochs")
    return header


def _offset(body: bytes, line: int, key: str) -> int:
    """Return the offset of line number `line`; the end of the body if it is the number after the last line."""
    at = 0
    for _ in range(line):
        at = body.find(b"\n", at) + 1
        if at == 0:
            if line == body.count(b"\n") + 1:
                return len(body)
            raise _damaged(key, f"its header names line {line}, which it does not have")
    return at


def _line(body: bytes, line: int, key: str) -> bytes:
    at = _offset(body, line, key)
    end = body.find(b"\n", at)
    return body[at:] if end < 0 else body[at:end]


def _decode_markers(body: bytes, start: int, *, count: int) -> Sequence[Marker]:
    if count < COLUMNS_MIN:
        return tuple(_markers.decode_lines(body[start:]))
    from icedb.format.packed_markers import MarkerColumns  # imports Arrow, which only large tables need

    try:
        return MarkerColumns(_markers.decode_lines(piece) for piece in _pieces(body, start))
    except (OverflowError, ValueError) as error:
        if isinstance(error, msgspec.DecodeError | UnicodeDecodeError):
            raise
        return tuple(_markers.decode_lines(body[start:]))  # a text that a column cannot hold


def _pieces(body: bytes, start: int) -> Iterator[memoryview]:
    """Yield the lines from `start` on, in pieces of about `_PIECE_BYTES`."""
    whole = memoryview(body)
    while start < len(body):
        end = body.find(b"\n", start + _PIECE_BYTES)
        end = len(body) if end < 0 else end
        yield whole[start:end]
        start = end + 1


def _check(file: LogFile, key: str, keys: Keys) -> None:
    """Raise CorruptLog for keys outside the table's prefix, because cleanup would delete objects of another table."""
    markers = file.markers
    if not isinstance(markers, PackedMarkers) or any(_fault(n, keys.data_prefix) for n in markers.sample_keys()):
        _check_names((m.key for m in markers), keys.data_prefix, key)
    _check_names((t.key for t in file.tombstones), keys.log_prefix, key)
    if any(not column or "\0" in column for column in file.schema):
        raise _damaged(key, "its schema names a column with an empty name, or with a zero character in it")
    if not isinstance(file.spec, msgspec.UnsetType):
        decode_spec(bytes(file.spec), table=f"the spec that '{key}' records", key=key)


def _check_names(names: Iterable[str], prefix: str, key: str) -> None:
    for named in names:
        if fault := _fault(named, prefix):
            raise _damaged(key, fault)


def _fault(named: str, prefix: str) -> str:
    if not named.startswith(prefix) or has_unsafe_segment(named[len(prefix) :].split("/")):
        return f"it names '{named[:TEXT_CHARS]}', which is outside '{prefix}'"
    return f"it names {named[:TEXT_CHARS]!r}, and no object has a zero character in its key" if "\0" in named else ""


def _damaged(key: str, reason: str) -> CorruptLog:
    return CorruptLog(
        f"the log file '{key}' cannot be read: {reason}. Restore the object from a backup or an earlier version "
        "of it. Do not delete it: the parts it names would be lost.",
        key=key,
    )
