"""Verbs that check a table and change nothing: its health as text, a report as a page, and its integrity.

The default of each threshold is that of `icedb.Thresholds`.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from icedb.cli.base.application import INSPECT, Connection, Exit, Json, Uri, duration, limit, size, verb
from icedb.cli.render.output import output, print_message, write_json
from icedb.cli.render.report_text import show
from icedb.util.complete_files import complete_file

if TYPE_CHECKING:
    from icedb.operations.health.table_health import Thresholds


@dataclass(frozen=True, slots=True)
class ThresholdFlags:
    """The flags that set `icedb.Thresholds`."""

    hot_parts: Annotated[int | None, limit("Set the threshold for small parts of a hot partition.", default="64")] = (
        None
    )
    cold_parts: Annotated[int | None, limit("Set the threshold for small parts of a cold partition.", default="8")] = (
        None
    )
    hot_ms: Annotated[
        Any, duration("--hot", "Treat a partition as hot for this time after its last rows.", default="1h")
    ] = None
    part_bytes_max: Annotated[
        Any, size("--part-bytes-max", "Count a part below this size as small.", default="128 MiB")
    ] = None
    log_files: Annotated[int | None, limit("Set the threshold for log files that each open reads.", default="64")] = (
        None
    )
    expired_bytes: Annotated[
        Any, size("--expired-bytes", "Set the threshold for the bytes that cleanup would delete.", default="4 GB")
    ] = None
    expired_objects: Annotated[
        int | None, limit("Set the threshold for objects that cleanup would delete.", default="2,000")
    ] = None

    def thresholds(self) -> "Thresholds":
        """Return the thresholds, with the defaults of those that no flag sets."""
        from icedb.operations.health.table_health import Thresholds

        return Thresholds(**{name: value for name, value in asdict(self).items() if value is not None})


@verb(INSPECT, "icedb info s3://lake/events")
def info(
    connection: Connection,
    uri: Uri,
    limits: ThresholdFlags,
    json: Json = False,
) -> None:
    """Show the health of the table, and the maintenance that is due (from half of each threshold on)."""
    from icedb.cli.render.health_page import info_document, print_info

    thresholds = limits.thresholds()
    health = connection.open(uri).health(thresholds)
    if json:
        write_json(info_document(health, thresholds))
        return
    print_info(output(), health, thresholds, uri=uri, connection=connection.flags)


@verb(INSPECT, "icedb report s3://lake/events --output events.html")
def report(
    connection: Connection,
    uri: Uri,
    to: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="Write the page to this file.", show_default=False),
    ],
    limits: ThresholdFlags,
) -> None:
    """Write a page about the table as one HTML file: partitions, commits, snapshots, schema, and maintenance due."""
    from icedb.operations.report.document import document_of
    from icedb.operations.report.page import render_page
    from icedb.operations.report.table_facts import read_facts

    facts = read_facts(connection.open(uri).handle, limits.thresholds())
    document = document_of(facts, connection=connection.flags)
    with complete_file(to) as file:
        file.write(render_page(document).encode())
    due = f"Most due: {document.due[0].name}. Run: {document.due[0].command}" if document.due else "Nothing is due."
    print_message(Text(f"Wrote {to.resolve()}. {due}"))


@verb(INSPECT, "icedb verify s3://lake/events --deep")
def verify(
    connection: Connection,
    uri: Uri,
    deep: Annotated[bool, typer.Option("--deep", help="Fetch every part, and check its digest and all rows.")] = False,
    footers: Annotated[
        bool, typer.Option("--footers/--no-footers", help="Check the row count of each part, or open no part.")
    ] = True,
    json: Json = False,
) -> None:
    """Check every object of the table and list all problems. Exit with status 1 if there is an error."""
    report = connection.open(uri).verify(deep=deep, footers=footers)
    show(report, json=json)
    if not report.ok:
        raise typer.Exit(Exit.PROBLEMS)
