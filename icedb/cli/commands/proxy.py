"""The verb `proxy`: serve tables as read-only S3 buckets."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table as Rows
from rich.text import Text

from icedb.cli.base.application import SERVE, Exit, verb
from icedb.cli.render.output import output, print_message, write_json
from icedb.util.optional_deps import import_optional

if TYPE_CHECKING:
    from icedb.services.proxy.config.config_check import CheckedBucket


@verb(SERVE, "icedb proxy --config proxy.toml")
def proxy(
    config: Annotated[Path, typer.Option("--config", metavar="FILE", help="Read this TOML file.", show_default=False)],
    check: Annotated[
        bool,
        typer.Option("--check", help="Check the file and open each of its tables, without serving."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="With --check: print the result as one JSON document.")] = False,
) -> None:
    """Serve the live parts of tables as read-only S3 buckets, one set a tenant, until SIGINT or SIGTERM."""
    if check:
        from icedb.services.proxy.config.config_check import check_config

        checked = check_config(config)
        if json:
            write_json(checked)
        else:
            output().print(_checked_rows(checked))
        for bucket in checked:
            if bucket.warning is not None:
                print_message(
                    Text.assemble(
                        ("warning: ", "yellow"), f"{bucket.tenant}, bucket '{bucket.bucket}': {bucket.warning}"
                    )
                )
        failed = [bucket for bucket in checked if bucket.error is not None]
        for bucket in failed:
            print_message(
                Text.assemble(("error: ", "bold red"), f"{bucket.tenant}, bucket '{bucket.bucket}': {bucket.error}")
            )
        if failed:
            raise typer.Exit(Exit.FAILED)
        return
    if json:
        raise typer.BadParameter("--json requires --check.")
    for module in ("starlette", "uvicorn", "uvloop", "h11", "prometheus_client", "httpx"):
        import_optional(module, extra="proxy")
    from icedb.services.proxy.server import serve

    serve(config, on_ready=lambda line: print_message(Text(line)))


def _checked_rows(checked: Sequence["CheckedBucket"]) -> Rows:
    rows = Rows("tenant", "bucket", "table", "parts", "rows", box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for one in checked:
        figures = ("unknown" if n is None else f"{n:,}" for n in (one.parts, one.rows))
        rows.add_row(Text(one.tenant), Text(one.bucket), Text(one.table), *figures)
    return rows
