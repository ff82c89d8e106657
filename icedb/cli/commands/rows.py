"""Verbs that change rows by key or by a predicate: upsert, update."""

from typing import Annotated, Literal

import typer

from icedb.cli.base.application import WRITE, Connection, DryRun, Json, Uri, Yes, run, verb
from icedb.cli.base.inputs import Files, Format, Memory, Transaction, rows_of
from icedb.cli.base.spec_options import several

__all__: list[str] = []


@verb(WRITE, "icedb upsert s3://lake/users changes.jsonl --on id --delete-where \"op = 'd'\" --order-by lsn")
def upsert(
    connection: Connection,
    uri: Uri,
    files: Files,
    on: Annotated[list[str], several("--on", "COLUMN", "Key column. Rows with the key of a stored row update it.")],
    when_matched: Annotated[
        Literal["update", "skip"],
        typer.Option("--when-matched", help="Update stored rows, or skip them and insert only rows with new keys."),
    ] = "update",
    columns: Annotated[
        list[str] | None, several("--column", "COLUMN", "Update only this column (default: all columns of the input).")
    ] = None,
    delete_where: Annotated[
        str | None,
        typer.Option("--delete-where", help="Delete the stored rows of input rows that match this DuckDB predicate."),
    ] = None,
    order_by: Annotated[
        list[str] | None,
        several("--order-by", "COLUMN", "Of input rows with one key, use the one with the last value."),
    ] = None,
    on_conflict: Annotated[
        Literal["raise", "cast"],
        typer.Option("--on-conflict", help="Reject values of another type, or cast those that keep their meaning."),
    ] = "raise",
    txn: Transaction = None,
    memory_bytes: Memory = None,
    format: Format = None,  # noqa: A002  the flag's name
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Insert rows with new keys, and update or delete the stored rows with the others, in one commit."""
    table = connection.open(uri)
    with rows_of(files, format) as paths:
        run(
            lambda dry: table.upsert(
                paths,
                on,
                when_matched=when_matched,
                columns=columns or None,
                delete_where=delete_where,
                order_by=order_by or (),
                on_conflict=on_conflict,
                txn=txn,
                memory_bytes=memory_bytes,
                dry_run=dry,
            ),
            dry_run=dry_run,
            yes=yes or (when_matched == "skip" and delete_where is None),
            json=json,
        )


def _assignment(text: str) -> tuple[str, str]:
    column, equals, expression = text.partition("=")
    if not (column.strip() and equals and expression.strip()):
        raise typer.BadParameter(f'{text!r} is not a column and an expression. Write --set "price = price * 2".')
    return column.strip(), expression.strip()


@verb(WRITE, "icedb update s3://lake/users --set \"plan = 'trial'\" --where 'visits < 3'")
def update(
    connection: Connection,
    uri: Uri,
    set_: Annotated[
        list[str],
        several("--set", "COLUMN=EXPRESSION", "Set a column to a DuckDB expression over the columns of the row."),
    ],
    where: Annotated[
        str, typer.Option(help="Update the rows that match this DuckDB predicate; true for all.", show_default=False)
    ],
    txn: Transaction = None,
    memory_bytes: Memory = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Set columns of the rows that match a predicate, in one commit."""
    pairs = [_assignment(text) for text in set_]
    values = dict(pairs)
    if len(values) < len(pairs):
        raise typer.BadParameter(f"--set names a column twice: {[column for column, _ in pairs]}.")
    table = connection.open(uri)
    run(
        lambda dry: table.update(values, where, txn=txn, memory_bytes=memory_bytes, dry_run=dry),
        dry_run=dry_run,
        yes=yes,
        json=json,
    )
