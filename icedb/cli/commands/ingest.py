"""The verb `ingest`: receive events over HTTP and commit them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table as Rows
from rich.text import Text

from icedb.cli.base.application import SERVE, Exit, Json, verb
from icedb.cli.render.output import output, print_message, write_json
from icedb.util.optional_deps import import_optional

if TYPE_CHECKING:
    from icedb.services.ingest.config.config_check import CheckedTable


@verb(SERVE, "icedb ingest --config ingest.toml")
def ingest(
    config: Annotated[Path, typer.Option("--config", metavar="FILE", help="Read this TOML file.", show_default=False)],
    check: Annotated[
        bool, typer.Option("--check", help="Check the file and open each of its tables, without serving.")
    ] = False,
    json: Json = False,
) -> None:
    """Receive events over HTTP and commit them, until SIGINT or SIGTERM. Status 2xx means committed."""
    if check:
        from icedb.services.ingest.config.config_check import check_config

        checked = check_config(config)
        if json:
            write_json(checked)
        else:
            output().print(_checked_rows(checked))
        for table in checked:
            for warning in table.warnings:
                print_message(Text.assemble(("warning: ", "bold yellow"), f"table '{table.table}': {warning}"))
        failed = [table for table in checked if table.error is not None]
        for table in failed:
            print_message(Text.assemble(("error: ", "bold red"), f"table '{table.table}': {table.error}"))
        if failed:
            raise typer.Exit(Exit.FAILED)
        return
    if json:
        raise typer.BadParameter("--json requires --check.")
    for module in ("starlette", "uvicorn", "uvloop", "h11", "prometheus_client"):
        import_optional(module, extra="ingest")
    from icedb.services.ingest.server import serve

    serve(config, on_ready=lambda line: print_message(Text(line)))


def _checked_rows(checked: Sequence["CheckedTable"]) -> Rows:
    rows = Rows("table", "uri", "tenants", "state", "rows", box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for one in checked:
        number = "" if one.rows is None else f"{one.rows:,}"
        rows.add_row(Text(one.table), Text(one.uri), Text(", ".join(one.tenants)), one.state or "failed", number)
    return rows
