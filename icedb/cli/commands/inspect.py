"""The verbs that judge a table, and change nothing: what it is like, drawn and told, and whether it is sound.

A threshold that is not given is that of `icedb.Thresholds`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from icedb.cli.base.application import LOOK, Connection, Exit, Json, Uri, duration, limit, verb
from icedb.cli.render.output import output, show, tell, write_json

if TYPE_CHECKING:
    from icedb.operations.health.table_health import TableHealth, Thresholds

HotParts = Annotated[int | None, limit("Small parts of a partition that rows arrive in; default: 64.")]
ColdParts = Annotated[int | None, limit("Small parts of a partition that none arrive in; default: 8.")]
Hot = Annotated[Any, duration("--hot", "How long after its last rows a partition is hot; default: 1h.")]
PartBytesMax = Annotated[int | None, limit("A part below this size is small; default: 128 MiB.")]
LogFiles = Annotated[int | None, limit("Log files that whoever opens the table reads; default: 64.")]
ExpiredBytes = Annotated[int | None, limit("Bytes that a cleanup would delete; default: 4,000,000,000.")]
ExpiredObjects = Annotated[int | None, limit("Objects that a cleanup would delete; default: 2,000.")]


def _judged(connection: Connection, uri: str, **given: Any) -> "tuple[TableHealth, Thresholds]":
    """A table's condition by the thresholds that are given."""
    from icedb.operations.health.table_health import Thresholds

    thresholds = Thresholds(**{name: value for name, value in given.items() if value is not None})
    return connection.open(uri).health(thresholds), thresholds


@verb(LOOK)
def info(
    connection: Connection,
    uri: Uri,
    hot_parts: HotParts = None,
    cold_parts: ColdParts = None,
    hot: Hot = None,
    part_bytes_max: PartBytesMax = None,
    log_files: LogFiles = None,
    expired_bytes: ExpiredBytes = None,
    expired_objects: ExpiredObjects = None,
    json: Json = False,
) -> None:
    """Draw what the table is like, and tell which maintenance is due: from half of each threshold on."""
    from icedb.cli.render.health_page import info_document, print_info

    health, thresholds = _judged(
        connection, uri, hot_parts=hot_parts, cold_parts=cold_parts, hot_ms=hot, part_bytes_max=part_bytes_max,
        log_files=log_files, expired_bytes=expired_bytes, expired_objects=expired_objects,
    )  # fmt: skip
    if json:
        write_json(info_document(health, thresholds))
        return
    print_info(output(), health, thresholds, uri=uri, connection=connection.flags)


@verb(LOOK)
def plot(
    connection: Connection,
    uri: Uri,
    to: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The picture, a PNG.", show_default=False)],
    hot_parts: HotParts = None,
    cold_parts: ColdParts = None,
    hot: Hot = None,
    part_bytes_max: PartBytesMax = None,
    log_files: LogFiles = None,
    expired_bytes: ExpiredBytes = None,
    expired_objects: ExpiredObjects = None,
) -> None:
    """Write what `info` draws as a picture."""
    from icedb.cli.render.health_plot import draw_health

    if to.suffix.lower() != ".png":
        raise typer.BadParameter(f"--output: the picture is a PNG; call it {to.stem or 'table'}.png.")
    health, thresholds = _judged(
        connection, uri, hot_parts=hot_parts, cold_parts=cold_parts, hot_ms=hot, part_bytes_max=part_bytes_max,
        log_files=log_files, expired_bytes=expired_bytes, expired_objects=expired_objects,
    )  # fmt: skip
    to.write_bytes(draw_health(health, thresholds))
    tell(Text(f"{to} is written."))


@verb(LOOK)
def verify(
    connection: Connection,
    uri: Uri,
    deep: Annotated[bool, typer.Option("--deep", help="Fetch every part and compare digests and all rows.")] = False,
    footers: Annotated[
        bool, typer.Option("--footers/--no-footers", help="Compare the parts' row counts, or open no part at all.")
    ] = True,
    json: Json = False,
) -> None:
    """Look at every object of a table, change nothing, list every problem. Exit status 1 if there is an error."""
    report = connection.open(uri).verify(deep=deep, footers=footers)
    show(report, json=json)
    if not report.ok:
        raise typer.Exit(Exit.PROBLEMS)
