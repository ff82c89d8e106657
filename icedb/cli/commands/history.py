"""The verbs that tell a table's past: its commits, and what is different between two times."""

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

from icedb.cli.base.application import LOOK, Connection, Json, Uri, time_option, verb
from icedb.cli.render.output import output, time_text, write_json
from icedb.cli.render.text_tables import Cell, count_text, number_text, print_list, signed_text, size_text

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

# Places of columns.
_BYTES, _PARTITIONS, _WRITER = (6, 7), 8, 10


@verb(LOOK)
def history(
    connection: Connection,
    uri: Uri,
    commits_max: Annotated[int, typer.Option("--limit", min=0, metavar="NUMBER", help="So many; 0: all.")] = 20,
    since: Annotated[Any, time_option("--since", "Those of this time and later.")] = None,
    json: Json = False,
) -> None:
    """List the commits, newest first: what each did, and what came and went."""
    table = connection.open(uri)
    found = table.history(limit=commits_max or None, since=since)
    if json:
        write_json(found)
        return
    console = output()
    print_list(
        console,
        ["time", "did", ">parts", "", ">rows", "", ">bytes", "", ">partitions", "transaction", "writer"],
        (_line(commit) for commit in found),
        going=[(_WRITER,), (_PARTITIONS,), _BYTES],
    )
    if not all(commit.exact for commit in found):
        text = "*: cleanup has forgotten some of what was superseded by then; it did at least this."
        console.print(Text(text, style="dim"), soft_wrap=True)
    if commits_max and len(found) == commits_max:
        console.print(Text(f"The newest {count_text(commits_max, 'commit')}; --limit 0 lists all.", style="dim"))


def _line(commit: "CommitInfo") -> list[Cell]:
    return [
        time_text(commit.at_ms),
        Text(commit.kind + ("" if commit.exact else "*"), style=_STYLES.get(commit.kind, "")),
        *_came_and_went(commit),
        f"{commit.partitions:,}" if commit.partitions else "",
        ", ".join(f"{name}:{sequence}" for name, sequence in sorted(commit.txn.items())),
        commit.writer or "",
    ]


def _came_and_went(of: "CommitInfo | PartitionDiff") -> list[Cell]:
    """Parts, rows and bytes."""
    return [
        signed_text(of.added_parts, "+"),
        signed_text(of.removed_parts, "-"),
        signed_text(of.added_rows, "+"),
        signed_text(of.removed_rows, "-"),
        Text(f"+{size_text(of.added_bytes)}", style="green") if of.added_parts else "",
        Text(f"-{size_text(of.removed_bytes)}", style="red") if of.removed_parts else "",
    ]


@verb(LOOK)
def diff(
    connection: Connection,
    uri: Uri,
    since: Annotated[Any, time_option("--since", "The first time.")],
    until: Annotated[Any, time_option("--until", "The second time; default: now.")] = None,
    rows: Annotated[
        bool, typer.Option("--rows", help="Compare the rows of changed parts too: what was only merged is no change.")
    ] = False,
    json: Json = False,
) -> None:
    """Tell what is different between two times: parts and rows by partition, and new columns."""
    found = connection.open(uri).diff(since, until, rows=rows)
    if json:
        totals = ("added_parts", "added_rows", "removed_parts", "removed_rows")
        write_json({**msgspec.to_builtins(found), **{name: getattr(found, name) for name in totals}})
        return
    console = output()
    if found.partitions:
        print_list(
            console,
            [">parts", "", ">rows", "", ">bytes", "", "partition"],
            ([*_came_and_went(p), p.path or "(all)"] for p in found.partitions),
        )
    for line in _told(found):
        console.print(line, soft_wrap=True, highlight=False)


def _told(found: "Diff") -> list[str]:
    between = f"between {time_text(found.since_ms)} and {time_text(found.until_ms)}"
    changes = [
        f"{count_text(parts, 'part')} with {number_text(rows)} rows {what}"
        for parts, rows, what in (
            (found.added_parts, found.added_rows, "came"), (found.removed_parts, found.removed_rows, "went"),
        )
        if parts
    ]  # fmt: skip
    told = [f"{', '.join(changes) or 'No part came or went'}, {between}."]
    if found.inserted_rows is not None and found.deleted_rows is not None:
        told.append(
            f"Of the rows themselves {found.inserted_rows:,} are new and {found.deleted_rows:,} are gone; the others "
            "are in other parts."
        )
    if found.new_columns:
        told.append("New columns: " + ", ".join(f"{name} {type_}" for name, type_ in found.new_columns.items()) + ".")
    if not found.new_columns_exact:
        told.append("Whether other columns came, the log no longer tells: its files of then were merged away.")
    return told
