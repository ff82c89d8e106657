"""The name of the operation that made a commit, as headers record it.

The header of a commit's own log file has it as `op`. A log file that replaces others carries the operations of the
commits whose parts it names in `ops`: operation to times. It omits plain inserts, because the parts alone show them.

Both keys are informational. A value of another type, or a text that is not a plain name, counts as absent. An unknown
plain name is carried for programs that know it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from icedb.format.records import Encoded, LogFile, Operations, TimeMs

__all__ = ["carried_operations", "decode_operation", "decode_operations", "encode_operations"]

_IMPLIED = frozenset({"", "insert"})
_NAME = re.compile(r"[a-z][a-z_]{0,31}")
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_text = msgspec.json.Decoder(str)
_times_of = msgspec.json.Decoder(dict[str, tuple[TimeMs, ...]])


def decode_operation(encoded: Encoded) -> str:
    """Return the operation that a header names; empty if it has none or not a plain name."""
    if isinstance(encoded, msgspec.UnsetType):
        return ""
    try:
        text = _text.decode(encoded)
    except _UNREADABLE:
        return ""
    return text if _NAME.fullmatch(text) else ""


def decode_operations(encoded: Encoded) -> Operations:
    """Return time -> operation of the commits that a header carries."""
    if isinstance(encoded, msgspec.UnsetType):
        return {}
    try:
        times_of = _times_of.decode(encoded)
    except _UNREADABLE:
        return {}
    return {at_ms: name for name, times in times_of.items() if _NAME.fullmatch(name) for at_ms in times}


def encode_operations(operations: Operations) -> Encoded:
    """Return the header's value for carried operations."""
    if not operations:
        return msgspec.UNSET
    times_of: dict[str, list[int]] = {}
    for at_ms, name in sorted(operations.items()):
        times_of.setdefault(name, []).append(at_ms)
    return msgspec.Raw(msgspec.json.encode(times_of, order="sorted"))


def carried_operations(files: Iterable[LogFile]) -> dict[int, str]:
    """Return time -> operation of the commits that these log files are or carry, except plain inserts.

    A time with several operations is omitted, because two commits had the same time.
    """
    united: dict[int, str] = {}
    for file in files:
        for at_ms, name in {**file.operations, file.t_ms: file.operation}.items():
            if united.setdefault(at_ms, name) != name:
                united[at_ms] = ""
    return {at_ms: name for at_ms, name in united.items() if name not in _IMPLIED}
