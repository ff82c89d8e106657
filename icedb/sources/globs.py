"""Resolution of paths and globs into files, their format, and the Hive partition columns in their paths."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import duckdb

from icedb.errors import AccessDenied, InvalidBatch, StoreUnavailable
from icedb.sql.connections import quote_text

__all__ = ["Files", "Format", "find_files", "is_paths"]

Format = Literal["parquet", "json", "csv"]

_SUFFIXES: dict[str, Format] = {
    ".parquet": "parquet",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
}
_COMPRESSED = (".gz", ".zst")
_SHOWN_MAX = 3
_NULL = "__HIVE_DEFAULT_PARTITION__"
_FOLDER = re.compile(r"^([^=]+)=(.*)$")


@dataclass(frozen=True, slots=True)
class Files:
    """Files of one format, in the caller's order, with the paths that DuckDB opens."""

    format: Format
    paths: tuple[str, ...]

    @property
    def summary(self) -> str:
        """The first few files, for messages."""
        more = len(self.paths) - _SHOWN_MAX
        return ", ".join(f"'{p}'" for p in self.paths[:_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")

    def partition_values(self) -> dict[str, list[str | None]]:
        """Return column -> its value for each file, from folders `name=value`; empty unless all paths have the same."""
        folders = [_folders(path) for path in self.paths]
        names = list(folders[0])
        if any(list(f) != names for f in folders):
            return {}
        return {n: [f[n] for f in folders] for n in names}

    def partition_types(self, table_columns: Mapping[str, str]) -> dict[str, str]:
        """Return column -> DuckDB type of the values in folders; text for a column whose type the table determines."""
        return {n: "VARCHAR" if n in table_columns else _type_of(v) for n, v in self.partition_values().items()}


def _folders(path: str) -> dict[str, str | None]:
    matches = (_FOLDER.match(segment) for segment in path.split("/")[:-1])
    return {m[1]: None if m[2] == _NULL else unquote(m[2]) for m in matches if m}


def _type_of(values: Sequence[str | None]) -> str:
    """Return the type that writes all texts exactly as they are."""
    texts = [v for v in values if v is not None]
    if texts and all(re.fullmatch(r"0|-?[1-9]\d{0,17}", v) for v in texts):
        return "BIGINT"
    return "DATE" if texts and all(map(_is_date, texts)) else "VARCHAR"


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def is_paths(data: object) -> bool:
    """Return whether the data are paths of files, not rows."""
    if isinstance(data, list | tuple):
        return bool(data) and all(isinstance(d, str | os.PathLike) for d in data)
    return isinstance(data, str | os.PathLike)


def find_files(con: duckdb.DuckDBPyConnection, data: object, *, table: str, attach: Callable[[str], None]) -> Files:
    """Find the files that paths or globs name. `attach` opens a bucket to `con`. Raises InvalidBatch."""
    inputs: list[Any] = list(data) if isinstance(data, list | tuple) else [data]
    texts = [os.fspath(path) for path in inputs]
    for text in texts:
        if not isinstance(text, str) or "\0" in text:
            raise InvalidBatch(f"{table}: {text!r} is no path. Correct it.")
    for bucket in dict.fromkeys(b for b in map(_bucket, texts) if b):
        attach(bucket)
    paths = [path for text in texts for path in _expand(con, text, table)]
    formats = {path: format_of(path) for path in paths}
    for path, format_ in formats.items():
        if format_ is None:
            raise _no_format(path, table)
    if len(set(formats.values())) > 1:
        raise InvalidBatch(
            f"{table}: the files are of several formats ({', '.join(sorted(map(str, set(formats.values()))))}). "
            "Pass files of one format at a time."
        )
    return Files(next(f for f in formats.values() if f is not None), tuple(paths))


def format_of(path: str) -> Format | None:
    """Return the format by a path's suffix, before the suffix of a compression; None if there is none."""
    name = path.lower()
    inner = next((name.removesuffix(c) for c in _COMPRESSED if name.endswith(c)), name)
    format_ = _SUFFIXES.get(os.path.splitext(inner)[1])  # noqa: PTH122  # an address is no Path
    return None if format_ == "parquet" and inner != name else format_


def _bucket(text: str) -> str | None:
    scheme, separator, rest = text.partition("://")
    return rest.partition("/")[0] if separator and scheme.lower() in ("s3", "s3a") else None


def _expand(con: duckdb.DuckDBPyConnection, text: str, table: str) -> list[str]:
    """Return the files of one path or glob, with the paths that DuckDB opens."""
    is_remote = _bucket(text) is not None
    path = _address(text, table)
    is_glob = any(c in path for c in "*?[")
    if not is_glob and not is_remote:
        try:
            Path(path).stat()
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:  # too long, below a file, or without permission
            if format_of(path) is None:
                raise _no_format(text, table) from None
            reason = getattr(error, "strerror", None) or error
            raise InvalidBatch(f"{table}: the file '{text}' cannot be opened ({reason}). Correct the path.") from None
        if Path(path).is_dir():
            raise InvalidBatch(f"{table}: '{text}' is a folder. Give a glob of the files in it: '{text}/*.parquet'.")
        if not Path(path).is_file():
            raise (
                _no_format(text, table)
                if format_of(path) is None
                else InvalidBatch(f"{table}: there is no file '{text}'. Correct the path.")
            )
        return [path]
    if not is_glob:
        if format_of(path) is None:
            raise _no_format(text, table)
        return [path]
    try:
        files = [str(row[0]) for row in con.execute(f"SELECT file FROM glob({quote_text(path)})").fetchall()]
    except duckdb.Error as error:
        if getattr(error, "status_code", None) in (401, 403) or "403" in str(error):
            raise AccessDenied(f"{table}: the store rejects listing '{text}'. Check the credentials.") from None
        reason = str(error).splitlines()[0].rstrip(".")
        if "Could not connect" in reason or "Could not establish connection" in reason:
            raise StoreUnavailable(f"{table}: '{text}' cannot be listed now ({reason}). Retry.") from None
        raise InvalidBatch(f"{table}: the files of '{text}' cannot be listed ({reason}). Correct the path.") from None
    if not files:
        raise InvalidBatch(f"{table}: no file matches '{text}'. Correct the glob.")
    for name in files:
        if any(c in name for c in "*?["):
            raise InvalidBatch(f"{table}: '{name}' has one of *, ?, [ in its name, so it would be a glob. Rename it.")
    return files


def _address(text: str, table: str) -> str:
    scheme, separator, rest = text.partition("://")
    if not separator:
        return str(Path(text).expanduser())
    if scheme.lower() in ("s3", "s3a"):
        return f"s3://{rest}"
    if scheme.lower() == "file" and urlsplit(text).netloc in ("", "localhost"):
        return unquote("/" + rest.partition("/")[2])
    raise InvalidBatch(f"{table}: files can be read from s3:// and from folders of this machine, not from {scheme}://.")


def _no_format(text: str, table: str) -> InvalidBatch:
    """Return the error for a text without a supported suffix, which the caller may have meant as rows."""
    return InvalidBatch(
        f"{table}: cannot take rows from a builtins.str that is no path of Parquet (.parquet), JSON lines (.jsonl, "
        f".ndjson, .json) or CSV (.csv, .tsv): {text[:200]!r}. The last two may end in .gz or .zst."
    )
