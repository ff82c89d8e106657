"""The verb `query`: SQL over a table, and its answer in the form that the next program wants."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from icedb.cli.base.application import LOOK, Connection, Uri, time_option, verb
from icedb.cli.base.inputs import read_sql
from icedb.cli.render.query_output import BINARY, Form, destination, print_answer, write_answer

# What a person looks at; `--limit` shows more.
ROWS_SHOWN = 100
_NO_TABLE = "Catalog Error: Table with name"


@verb(LOOK)
def query(
    connection: Connection,
    uri: Uri,
    sql: Annotated[
        str | None, typer.Argument(metavar="SQL", help="A query over the table `t`; - reads it from standard input.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read the query from a file.")
    ] = None,
    as_of: Annotated[Any, time_option("--as-of", "The table as it was at a time.")] = None,
    where: Annotated[
        str | None, typer.Option(metavar="PREDICATE", help="`t` holds the rows for which it is true.")
    ] = None,
    form: Annotated[Form, typer.Option("--format", help="How the answer is written.")] = "table",
    to: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to a file, not to standard output.")
    ] = None,
    rows_max: Annotated[
        int | None,
        typer.Option(
            "--limit", min=0, metavar="NUMBER", help="Rows of a table; 0: all. Default: 100 on a terminal, else all."
        ),
    ] = None,
    sandbox: Annotated[
        bool,
        typer.Option("--sandbox/--no-sandbox", help="Whether the query reads the table alone, or other files, too."),
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Ask the table a DuckDB query; `final` is, beside `t`, what `t` will be when all is merged."""
    form = _form(form, to, json=json)
    if rows_max is not None and form != "table":
        raise typer.BadParameter("--limit is for tables; for other forms write LIMIT in the query.")
    text = _text(sql, file)
    table = connection.open(uri)
    result = table.query(text, as_of=as_of, where=where, sandbox=sandbox)
    if form == "table":
        shown = rows_max if rows_max is not None or not sys.stdout.isatty() else ROWS_SHOWN
        print_answer(result, limit=shown or None)
        return
    with destination(to) as bytes_:
        write_answer(result, form, bytes_)


def _text(sql: str | None, file: Path | None) -> str:
    if file is None and (sql == "-" or (sql is None and not sys.stdin.isatty())):
        return read_sql(None, Path("-"))
    if file is None and sql is None:
        raise typer.BadParameter("give a query such as 'SELECT count(*) FROM t', or --file.")
    return read_sql(sql, file)


def _form(form: Form, to: Path | None, *, json: bool) -> Form:
    if json:
        if form not in ("table", "json"):
            raise typer.BadParameter(f"--json and --format {form} are two forms; give one.")
        form = "json"
    if form == "table" and to is not None:
        raise typer.BadParameter("--output wants a --format: csv, json, jsonl, parquet or arrow.")
    if form in BINARY and to is None and sys.stdout.isatty():
        raise typer.BadParameter(f"{form} is not for a terminal: give --output, or redirect it.")
    return form
