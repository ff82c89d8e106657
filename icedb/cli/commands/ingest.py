"""The verb that takes events over HTTP: until SIGINT or SIGTERM."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table as Rows
from rich.text import Text

from icedb.cli.base.application import SERVE, Exit, Json, verb
from icedb.cli.render.output import output, tell, write_json
from icedb.util.optional_deps import imported

if TYPE_CHECKING:
    from icedb.services.ingest.config.config_check import CheckedTable


@verb(SERVE)
def ingest(
    config: Annotated[Path, typer.Option("--config", metavar="FILE", help="The TOML file.", show_default=False)],
    check: Annotated[
        bool, typer.Option("--check", help="Do not serve: open every table that the file names, and tell how it is.")
    ] = False,
    json: Json = False,
) -> None:
    """Take events over HTTP and commit them: an answer of 2xx means committed. Until SIGINT or SIGTERM."""
    if check:
        from icedb.services.ingest.config.config_check import check_config

        checked = check_config(config)
        if json:
            write_json(checked)
        else:
            output().print(_checked_rows(checked))
        for table in checked:
            for warning in table.warnings:
                tell(Text.assemble(("warning: ", "bold yellow"), f"table '{table.table}': {warning}"))
        wrong = [table for table in checked if table.error is not None]
        for table in wrong:
            tell(Text.assemble(("error: ", "bold red"), f"table '{table.table}': {table.error}"))
        if wrong:
            raise typer.Exit(Exit.FAILED)
        return
    if json:
        raise typer.BadParameter("--json goes with --check.")
    for module in ("starlette", "uvicorn", "uvloop", "h11", "prometheus_client"):
        imported(module, extra="ingest")
    from icedb.services.ingest.server import serve

    serve(config, tell=lambda line: tell(Text(line)))


def _checked_rows(checked: Sequence["CheckedTable"]) -> Rows:
    rows = Rows("table", "uri", "tenants", "state", "rows", box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for one in checked:
        number = "" if one.rows is None else f"{one.rows:,}"
        rows.add_row(Text(one.table), Text(one.uri), Text(", ".join(one.tenants)), one.state or "wrong", number)
    return rows
