"""The answer to a query in the forms of `icedb query`, written as it is read: none of them is held in memory whole."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOTDIR
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from rich.text import Text

from icedb.cli.render.output import output, tell
from icedb.cli.render.text_tables import Cell, count_text, print_list, visible

if TYPE_CHECKING:
    from icedb.sql.query_result import QueryResult

__all__ = ["BINARY", "Form", "destination", "print_answer", "write_answer"]

#: As a table for people; one line for each row as CSV or JSON; one JSON document; a Parquet file; an Arrow IPC stream.
Form = Literal["table", "csv", "json", "jsonl", "parquet", "arrow"]
#: What a terminal cannot show.
BINARY = ("parquet", "arrow")

# DuckDB writes these of floating-point numbers; JSON knows none of them.
_NO_JSON = re.compile(r"\b(NaN|Infinity)\b")
_QUOTE = '"'
# A relation's name stands for its row, unless a column of the answer has the name.
_ROW = "__icedb_row"
_QUOTED = re.compile(r'^$|[",\r\n]')
# DuckDB's types of numbers: they stand at the right.
_NUMBERS = re.compile(r"(TINY|SMALL|BIG|HUGE|U|UTINY|USMALL|UBIG|UHUGE)?INT(EGER)?$|DECIMAL|FLOAT|DOUBLE|BIGNUM")


def print_answer(result: QueryResult, *, limit: int | None) -> None:
    """As a table on standard output: the first `limit` rows, or all."""
    right = [_NUMBERS.match(type_) is not None for type_ in result.types]
    texts = result.query(_ROW, f"SELECT CAST(COLUMNS(*) AS VARCHAR) FROM {_ROW}")
    found = texts.fetchall() if limit is None else texts.fetchmany(limit + 1)
    shown = found if limit is None else found[:limit]
    names = [f">{visible(n)}" if at_right else visible(n) for n, at_right in zip(texts.columns, right, strict=True)]
    print_list(output(), names, ([_cell(value) for value in row] for row in shown))
    if len(found) > len(shown):
        first = f"These are the first {count_text(len(shown), 'row')}"
        tell(Text(f"{first}; --limit 0 shows all, and --format csv writes them as they come.", style="dim"))


def _cell(value: str | None) -> Cell:
    return Text("null", style="dim") if value is None else visible(value)


@contextmanager
def destination(path: Path | None) -> Iterator[IO[bytes]]:
    """Where bytes go: standard output, or a file, which is there only when it is whole."""
    if path is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if not path.parent.is_dir():
        raise NotADirectoryError(ENOTDIR, "there is no such folder", str(path.parent))
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        with unfinished.open("wb") as file:
            yield file
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_answer(result: QueryResult, form: Form, file: IO[bytes]) -> None:
    """As bytes, in any form but a table."""
    match form:
        case "csv":
            _write_lines(file, _csv_lines(result))
        case "jsonl":
            _write_lines(file, _json_lines(result))
        case "json":
            _write_lines(file, _json_document(result))
        case "parquet":
            import pyarrow.parquet as pq

            reader = result.to_arrow_reader()
            with pq.ParquetWriter(file, reader.schema, compression="zstd") as writer:
                for batch in reader:
                    writer.write_batch(batch)
        case _:
            import pyarrow as pa

            reader = result.to_arrow_reader()
            with pa.ipc.new_stream(file, reader.schema) as stream:
                for batch in reader:
                    stream.write_batch(batch)


def _write_lines(file: IO[bytes], batches: Iterator[str]) -> None:
    for text in batches:
        file.write(text.encode())


def _csv_lines(result: QueryResult) -> Iterator[str]:
    """RFC 4180 with line feeds: null is nothing, and the empty text a pair of quotes."""
    from icedb.sql.connections import quote_name

    columns = result.query(_ROW, f"FROM {_ROW}").columns  # DuckDB gives each a name of its own
    yield ",".join(f'"{n.replace(_QUOTE, 2 * _QUOTE)}"' if _QUOTED.search(n) else n for n in columns) + "\n"
    fields = ", ".join(_csv_field(f"({quote_name(name)}::VARCHAR)") for name in columns)
    yield from _texts(result.query(_ROW, f"SELECT concat_ws(',', {fields}) FROM {_ROW}"))


def _csv_field(text: str) -> str:
    """SQL that makes a field of a text."""
    quoted = f"""'"' || replace({text}, '"', '""') || '"'"""
    return f"""CASE WHEN {text} IS NULL THEN '' WHEN {text} = '' OR regexp_matches({text}, '[",\\r\\n]') THEN {quoted}
        ELSE {text} END"""


def _json_lines(result: QueryResult) -> Iterator[str]:
    """An object for each row. Numbers that JSON does not know are null."""
    for text in _texts(result.query(_ROW, f"SELECT to_json({_ROW})::VARCHAR FROM {_ROW}")):
        yield "".join(map(_sound, text.splitlines(keepends=True))) if _NO_JSON.search(text) else text


def _sound(line: str) -> str:
    if not _NO_JSON.search(line):
        return line
    row = json.loads(line, parse_constant=lambda _: None)
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n"


def _json_document(result: QueryResult) -> Iterator[str]:
    """One list, an object to a line."""
    before = "["
    for text in _json_lines(result):
        yield before + text.rstrip("\n").replace("\n", ",\n")
        before = ",\n"
    yield "]\n" if before != "[" else "[]\n"


def _texts(result: QueryResult) -> Iterator[str]:
    """The texts of an answer with one column, each with a line feed, many at a time."""
    for batch in result.to_arrow_reader():
        if batch.num_rows:
            yield "\n".join(batch.column(0).to_pylist()) + "\n"
