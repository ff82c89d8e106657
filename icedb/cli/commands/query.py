"""The verb `query`: run SQL over a table and write the result in one of several formats."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from icedb.cli.base.application import INSPECT, Connection, Uri, time_option, verb
from icedb.cli.base.inputs import read_sql
from icedb.cli.render.query_output import BINARY_FORMATS, OutputFormat, open_destination, print_result, write_result

# Rows that a terminal shows without `--limit`.
TERMINAL_ROWS = 100
_NO_TABLE = "Catalog Error: Table with name"


@verb(INSPECT, "icedb query s3://lake/events 'SELECT count(*) FROM t'")
def query(
    connection: Connection,
    uri: Uri,
    sql: Annotated[
        str | None,
        typer.Argument(
            metavar="SQL",
            help="Query over the relation t (the table) or final (the table as if fully merged); - is standard input.",
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read the query from a file.")
    ] = None,
    as_of: Annotated[Any, time_option("--as-of", "Query the table as of this time.", default="now")] = None,
    where: Annotated[
        str | None, typer.Option(metavar="PREDICATE", help="Restrict t to the rows that match this predicate.")
    ] = None,
    form: Annotated[OutputFormat, typer.Option("--format", help="Choose the format of the result.")] = "table",
    to: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to a file instead of standard output.")
    ] = None,
    rows_max: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=0,
            metavar="NUMBER",
            help="Print at most this number of rows of a table; 0: all.",
            show_default="100 on a terminal, else all",
        ),
    ] = None,
    sandbox: Annotated[
        bool,
        typer.Option("--sandbox/--no-sandbox", help="Allow the query to read only the table, or also other files."),
    ] = True,
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON document, as --format json does.")
    ] = False,
) -> None:
    """Run a DuckDB query over the table and print its result."""
    form = _form(form, to, json=json)
    if rows_max is not None and form != "table":
        raise typer.BadParameter("--limit requires --format table. For other formats, write LIMIT in the query.")
    text = _text(sql, file)
    table = connection.open(uri)
    result = table.query(text, as_of=as_of, where=where, sandbox=sandbox)
    if form == "table":
        rows = rows_max if rows_max is not None or not sys.stdout.isatty() else TERMINAL_ROWS
        print_result(result, limit=rows or None)
        return
    with open_destination(to) as file_:
        write_result(result, form, file_)


def _text(sql: str | None, file: Path | None) -> str:
    if file is None and (sql == "-" or (sql is None and not sys.stdin.isatty())):
        return read_sql(None, Path("-"))
    if file is None and sql is None:
        raise typer.BadParameter("Pass a query such as 'SELECT count(*) FROM t', or --file.")
    return read_sql(sql, file)


def _form(form: OutputFormat, to: Path | None, *, json: bool) -> OutputFormat:
    if json:
        if form not in ("table", "json"):
            raise typer.BadParameter(f"--json and --format {form} exclude each other.")
        form = "json"
    if form == "table" and to is not None:
        raise typer.BadParameter("--output requires a --format: csv, json, jsonl, parquet or arrow.")
    if form in BINARY_FORMATS and to is None and sys.stdout.isatty():
        raise typer.BadParameter(
            f"{form} is binary and cannot be printed on a terminal. Pass --output, or redirect standard output."
        )
    return form
