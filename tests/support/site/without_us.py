"""Readers without this library: the SQL of docs/format.md in plain DuckDB, and live_parts.mjs in Node.js.

Examples are small logs, each about a rule, whose answers the library gives. Faults are changes that they detect.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

import duckdb
import pytest

from icedb import Table
from icedb.errors import IceDBError
from icedb.format.codec import encode
from icedb.format.records import LogFile, LogTombstoneRecord, Marker
from icedb.format.table_spec import TableSpec, encode_spec
from icedb.sql.connections import load_httpfs, quote_text
from tests.support.site.pages import ROOT

FORMAT_PAGE = ROOT / "docs" / "format.md"
SCRIPT = ROOT / "examples" / "readers" / "live_parts.mjs"

#: Path -> partition, bytes, rows.
Live = dict[str, tuple[str, int, int | None]]


class Refused(Exception):
    """A reader rejects a table."""


class PartReader(Protocol):
    def live(self, root: str, as_of: int | None = None, *, log: str | None = None) -> Live: ...


def sql_block(name: str) -> str:
    """Return the block of SQL with that name on the format page."""
    [result] = re.findall(rf"^```sql {name}\n(.*?)^```$", FORMAT_PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    return str(result)


def node() -> str:
    """Return the path of Node.js. Skips the test if it is not installed."""
    result = shutil.which("node")
    if result is None:
        pytest.skip("there is no Node.js here: `node` is not on the PATH")
    return result


class SqlReader:
    """A DuckDB with the page's macro only."""

    def __init__(self, macro: str | None = None, *, storage_options: Mapping[str, str] | None = None) -> None:
        self.con = duckdb.connect(config={"threads": 1})  # logs of some lines: more threads only wait
        if storage_options is not None:
            load_httpfs(self.con)
            self.con.execute(f"""CREATE SECRET (TYPE s3, URL_STYLE path, USE_SSL false,
                ENDPOINT {quote_text(storage_options["AWS_ENDPOINT_URL"].removeprefix("http://"))},
                KEY_ID {quote_text(storage_options["AWS_ACCESS_KEY_ID"])},
                SECRET {quote_text(storage_options["AWS_SECRET_ACCESS_KEY"])})""")
        self.con.execute(macro or sql_block("macro"))

    def live(self, root: str, as_of: int | None = None, *, log: str | None = None) -> Live:
        try:
            result = self.con.execute(f"SELECT path, partition, bytes, rows FROM {call(root, as_of, log)}").fetchall()
        except duckdb.Error as error:
            raise Refused(str(error)) from None
        assert [path for path, *_ in result] == sorted(path for path, *_ in result)
        return {path: (partition, size, rows) for path, partition, size, rows in result}

    def rows(self, root: str, columns: str, *, log: str | None = None) -> list[tuple[Any, ...]]:
        """Return the rows of the live parts, as the page describes."""
        self.con.execute(f"SET VARIABLE parts = (SELECT list(path) FROM {call(root, None, log)})")
        parts = "read_parquet(getvariable('parts'), union_by_name = true, hive_partitioning = true)"
        return self.con.execute(f"SELECT {columns} FROM {parts}").fetchall()


def call(root: str, as_of: int | None, log: str | None) -> str:
    arguments = [quote_text(root)]
    arguments += [] if as_of is None else [f"as_of := {as_of}"]
    arguments += [] if log is None else [f"log := {quote_text(log)}"]
    return f"icedb_live({', '.join(arguments)})"


_SERVE = """
import { createInterface } from "node:readline";
for await (const line of createInterface({ input: process.stdin })) {
  const { script, uri, asOf } = JSON.parse(line);
  const { liveParts } = await import(script);
  const answer = await liveParts(uri, { asOf: asOf ?? undefined })
    .then((parts) => ({ parts }))
    .catch((error) => ({ error: error.message, kind: error.constructor.name }));
  console.log(JSON.stringify(answer));
}
"""


