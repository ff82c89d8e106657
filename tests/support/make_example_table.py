"""Make docs/example-table: `python -m tests.support.make_example_table`.

The table uses most features of the format. Its clock stands still between commits, so that each run writes the same
objects, except the bytes of Parquet files, which depend on DuckDB's version. The expected answers of a reader are
written to expected.json and to the tables of README.md.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from icedb import Table
from icedb.errors import SnapshotExpired
from icedb.format.table_spec import spec_at
from icedb.format.timing import MINUTE_MS
from icedb.operations.retention.pins import pin
from icedb.testing import ClockedStore, ManualClock, check_sound, create_table
from icedb.transaction.pin_objects import read_pins
from icedb.writer.part_writer import write_parts

FOLDER = Path(__file__).parents[2] / "docs" / "example-table"
WRITER = "example-1-0123456789ab"
#: The day of most of what happens: 2026-01-05, 10:00 in UTC.
START_MS = 1_767_607_200_000

PAGE = """\
# An example table

A small real table, for those who write a reader or a writer of [the format](../format.md). It lies in `table/`: log
files, parts, claims and `_table.json`, as the library wrote them. The table's own folder is the store, so keys have no
prefix. [expected.json](expected.json) holds all the answers below, for programs; its keys are whole.

`python -m tests.support.make_example_table` makes it again. The clock stood still between commits; times are of
2026-01-05, in UTC.

| when | what happens |
|---|---|
| 10:00 | four rows of two days; they bring the columns: epoch 1 |
| 10:01 | two rows, a plain append |
| 10:02 | one row, exactly once: sequence 1 of `orders` |
| 10:10 | a merge of the three parts of `d=2026-01-05`: epoch 2 |
| 10:15 | sequence 1 of `orders` is tried again, and adds nothing |
| 10:20 | the spec is altered, to sort by `user_id, ts`: epoch 3 |
| 10:30 | the newest time is pinned as `audit`: that of 10:20 |
| 10:40 | `d=2026-01-04` is dropped: epoch 4 |
| 10:50 | one row, a plain append |
| 11:00 | a merge of the two parts of `d=2026-01-05`: epoch 5 |
| 13:30 | cleanup: epoch 6. It keeps the two parts that the pin needs, and their markers |
| 13:40 | one row with a new column, exactly once: sequence 2 of `orders`, epoch 7 |
| 13:45 | one row, a plain append |
| 13:47 | the spec is altered, to partition by `half`, too, and to declare the column `note`: epoch 8 |
| 13:50 | a writer crashes between its part and its log file |

The folder shows what is left of it then.

**Times of the store.** A version control system does not keep them, and a pin that the store got too late counts as
expired. Before you read snapshots before the horizon, set each file's time of modification to what `stored_ms` in
expected.json says. Nothing else here needs it.

## What a reader must answer

{answers}

Which log files count. Those that are ignored are replaced by epochs 6 and 8. The next cleanups delete them.

{log_files}

The live parts, by the first four digits of their names:

{live_parts}

Their rows. Only one part has the column `price`:

{rows}

