"""What programs of IceDB v3 expect beside names and arguments: what a merge takes, how partitions are spelled."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote

import msgspec

from icedb.errors import InvalidOption
from icedb.format.names import stored_path
from icedb.handle import Handle, Part
from icedb.opening import path_columns
from icedb.rewriting import Rewrite

__all__ = ["column_name", "plan_v3_merge", "seeing_path", "stored_paths"]


def plan_v3_merge(
    parts: Iterable[Part], *, max_file_size: int, max_file_count: int, asc: bool = False
) -> Rewrite | None:
    """What one call of `IceDBv3.merge` merges. Pure. Paths that mean the same values are one partition."""
    partitions: dict[str, list[Part]] = {}
    for part in parts:
        partitions.setdefault(stored_path(part.partition), []).append(part)
    for path, of_partition in sorted(partitions.items(), key=lambda p: len(p[1]), reverse=not asc):
        taken: list[Part] = []
        size = 0
        for part in sorted(of_partition, key=lambda p: p.bytes):
            taken.append(part)
            size += part.bytes
            if size >= max_file_size or 1 < len(taken) >= max_file_count:
                break
        if len(taken) > 1:
            own = {p.partition for p in taken}
            return Rewrite(own.pop() if len(own) == 1 else path, tuple(taken))
    return None


def seeing_path(handle: Handle, rewrite: Rewrite) -> Handle:
    """The table whose queries see what the partition's path says."""
    return handle.with_spec(
        msgspec.structs.replace(handle.spec, path_columns=path_columns(rewrite.partition, [rewrite.partition]))
    )


def stored_paths(paths: Iterable[str]) -> dict[str, frozenset[str]]:
    """Partitions as a person writes them, and the paths under which each is stored: also one that v3 programs wrote."""
    stored: dict[str, frozenset[str]] = {}
    for path in sorted(set(paths)):
        stored[unquote(path)] = stored.get(unquote(path), frozenset()) | {path}
    return stored


def column_name(text: str) -> str:
    """A sort column as v3 programs write it: a name, or an identifier in double quotes."""
    if not isinstance(text, str):
        raise InvalidOption(f"the sort column {text!r} is no text. Give names of columns.")
    quoted = len(text) > 2 and text[0] == text[-1] == '"'
    return text[1:-1].replace('""', '"') if quoted else text