class NodeReader:
    """A process of Node.js that runs the script for each query."""

    def __init__(self, *, storage_options: Mapping[str, str] | None = None) -> None:
        self.script = SCRIPT
        self._process = subprocess.Popen(
            [node(), "--input-type=module", "-e", _SERVE],
            env=environment(storage_options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:  # closes its input, which ends it
            pass

    def by(self, script: Path) -> NodeReader:
        """Return the same process with another script."""
        other = copy.copy(self)
        other.script = script
        return other

    def live(self, root: str, as_of: int | None = None, *, log: str | None = None) -> Live:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"script": self.script.as_uri(), "uri": root, "asOf": as_of}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            assert answer["kind"] == "TableError", answer
            raise Refused(answer["error"])
        return {p["path"]: (p["partition"], p["bytes"], p["rows"]) for p in answer["parts"]}


def environment(storage_options: Mapping[str, str] | None) -> dict[str, str]:
    """Return an environment with these options and without the developer's."""
    return {k: v for k, v in os.environ.items() if not k.startswith("AWS_")} | dict(storage_options or {})


@dataclass(frozen=True)
class LibraryReader:
    """The library itself, opened for each query."""

    storage_options: dict[str, str] | None = None

    def live(self, root: str, as_of: int | None = None, *, log: str | None = None) -> Live:
        try:
            parts = Table.open(root, storage_options=self.storage_options).snapshot(as_of).parts
        except IceDBError as error:
            raise Refused(str(error)) from None
        return {p.path: (p.partition, p.bytes, p.rows) for p in parts}


def answer(reader: PartReader, root: str, as_of: int | None = None, *, log: str | None = None) -> Live | str:
    """Return the answer of a reader, or "refused" for an error."""
    try:
        return reader.live(root, as_of, log=log)
    except Refused:
        return "refused"


WRITER = "w-1-0123456789ab"
#: All times of the worlds are after this one.
BEGIN_MS = 1_795_255_200_000


@dataclass(frozen=True)
class LogExample:
    """Log files by name, and times (since BEGIN_MS) to query."""

    log: dict[str, bytes]
    times: tuple[int, ...] = ()

    @property
    def moments(self) -> list[int | None]:
        """The values of `as_of` to query."""
        return [None, *(BEGIN_MS + t for t in self.times)]

    def put(self, folder: Path) -> str:
        (folder / "_log").mkdir(parents=True)
        (folder / "_table.json").write_bytes(encode_spec(TableSpec()))
        for name, body in self.log.items():
            (folder / "_log" / name).write_bytes(body)
        return str(folder)


@dataclass(frozen=True)
class Logged:
    """A log file of an example. `epochs`: its own and then the other live ones; `parts`: name -> (t, tmb).

    Times are since BEGIN_MS.
    """

    t: int
    parts: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    epochs: tuple[int, ...] = ()
    replaces: tuple[str, ...] = ()
    hz: int | None = None
    writer: str = WRITER

    @property
    def name(self) -> str:
        epoch = f".e{self.epochs[0]}" if self.epochs else ""
        return f"{BEGIN_MS + self.t}{'_m' if self.replaces else ''}_{self.writer}{epoch}.jsonl"

    @property
    def body(self) -> bytes:
        file = LogFile(
            BEGIN_MS + self.t,
            {"n": "BIGINT"},
            tuple(
                Marker(f"_data/{name}.parquet", 7, BEGIN_MS + t, tmb and BEGIN_MS + tmb, rows=3)
                for name, (t, tmb) in self.parts.items()
            ),
            tuple(LogTombstoneRecord(f"_log/{name}", BEGIN_MS + self.t) for name in self.replaces),
            epoch=self.epochs[0] if self.epochs else None,
            live_epochs=self.epochs,
            horizon_ms=0 if self.hz is None else BEGIN_MS + self.hz,
        )
        return encode(file)


def world(*files: Logged, times: tuple[int, ...] = (), **changed: tuple[str, str]) -> LogExample:
    """Return the log of these files. `changed`: `f1=(old, new)` changes the text of the first one."""
    log = {file.name: file.body for file in files}
    for which, (old, new) in changed.items():
        name = files[int(which[1:]) - 1].name
        assert old.encode() in log[name]
        log[name] = log[name].replace(old.encode(), new.encode())
    return LogExample(log, times)


A, B = Logged(100, {"d=1/a": (100, None)}), Logged(200, {"d=2/b": (200, None)}, writer="v-2-0123456789ab")

WORLDS = {
    "appends": world(A, B, times=(99, 100, 199, 200, 1_000)),
    "a tombstone wins over a later live marker": world(
        Logged(50, {"d=1/a": (40, 50)}, epochs=(1,)), A, B, times=(40, 49, 50, 100)
    ),
    "the smallest times count": world(
        Logged(100, {"a": (100, 400)}), Logged(200, {"a": (200, 300)}), times=(99, 150, 299, 300, 350)
    ),
    "an epoch that is not in force is ignored": world(
        Logged(100, {"a": (100, None)}, epochs=(1,)), Logged(200, {"b": (200, None)}, epochs=(2,)), times=(150, 250)
    ),
    "an epoch of a foreign name that is not in force is ignored": world(
        Logged(100, {"a": (100, None)}, epochs=(1,), writer="host"), Logged(200, {"b": (200, None)}, epochs=(2,))
    ),
    "a replaced log file is ignored": world(A, B, Logged(300, {"c": (300, None)}, epochs=(1,), replaces=(A.name,))),
    "a replaced epoch is ignored": world(
        first := Logged(100, {"a": (100, None)}, epochs=(1,)),
        Logged(300, {"a": (100, 300), "c": (300, None)}, epochs=(2,), replaces=(first.name,)),
        times=(100, 299, 300),
    ),
    "a log tombstone of v3 makes nothing ignored": world(
        Logged(100, {"a": (100, None), "b": (100, None)}),
        Logged(300, {"a": (100, 300)}, replaces=(Logged(100).name,), writer="v3-host"),
    ),
    "a log tombstone of v3 makes nothing ignored, whatever its name": world(
        Logged(100, {"a": (100, None), "b": (100, None)}),
        Logged(300, {"a": (100, 300)}, replaces=(Logged(100).name,), writer="host.e9"),
        Logged(400, epochs=(1,)),
    ),
    "a log tombstone of an epoch that is not in force counts for nothing": world(
        A, Logged(200, {"c": (200, None)}, epochs=(1,), replaces=(A.name,)), Logged(300, epochs=(2,))
    ),
    "epochs in force beside the head's": world(
        A,
        Logged(200, {"c": (200, None)}, epochs=(1,), replaces=(A.name,)),
        Logged(300, {"d": (300, None)}, epochs=(2, 1)),
    ),
    "a torn listing": world(Logged(300, {"c": (300, None)}, epochs=(2, 1)), A),
    "two log files of one epoch": world(Logged(100, epochs=(1,)), Logged(200, {"a": (200, None)}, epochs=(1,))),
    "a void": world(
        Logged(100, {"a": (100, None)}, epochs=(1,)), Logged(200, epochs=(2, 1)), f2=('"le":', '"void":true,"le":')
    ),
    "expired": world(Logged(900, {"a": (100, None)}, epochs=(1,), hz=500), times=(100, 499, 500, 901)),
    "expired, without parts": world(Logged(900, epochs=(1,), hz=500), times=(499, 500)),
    "a horizon without an epoch": world(Logged(900, {"a": (100, None)}, hz=500), times=(499, 500)),
    "another version": world(A, B, f2=('"v":1', '"v":2')),
    "a version as text": world(A, B, f2=('"v":1', '"v":"1"')),
    "no version": world(A, B, f2=('"v":1,', "")),
    "a newline at the end": world(A, f1=('"r":3}', '"r":3}\n')),
    "a newline at the end, and no numbers": world(
        A, Logged(200), f2=(',"f":2,"n":2}\n{"n":"BIGINT"}', '}\n{"n":"BIGINT"}\n')
    ),
    "fewer lines than counted": world(A, B, f1=('"n":3', '"n":4')),
    "no count, as of v3": world(A, B, f1=(',"n":3', "")),
    "no line of parts": world(A, Logged(200), f2=(',"f":2,"n":2', "")),
    "parts from a line that is not there": world(A, f1=('"f":2,"n":3', '"f":9')),
    "an epoch below 1": world(Logged(100, {"a": (100, None)}, epochs=(1,)), f1=('"e":1,"le":[1]', '"e":0,"le":[0]')),
    "an epoch that is not in its own list": world(
        Logged(100, {"a": (100, None)}, epochs=(1,)), f1=('"le":[1]', '"le":[2]')
    ),
    "an epoch without a list": world(Logged(100, {"a": (100, None)}, epochs=(1,)), f1=('"le":[1],', "")),
    "a name that announces what the header does not say": world(
        Logged(100, {"a": (100, None)}, epochs=(1,)), Logged(200, {"b": (200, None)}, writer="host.e9")
    ),
    "a name that announces an epoch that is over": world(
        Logged(200, {"b": (200, None)}, writer="host.e1"), Logged(300, {"c": (300, None)}, epochs=(5,))
    ),
    "a part outside of the table": world(A, B, f1=("_data/d=1/a.parquet", "_others/a.parquet")),
    "a part outside of the table by a step up": world(A, f1=("_data/d=1/a", "_data/../a")),
    "a line that is cut": world(A, B, f1=('"r":3}', '"r":')),
    "no log file": LogExample({}),
}

# Only the library distinguishes these: an empty table has no log file either.
LENIENT = {"no log file"}


@dataclass(frozen=True)
class ReaderFault:
    """A changed rule of a reader, and the example in which its answer then differs from the library's."""

    old: str
    new: str
    world: str


SQL_FAULTS = [
    ReaderFault(*fault)
    for fault in (
        ("NOT list_contains(live_epochs, e)", "false", "an epoch that is not in force is ignored"),
        (
            "log_file, head WHERE list_contains(live_epochs, e)",
            "log_file, head",
            "a log tombstone of v3 makes nothing ignored",
        ),
        (
            "log_file, head WHERE list_contains(live_epochs, e)",
            "log_file, head WHERE e > 0",
            "a log tombstone of an epoch that is not in force counts for nothing",
        ),
        (" ANTI JOIN ignored USING (name)", "", "a replaced log file is ignored"),
        ("line[tmb + 1:f]", "line[tmb + 2:f]", "a replaced log file is ignored"),
        ("line[f + 1:]", "line[f + 2:]", "appends"),
        ("WHEN NOT list_has_all(list(e), max_by(le, e))", "WHEN false", "a torn listing"),
        ("max_by(le, e), [])", "flatten(list(le)), [])", "an epoch that is not in force is ignored"),
        ("WHEN count(e) > count(DISTINCT e)", "WHEN false", "two log files of one epoch"),
        ("WHEN as_of < max(hz)", "WHEN false", "expired"),
        ("WHEN as_of < max(hz)", "WHEN as_of <= max(hz)", "expired"),
        ("(header->>'v') = '1' AND ", "", "another version"),
        ("line[-1] <> ''", "true", "a newline at the end, and no numbers"),
        ("coalesce((header->>'n')::BIGINT, len(line)) = len(line)", "true", "fewer lines than counted"),
        ("f BETWEEN 2 AND len(line)", "true", "parts from a line that is not there"),
        ("e > 0 AND ", "", "an epoch below 1"),
        ("list_contains(le, e))), false)", "true)), false)", "an epoch without a list"),
        ("if(as_of IS NULL, tmb IS NULL,", "if(as_of IS NULL, true,", "a tombstone wins over a later live marker"),
        ("min((part->>'t')", "max((part->>'t')", "the smallest times count"),
        ("min((part->>'tmb')", "max((part->>'tmb')", "the smallest times count"),
        ("t <= as_of", "t < as_of", "appends"),
        ("tmb > as_of)", "tmb >= as_of)", "the smallest times count"),
        ("starts_with(path, root || '/_data/')", "true", "a part outside of the table"),
        ("regexp_matches(below, '(^|/)\\.{0,2}(/|$)')", "false", "a part outside of the table by a step up"),
    )
]

NODE_FAULTS = [
    ReaderFault(*fault)
    for fault in (
        (
            "epoch === undefined || live.has(epoch));",
            "true);",
            "an epoch of a foreign name that is not in force is ignored",
        ),
        ("!replaced.has(key) && ", "", "a replaced log file is ignored"),
        (
            "file !== null && live.has(file.epoch)",
            "file !== null",
            "a log tombstone of v3 makes nothing ignored, whatever its name",
        ),
        ("if ([...live].some((epoch) => !epochs.has(epoch))) return null;", "", "a torn listing"),
        ("checkEpochs(files, store);", "", "two log files of one epoch"),
        ("asOf < horizon &&", "false &&", "expired"),
        ("asOf < horizon &&", "asOf <= horizon &&", "expired"),
        ('String(header?.v) !== "1"', "false", "another version"),
        ('lines.at(-1) === "" ||', "", "a newline at the end, and no numbers"),
        ("(header.n ?? lines.length) !== lines.length", "false", "fewer lines than counted"),
        ("partsFrom <= lines.length", "true", "parts from a line that is not there"),
        ("epoch !== announcedEpoch(key, logPrefix)", "false", "an epoch below 1"),
        ("header.le?.includes(epoch)", "true", "an epoch without a list"),
        (
            "asOf === undefined ? tmb === undefined",
            "asOf === undefined ? true",
            "a tombstone wins over a later live marker",
        ),
        ("a === undefined || b < a ? b : a", "b", "the smallest times count"),
        ("t <= asOf", "t < asOf", "appends"),
        ("tmb > asOf", "tmb >= asOf", "the smallest times count"),
        ("isBelow(prefix, object?.p) && ", "", "a part outside of the table"),
        ('["", ".", ".."]', '["", "."]', "a part outside of the table by a step up"),
        ("&& OUR_WRITER.test(key)", "", "a name that announces an epoch that is over"),
    )
]
