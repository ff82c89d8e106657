"""The verbs that serve: until SIGINT or SIGTERM."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table as Rows
from rich.text import Text

from icedb.cli.base.application import SERVE, Exit, verb
from icedb.cli.render.output import output, tell, write_json
from icedb.util.optional_deps import imported

if TYPE_CHECKING:
    from icedb.services.proxy.config.config_check import CheckedBucket


@verb(SERVE)
def proxy(
    config: Annotated[Path, typer.Option("--config", metavar="FILE", help="The TOML file.", show_default=False)],
    check: Annotated[
        bool,
        typer.Option("--check", help="Do not serve: open every table that the file names, and tell what is shown."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="With --check: print one JSON document.")] = False,
) -> None:
    """Serve tables as buckets of S3, read-only: each tenant's own live parts. Until SIGINT or SIGTERM."""
    if check:
        from icedb.services.proxy.config.config_check import check_config

        checked = check_config(config)
        if json:
            write_json(checked)
        else:
            output().print(_checked_rows(checked))
        for bucket in checked:
            if bucket.warning is not None:
                tell(
                    Text.assemble(
                        ("warning: ", "yellow"), f"{bucket.tenant}, bucket '{bucket.bucket}': {bucket.warning}"
                    )
                )
        wrong = [bucket for bucket in checked if bucket.error is not None]
        for bucket in wrong:
            tell(Text.assemble(("error: ", "bold red"), f"{bucket.tenant}, bucket '{bucket.bucket}': {bucket.error}"))
        if wrong:
            raise typer.Exit(Exit.FAILED)
        return
    if json:
        raise typer.BadParameter("--json goes with --check.")
    for module in ("starlette", "uvicorn", "uvloop", "h11", "prometheus_client", "httpx"):
        imported(module, extra="proxy")
    from icedb.services.proxy.server import serve

    serve(config, tell=lambda line: tell(Text(line)))


def _checked_rows(checked: Sequence["CheckedBucket"]) -> Rows:
    rows = Rows("tenant", "bucket", "table", "parts", "rows", box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for one in checked:
        figures = ("unknown" if n is None else f"{n:,}" for n in (one.parts, one.rows))
        rows.add_row(Text(one.tenant), Text(one.bucket), Text(one.table), *figures)
    return rows
