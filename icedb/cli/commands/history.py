"""Verbs for the history of a table: its commits, and the difference between two times."""

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

from icedb.cli.base.application import INSPECT, Connection, Json, Uri, time_option, verb
from icedb.cli.render.output import output, write_json
from icedb.cli.render.text_tables import Cell, print_list, signed_text
from icedb.util.counts import count_text, number_text, size_text
from icedb.util.times import iso_text

if TYPE_CHECKING:
    from icedb.reader.diff import Diff, PartitionDiff
    from icedb.reader.history import CommitInfo

_STYLES = {
    "drop": "red",
    "delete": "red",
    "overwrite": "yellow",
    "restore": "yellow",
    "merge": "blue",
    "insert": "green",
}

# Indexes of the columns that a narrow terminal hides.
_BYTES, _PARTITIONS, _WRITER = (6, 7), 8, 10


@verb(INSPECT, "icedb history s3://lake/events --since 24h")
def history(
    connection: Connection,
    uri: Uri,
    commits_max: Annotated[
        int, typer.Option("--limit", min=0, metavar="NUMBER", help="List at most this number; 0: all.")
    ] = 20,
    since: Annotated[Any, time_option("--since", "List commits of this time and later.")] = None,
    json: Json = False,
) -> None:
    """List the commits, newest first, with the parts, rows and bytes that each added and removed."""
    table = connection.open(uri)
    commits = table.history(limit=commits_max or None, since=since)
    if json:
        write_json(commits)
        return
    console = output()
    print_list(
        console,
        ["time", "did", ">parts", "", ">rows", "", ">bytes", "", ">partitions", "transaction", "writer"],
        (_line(commit) for commit in commits),
        optional=[(_WRITER,), (_PARTITIONS,), _BYTES],
    )
    if not all(commit.exact for commit in commits):
        text = "*: the commit may have changed more than this: cleanup has removed some of its records."
        console.print(Text(text, style="dim"), soft_wrap=True)
    if commits_max and len(commits) == commits_max:
        console.print(Text(f"The newest {count_text(commits_max, 'commit')}; --limit 0 lists all.", style="dim"))


def _line(commit: "CommitInfo") -> list[Cell]:
    return [
        iso_text(commit.at_ms),
        Text(commit.kind + ("" if commit.exact else "*"), style=_STYLES.get(commit.kind, "")),
        *_added_and_removed(commit),
        f"{commit.partitions:,}" if commit.partitions else "",
        ", ".join(f"{name}:{sequence}" for name, sequence in sorted(commit.txn.items())),
        commit.writer or "",
    ]


def _added_and_removed(of: "CommitInfo | PartitionDiff") -> list[Cell]:
    """Return the cells of the parts, rows and bytes that were added and removed."""
    return [
        signed_text(of.added_parts, "+"),
        signed_text(of.removed_parts, "-"),
        signed_text(of.added_rows, "+"),
        signed_text(of.removed_rows, "-"),
        Text(f"+{size_text(of.added_bytes)}", style="green") if of.added_parts else "",
        Text(f"-{size_text(of.removed_bytes)}", style="red") if of.removed_parts else "",
    ]


@verb(INSPECT, "icedb diff s3://lake/events --since 2026-11-21T10:00:00Z")
def diff(
    connection: Connection,
    uri: Uri,
    since: Annotated[Any, time_option("--since", "Compare from this time.")],
    until: Annotated[Any, time_option("--until", "Compare up to this time.", default="now")] = None,
    rows: Annotated[
        bool, typer.Option("--rows", help="Also compare the rows of changed parts, so that merges do not count.")
    ] = False,
    json: Json = False,
) -> None:
    """Compare two times: parts and rows by partition, and new columns."""
    difference = connection.open(uri).diff(since, until, rows=rows)
    if json:
        totals = ("added_parts", "added_rows", "removed_parts", "removed_rows")
        write_json({**msgspec.to_builtins(difference), **{name: getattr(difference, name) for name in totals}})
        return
    console = output()
    if difference.partitions:
        print_list(
            console,
            [">parts", "", ">rows", "", ">bytes", "", "partition"],
            ([*_added_and_removed(p), p.path or "(all)"] for p in difference.partitions),
        )
    for line in _summary(difference):
        console.print(line, soft_wrap=True, highlight=False)


def _summary(diff: "Diff") -> list[str]:
    between = f"between {iso_text(diff.since_ms)} and {iso_text(diff.until_ms)}"
    changes = [
        f"{count_text(parts, 'part')} with {number_text(rows)} rows {verb_}"
        for parts, rows, verb_ in (
            (diff.added_parts, diff.added_rows, "added"), (diff.removed_parts, diff.removed_rows, "removed"),
        )
        if parts
    ]  # fmt: skip
    lines = [f"{', '.join(changes) or 'No part added or removed'}, {between}."]
    if diff.inserted_rows is not None and diff.deleted_rows is not None:
        lines.append(
            f"Of these rows, {diff.inserted_rows:,} are new and {diff.deleted_rows:,} are gone. The others only moved "
            "between parts."
        )
    if diff.new_columns:
        lines.append("New columns: " + ", ".join(f"{name} {type_}" for name, type_ in diff.new_columns.items()) + ".")
    if not diff.new_columns_exact:
        lines.append("There may be more new columns: the log files of that time were merged.")
    return lines
