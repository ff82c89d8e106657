"""The verbs that look at a table, and change nothing."""

from typing import Annotated

import typer

from icedb.cli.condition_page import info_document, print_info
from icedb.cli.frame import LOOK, Connection, Exit, Json, Uri, duration, limit, verb
from icedb.cli.output import output, show, write_json
from icedb.maintenance.condition import Thresholds

_LIMITS = Thresholds()


@verb(LOOK)
def info(
    connection: Connection,
    uri: Uri,
    hot_parts: Annotated[int, limit("Small parts of a partition that rows arrive in.")] = _LIMITS.hot_parts,
    cold_parts: Annotated[int, limit("Small parts of a partition that none arrive in.")] = _LIMITS.cold_parts,
    hot: Annotated[
        int | None, duration("--hot", "How long after its last rows a partition is hot; default: 1h.")
    ] = None,
    part_bytes_max: Annotated[int, limit("A part below this size is small.")] = _LIMITS.part_bytes_max,
    log_files: Annotated[int, limit("Log files that whoever opens the table reads.")] = _LIMITS.log_files,
    expired_bytes: Annotated[int, limit("Bytes that a cleanup would delete.")] = _LIMITS.expired_bytes,
    expired_objects: Annotated[int, limit("Objects that a cleanup would delete.")] = _LIMITS.expired_objects,
    json: Json = False,
) -> None:
    """What the table is like and which maintenance is due: from half of each threshold on. Changes nothing."""
    thresholds = Thresholds(
        hot_parts=hot_parts,
        cold_parts=cold_parts,
        hot_ms=_LIMITS.hot_ms if hot is None else hot,
        part_bytes_max=part_bytes_max,
        log_files=log_files,
        expired_bytes=expired_bytes,
        expired_objects=expired_objects,
    )
    condition = connection.open(uri).condition(thresholds)
    if json:
        write_json(info_document(condition, thresholds))
        return
    print_info(output(), condition, thresholds, uri=uri, connection=connection.flags)


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
