"""Result of a query in the formats of `icedb query`, as a stream: no format holds the whole result in memory."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from rich.text import Text

from icedb.cli.render.output import output, print_message
from icedb.cli.render.text_tables import Cell, print_list, visible
from icedb.util.complete_files import complete_file
from icedb.util.counts import count_text

if TYPE_CHECKING:
    from icedb.sql.query_result import QueryResult

__all__ = ["BINARY_FORMATS", "OutputFormat", "open_destination", "print_result", "write_result"]

#: A text table; one line for each row as CSV or JSON; one JSON document; a Parquet file; an Arrow IPC stream.
OutputFormat = Literal["table", "csv", "json", "jsonl", "parquet", "arrow"]
#: Formats that are not printed on a terminal.
BINARY_FORMATS = ("parquet", "arrow")

# DuckDB writes these floating-point values. They are not valid in JSON.
_INVALID_JSON = re.compile(r"\b(NaN|Infinity)\b")
_QUOTE = '"'
# In SQL a relation's name is its row, unless a column of the result has the same name.
_ROW = "__icedb_row"
_QUOTED = re.compile(r'^$|[",\r\n]')
# DuckDB's numeric types, which are aligned to the right.
_NUMERIC = re.compile(r"(TINY|SMALL|BIG|HUGE|U|UTINY|USMALL|UBIG|UHUGE)?INT(EGER)?$|DECIMAL|FLOAT|DOUBLE|BIGNUM")


def print_result(result: QueryResult, *, limit: int | None) -> None:
    """Print the first `limit` rows as a table on standard output; None: all."""
    right = [_NUMERIC.match(type_) is not None for type_ in result.types]
    texts = result.query(_ROW, f"SELECT CAST(COLUMNS(*) AS VARCHAR) FROM {_ROW}")
    fetched = texts.fetchall() if limit is None else texts.fetchmany(limit + 1)
    rows = fetched if limit is None else fetched[:limit]
    names = [f">{visible(n)}" if at_right else visible(n) for n, at_right in zip(texts.columns, right, strict=True)]
    print_list(output(), names, ([_cell(value) for value in row] for row in rows))
    if len(fetched) > len(rows):
        first = f"These are the first {count_text(len(rows), 'row')}"
        print_message(Text(f"{first}; --limit 0 shows all, and --format csv streams them.", style="dim"))


def _cell(value: str | None) -> Cell:
    return Text("null", style="dim") if value is None else visible(value)


@contextmanager
def open_destination(path: Path | None) -> Iterator[IO[bytes]]:
    """Open standard output, or a file that appears only after it is complete."""
    if path is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with complete_file(path) as file:
        yield file


def write_result(result: QueryResult, form: OutputFormat, file: IO[bytes]) -> None:
    """Write the result in any format except a table."""
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
    """Yield CSV by RFC 4180 with line feeds. Null is an empty field, and empty text is a pair of quotes."""
    from icedb.sql.connections import quote_name

    columns = result.query(_ROW, f"FROM {_ROW}").columns  # DuckDB makes the names unique
    yield ",".join(f'"{n.replace(_QUOTE, 2 * _QUOTE)}"' if _QUOTED.search(n) else n for n in columns) + "\n"
    fields = ", ".join(_csv_field(f"({quote_name(name)}::VARCHAR)") for name in columns)
    yield from _texts(result.query(_ROW, f"SELECT concat_ws(',', {fields}) FROM {_ROW}"))


def _csv_field(text: str) -> str:
    """Return SQL that formats a text as a CSV field."""
    quoted = f"""'"' || replace({text}, '"', '""') || '"'"""
    return f"""CASE WHEN {text} IS NULL THEN '' WHEN {text} = '' OR regexp_matches({text}, '[",\\r\\n]') THEN {quoted}
        ELSE {text} END"""


def _json_lines(result: QueryResult) -> Iterator[str]:
    """Yield one JSON object for each row. NaN and infinity become null."""
    for text in _texts(result.query(_ROW, f"SELECT to_json({_ROW})::VARCHAR FROM {_ROW}")):
        yield "".join(map(_valid_json, text.splitlines(keepends=True))) if _INVALID_JSON.search(text) else text


def _valid_json(line: str) -> str:
    if not _INVALID_JSON.search(line):
        return line
    row = json.loads(line, parse_constant=lambda _: None)
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n"


def _json_document(result: QueryResult) -> Iterator[str]:
    """Yield one JSON list with one object a line."""
    before = "["
    for text in _json_lines(result):
        yield before + text.rstrip("\n").replace("\n", ",\n")
        before = ",\n"
    yield "]\n" if before != "[" else "[]\n"


def _texts(result: QueryResult) -> Iterator[str]:
    """Yield the texts of a result with one column, in batches, each text with a line feed."""
    for batch in result.to_arrow_reader():
        if batch.num_rows:
            yield "\n".join(batch.column(0).to_pylist()) + "\n"
