"""Arrow IPC streams from untrusted clients, decoded within limits on rows and memory.

Compressed buffers inside a stream, and types that refer to the same bytes many times, can need a thousand times the
memory of the stream. Such streams are rejected. Clients can compress the whole stream with `Content-Encoding`, for
which a limit applies.
"""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from icedb.services.ingest.events.rejections import RequestRejected

__all__ = ["decode_arrow_stream"]

# Field numbers in the format's flatbuffers: Message.header_type, Message.header, RecordBatch.compression,
# DictionaryBatch.data; and the header types of these two.
_HEADER_TYPE, _HEADER, _COMPRESSION, _DATA = 1, 2, 3, 1
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
#: Maximum number of bytes of a decoded dictionary for each byte of the stream.
_GROWTH_MAX = 16


def decode_arrow_stream(body: bytes, *, events_max: int) -> pa.Table:
    """Decode an Arrow IPC stream and check its buffers. Raises RequestRejected (400, 413)."""
    try:
        _check_messages(body, events_max)
        table = pa.ipc.open_stream(body).read_all()
        _check_types(table.schema)
        table.validate(full=True)
        if table.num_rows > events_max:
            raise RequestRejected(
                413, f"The request has {table.num_rows} events; the limit is {events_max}. Send fewer."
            )
        return _without_dictionaries(table, _GROWTH_MAX * max(len(body), 4096))
    except (pa.ArrowException, OSError, struct.error, ValueError, OverflowError, MemoryError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise RequestRejected(400, f"The body is not a valid Arrow IPC stream: {why}.") from None


def _check_messages(body: bytes, events_max: int) -> None:
    """Check the messages of a stream before their buffers are decoded."""
    rows = 0
    for message in pa.ipc.MessageReader.open_stream(body):
        metadata = message.metadata.to_pybytes()
        root = struct.unpack_from("<I", metadata, 0)[0]
        kind_at, header_at = _field(metadata, root, _HEADER_TYPE), _field(metadata, root, _HEADER)
        kind = metadata[kind_at] if kind_at else 0
        if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH) or not header_at:
            continue
        batch = _target(metadata, header_at)
        if kind == _DICTIONARY_BATCH:
            data_at = _field(metadata, batch, _DATA)
            batch = _target(metadata, data_at) if data_at else batch
        elif length_at := _field(metadata, batch, 0):
            length = struct.unpack_from("<q", metadata, length_at)[0]
            if length < 0:  # it would hide the rows of other batches
                raise RequestRejected(400, "The stream has a batch with a negative number of rows.")
            rows += length
        if _field(metadata, batch, _COMPRESSION):
            raise RequestRejected(
                400, "The stream's buffers are compressed. Compress the whole stream with Content-Encoding: zstd."
            )
    if rows > events_max:
        raise RequestRejected(413, f"The request has {rows} events; the limit is {events_max}. Send fewer.")


def _field(buffer: bytes, table: int, number: int) -> int:
    """Return the offset of a field of a flatbuffers table, or 0 if the field is absent."""
    vtable = table - struct.unpack_from("<i", buffer, table)[0]
    slot = 4 + 2 * number
    if vtable < 0 or slot + 2 > struct.unpack_from("<H", buffer, vtable)[0]:
        return 0
    offset = int(struct.unpack_from("<H", buffer, vtable + slot)[0])
    return table + offset if offset else 0


def _target(buffer: bytes, at: int) -> int:
    return at + int(struct.unpack_from("<I", buffer, at)[0])


def _check_types(schema: Any) -> None:
    for field in schema:
        if not (pa.types.is_null(field.type) or _is_plain(field.type)):
            raise RequestRejected(
                400, f"column {field.name[:100]!r} is {str(field.type)[:100]}. Cast it to a plain type."
            )


def _is_plain(type_: Any) -> bool:
    """Return whether a value of the type takes memory of its own, so that values cannot share bytes."""
    types = pa.types
    if types.is_dictionary(type_):
        return _is_flat(type_.value_type)
    if types.is_list(type_) or types.is_large_list(type_):
        return _is_plain_inside(type_.value_type)
    if types.is_map(type_):
        return _is_plain_inside(type_.key_type) and _is_plain_inside(type_.item_type)
    if types.is_struct(type_):
        return all(_is_plain_inside(field.type) for field in type_)
    return _is_flat(type_)


def _is_plain_inside(type_: Any) -> bool:
    return not pa.types.is_dictionary(type_) and _is_plain(type_)


def _is_flat(type_: Any) -> bool:
    types = pa.types
    return bool(
        types.is_boolean(type_)
        or types.is_integer(type_)
        or types.is_floating(type_)
        or types.is_decimal(type_)
        or types.is_temporal(type_)
        or types.is_string(type_)
        or types.is_large_string(type_)
        or types.is_binary(type_)
        or types.is_large_binary(type_)
    )


def _without_dictionaries(table: pa.Table, bytes_max: int) -> pa.Table:
    for number, field in enumerate(table.schema):
        if not pa.types.is_dictionary(field.type):
            continue
        column, size = table.column(number), 0
        for chunk in column.chunks:
            if chunk.dictionary.type in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
                lengths = pc.take(pc.binary_length(chunk.dictionary), chunk.indices)
                size += pc.sum(lengths).as_py() or 0
            else:
                size += 16 * len(chunk)
        if size > bytes_max:
            raise RequestRejected(
                413, f"column {field.name[:100]!r} is a dictionary of {size} decoded bytes. Send plain values."
            )
        plain = column.cast(field.type.value_type)
        table = table.set_column(number, pa.field(field.name, plain.type, field.nullable), plain)
    return table