Snapshots, of the pinned time too, which is before the horizon. What has expired must be refused. Columns and
partitioning are [those of the time](../format.md#columns-of-a-time): `price` came at 13:40, and the spec of 13:47 has
the partitioning before it in `earlier`, and the time of `note` in `declared_ms`:

{snapshots}
"""


class ExampleTable:
    """A table and its clock. Each step has its minute after 10:00."""

    def __init__(self) -> None:
        self.clock = ManualClock(START_MS)
        self.store = ClockedStore(self.clock, prefix="")
        table = create_table(
            self.store, self.clock, partition_by=["strftime(ts, '%Y-%m-%d') AS d"], sort_by=["user_id"]
        )
        self.table = Table(replace(table.handle, writer=WRITER))

    def at(self, minute: int) -> Table:
        """Return the table at that time."""
        self.clock.set(START_MS + minute * MINUTE_MS)
        return self.table

    def tell(self) -> None:
        """Run all steps. README.md lists them."""
        self.at(0).insert(rows("04 23:10 7 open", "04 23:50 3 open", "05 09:00 7 buy", "05 09:30 9 open"))
        self.at(1).insert(rows("05 10:00 3 buy", "05 10:01 7 open"))
        self.at(2).insert(rows("05 10:02 9 buy"), txn=("orders", 1))
        self.at(10).merge()
        self.at(15).insert(rows("05 10:02 9 buy"), txn=("orders", 1))
        self.at(20).alter(sort_by=["user_id", "ts"], row_group_rows=4_096)
        pin(self.at(30).handle, "audit", None)
        self.at(40).drop_partitions(["d=2026-01-04"])
        self.at(50).insert(rows("05 10:50 3 open"))
        self.at(60).merge()
        self.at(210).cleanup()
        self.at(220).insert([{**row, "price": 2.5} for row in rows("06 00:10 9 buy")], txn=("orders", 2))
        self.at(225).insert(rows("06 00:20 3 open"))
        self.at(227).alter(
            partition_by=["strftime(ts, '%Y-%m-%d') AS d", "user_id % 2 AS half"], schema={"note": "VARCHAR"}
        )
        handle = self.at(230).handle
        crashed = pa.Table.from_pylist(rows("06 00:30 7 open")).to_reader()
        write_parts(handle.write_context(), crashed, store=handle.store, clock=handle.clock)  # and never published


def rows(*texts: str) -> list[dict[str, Any]]:
    """Return rows. Each text is a day, a time, a user and an event."""
    split = [text.split() for text in texts]
    return [
        {"ts": datetime.fromisoformat(f"2026-01-{day}T{time}"), "user_id": int(user), "event": event}
        for day, time, user, event in split
    ]


def expected(story: ExampleTable) -> dict[str, Any]:
    """Return the answers of a correct reader."""
    table, store = story.table, story.store
    state = check_sound(store)
    pins = read_pins(table.handle)
    times = {t for m in state.parts.values() for t in (m.created_ms, m.tombstoned_ms) if t is not None}
    return {
        "epoch": state.epoch,
        "live_epochs": sorted(state.live_epochs),
        "horizon_ms": state.horizon_ms,
        "log_files": sorted(state.files),
        "ignored_log_files": sorted(state.ignored & state.files.keys()),
        "schema": dict(state.schema),
        "spec": json.loads(msgspec.json.encode(state.spec)),
        "txn": {application: sequence for application, (sequence, _) in state.txn.items()},
        "pins": {p.name: p.as_of_ms for p in pins},
        "live_parts": [
            {"key": m.key, "rows": m.rows, "bytes": m.bytes, "t": m.created_ms, "digest": m.digest} for m in state.live
        ],
        "rows": answer(table, None),
        "snapshots": [
            snapshot(table, t) for t in sorted({START_MS - 1, *times, *(p.as_of_ms for p in pins), table_time(story)})
        ],
        "orphans": sorted(i.key for i in store.list("_data/") if i.key not in state.parts),
        "stored_ms": {key: stored.stored_ms for key, stored in sorted(store.objects.items())},
    }


def table_time(story: ExampleTable) -> int:
    """Return the time of the last commit."""
    return story.table.handle.read().newest_ms


def snapshot(table: Table, at: int) -> dict[str, Any]:
    """Return the live parts and the number of rows at a time, or that it has expired."""
    try:
        taken = table.snapshot(at)
    except SnapshotExpired:
        return {"as_of_ms": at, "expired": True}
    return {
        "as_of_ms": at,
        "live_parts": [p.key for p in taken.parts],
        "rows": taken.rows,
        "columns": list(taken.schema),
        "partition_by": list(spec_at(table.spec, at).partition_by),
        "partition_columns": dict(taken.partition_schema),
    }


def answer(table: Table, at: int | None) -> list[list[Any]]:
    """Return all rows with their partition, ordered by `ts`."""
    result = table.query("SELECT d, ts::VARCHAR, user_id, event, price FROM t ORDER BY ts, user_id", as_of=at)
    return [list(row) for row in result.fetchall()]


def short(key: str) -> str:
    """Return the name of an object in README.md: the name of a log file, or the first digits of a part's id."""
    name = key.rsplit("/", 1)[1]
    return f"`{name[:4]}`" if key.startswith("_data/") else f"`{name}`"


def clock_time(ms: int) -> str:
    """Format a time as `10:20`, with seconds and milliseconds if they are not zero."""
    time = datetime.fromtimestamp(ms / 1000, UTC)
    return time.strftime("%H:%M") if ms % MINUTE_MS == 0 else time.strftime("%H:%M:%S.%f")[:-3]


def markdown(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Format a table."""
    cells = [head, ["---"] * len(head), *([str(cell) for cell in line] for line in lines)]
    return "\n".join(f"| {' | '.join(line)} |" if line[0] != "---" else f"|{'|'.join(line)}|" for line in cells)


def readme(answers: Mapping[str, Any]) -> str:
    """Return README.md with the tables of expected.json."""
    what = {
        "head": answers["epoch"],
        "horizon": f"{answers['horizon_ms']} ({clock_time(answers['horizon_ms'])})",
        "last sequences": ", ".join(f"`{a}`: {n}" for a, n in answers["txn"].items()),
        "sorted by": ", ".join(answers["spec"]["sort_by"]) + f" (revision {answers['spec']['revision']})",
        "columns": ", ".join(f"`{c}` {t}" for c, t in answers["schema"].items()),
        "orphans": ", ".join(map(short, answers["orphans"])),
    }
    log_files = markdown(
        ["log file", "ignored"],
        [[short(k), "yes" if k in answers["ignored_log_files"] else "no"] for k in answers["log_files"]],
    )
    live = markdown(
        ["part", "partition", "rows", "committed"],
        [[short(p["key"]), p["key"].split("/")[1], p["rows"], clock_time(p["t"])] for p in answers["live_parts"]],
    )
    in_pins = {at: name for name, at in answers["pins"].items()}
    snapshots = markdown(
        ["snapshot at", "", "live parts", "rows", "columns", "partitioned by"],
        [
            [
                s["as_of_ms"],
                clock_time(s["as_of_ms"])
                + (f", pinned as `{in_pins[at]}`" if (at := s["as_of_ms"]) in in_pins else ""),
                "expired" if "expired" in s else " ".join(map(short, s["live_parts"])) or "none",
                "" if "expired" in s else s["rows"],
                "" if "expired" in s else ", ".join(s["columns"]),
                "" if "expired" in s else f"`{', '.join(s['partition_by'])}`",
            ]
            for s in answers["snapshots"]
        ],
    )
    content = markdown(
        ["d", "ts", "user_id", "event", "price"],
        [["null" if cell is None else cell for cell in row] for row in answers["rows"]],
    )
    return PAGE.format(
        answers=markdown(["asked", "answer"], what.items()),
        log_files=log_files, live_parts=live, snapshots=snapshots, rows=content,
    )  # fmt: skip


def write(folder: Path) -> None:
    """Write the objects, the expected answers and the page about them."""
    story = ExampleTable()
    story.tell()
    shutil.rmtree(folder / "table", ignore_errors=True)
    put(folder / "table", {k: o.body for k, o in story.store.objects.items()})
    answers = expected(story)
    (folder / "expected.json").write_bytes(msgspec.json.format(msgspec.json.encode(answers), indent=2) + b"\n")
    (folder / "README.md").write_text(readme(answers))


def put(folder: Path, objects: Mapping[str, bytes], stored_ms: Mapping[str, int] | None = None) -> None:
    """Write objects as files, with the store's times if given."""
    for key, body in objects.items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        if stored_ms is not None:
            os.utime(path, ns=(stored_ms[key] * 1_000_000, stored_ms[key] * 1_000_000))


if __name__ == "__main__":
    write(FOLDER)
