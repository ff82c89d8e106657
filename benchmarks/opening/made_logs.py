"""Generated logs: of a table with a million live parts, or after ten thousand commits. Their parts do not exist."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path

import msgspec

from icedb import Table
from icedb.format.codec import encode
from icedb.format.records import LogFile, Marker

__all__ = ["BATCHES", "DAYS", "FIRST_DAY", "append_commit", "make_commits", "make_delta", "make_table"]

PARTITION_BY = ["CAST(ts AS DATE) AS day"]
SORT_BY = ["event", "ts"]
#: Number of different events; an event is in one of so many parts.
BATCHES = 1_000
FIRST_DAY = date(2025, 11, 1)
DAYS = 365

# Time between two commits.
COMMIT_MS = 1_000
# Time since the last commit, after which no earlier commit can appear.
QUIET_MS = 3_600_000
PUTS_AT_ONCE = 16
LINES_AT_ONCE = 10_000


def make_table(folder: Path, parts: int) -> None:
    """Create a table with live parts in one log file, with statistics, some 230 bytes a part."""
    made = _created(str(folder), {"fsync": "false"})
    (path,) = (folder / "_log").iterdir()
    head, schema, _ = path.read_bytes().split(b"\n")
    header = msgspec.json.decode(head) | {"n": 2 + parts}
    with path.open("wb") as file:
        file.write(msgspec.json.encode(header) + b"\n" + schema)
        for start in range(0, parts, LINES_AT_ONCE):
            numbers = range(start, min(start + LINES_AT_ONCE, parts))
            file.write(b"\n" + b"\n".join(made.line(n, n * DAYS // parts) for n in numbers))


def make_commits(uri: str, options: Mapping[str, str], commits: int) -> None:
    """Create a table with unmerged commits of one part each, the last of them an hour ago."""
    made = _created(uri, options)
    keys, now_ms = made.table.handle.keys, made.table.handle.clock.now_ms()

    def put(number: int) -> None:
        t_ms = now_ms - QUIET_MS - (commits - number) * COMMIT_MS
        key = keys.log_file(t_ms, merged=False, writer=f"writer-{number % 8}")
        made.table.handle.store.create(key, made.commit(number, number * DAYS // commits, t_ms))

    with ThreadPoolExecutor(PUTS_AT_ONCE) as pool:
        list(pool.map(put, range(1, commits)))  # the table was created with one commit


def append_commit(table: Table, number: int) -> str:
    """Add a commit of one part with a new number. Return the key of its log file."""
    handle = table.handle
    like = next(iter(handle.read().live))
    t_ms = handle.clock.now_ms()
    key = handle.keys.log_file(t_ms, merged=False, writer=f"writer-{number}")
    handle.store.create(key, _Made(table, dict(table.schema()), like, handle.keys.data_prefix).commit(number, 0, t_ms))
    return key


@dataclass(frozen=True, slots=True)
class _Made:
    """A table, and a part as a template of the others."""

    table: Table
    schema: dict[str, str]
    like: Marker
    #: The prefix of the parts' keys.
    prefix: str

    def line(self, number: int, day: int) -> bytes:
        """Return the line of a part's marker."""
        event, at, name = f"e{number % BATCHES:04d}", _day(day), _id(number)
        stats = f'{{"event":["{event}","{event}",0],"ts":["{at} 00:00:00+00","{at} 00:00:00+00",0]}}'
        return (
            f'{{"p":"{self.prefix}day={at}/{name}.parquet","b":331,"t":{self.like.created_ms},"r":1,'
            f'"s":{stats},"h":"{name[::-1]}"}}'
        ).encode()

    def commit(self, number: int, day: int, t_ms: int) -> bytes:
        """Return a log file with one such part."""
        marker = msgspec.json.decode(self.line(number, day), type=Marker)
        return encode(LogFile(t_ms, self.schema, (msgspec.structs.replace(marker, created_ms=t_ms),)))


def _created(uri: str, options: Mapping[str, str]) -> _Made:
    """Create a table of one row, and return it with the marker of its part."""
    table = Table.create(uri, partition_by=PARTITION_BY, sort_by=SORT_BY, storage_options=dict(options))
    table.insert([{"ts": datetime(FIRST_DAY.year, FIRST_DAY.month, FIRST_DAY.day, tzinfo=UTC), "event": "e0000"}])
    (marker,) = table.handle.read().live
    made = _Made(table, dict(table.schema()), marker, table.handle.keys.data_prefix)
    like = msgspec.json.decode(made.line(0, 0))
    if like | {"p": "", "b": 0, "h": ""} != json.loads(msgspec.json.encode(marker)) | {"p": "", "b": 0, "h": ""}:
        raise AssertionError(f"the log's marker is {marker}, but the generated one is {like}. Correct `line`.")
    return made


def _id(number: int) -> str:
    return hashlib.blake2b(number.to_bytes(8, "big"), digest_size=16).hexdigest()


@cache
def _day(number: int) -> str:
    return str(FIRST_DAY + timedelta(days=number))


# ------------------------------------------------------------------------------------------ Delta


def make_delta(folder: Path, files: int) -> None:
    """Create a Delta table of files with statistics, all in one checkpoint."""
    from deltalake import DeltaTable

    log = folder / "_delta_log"
    log.mkdir(parents=True)
    with (log / f"{0:020d}.json").open("w") as out:
        out.writelines(_delta_lines(files))
    DeltaTable(str(folder)).create_checkpoint()


def _delta_lines(files: int) -> Iterator[str]:
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in {"ts": "timestamp", "event": "string", "day": "date"}.items()
    ]
    yield json.dumps({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}) + "\n"
    metadata = {
        "id": "8f1f4f1e-6a34-4d0f-9b25-cc1f2d8f7a10",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": ["day"],
        "configuration": {},
        "createdTime": 1,
    }
    yield json.dumps({"metaData": metadata}) + "\n"
    for number in range(files):
        day, event = _day(number * DAYS // files), f"e{number % BATCHES:04d}"
        ends = f'{{\\"event\\":\\"{event}\\",\\"ts\\":\\"{day}T00:00:00.000Z\\"}}'
        nulls = '{\\"event\\":0,\\"ts\\":0}'
        stats = f'{{\\"numRecords\\":1,\\"minValues\\":{ends},\\"maxValues\\":{ends},\\"nullCount\\":{nulls}}}'
        yield (
            f'{{"add":{{"path":"day={day}/{_id(number)}.parquet","partitionValues":{{"day":"{day}"}},"size":331,'
            f'"modificationTime":1,"dataChange":true,"stats":"{stats}"}}}}\n'
        )
