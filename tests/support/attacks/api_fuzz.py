"""Calls of the whole public API with wrong types and values, made from the signatures, so that a new method joins."""

from __future__ import annotations

import inspect
import io
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

import icedb
from icedb import BufferedWriter, Changes, IceDBError, IceLogIO, QueryResult, S3Client, Snapshot, Table
from icedb.engines import arrow
from icedb.icedb import IceDBv3
from icedb.storage.location import parse_location

__all__ = ["SECRET", "Escape", "FuzzCase", "FuzzTarget", "cases", "entries", "hostile_values", "try_case"]

#: Text that no message may hold.
SECRET = "S3CR3T-of-the-fuzz"
#: Words of internals that no message may hold.
_INTERNALS = ("Traceback", "site-packages", "icedb-write-", "icedb-rewrite-", "Stack Trace", " object at 0x",
              "<lambda>")  # fmt: skip
#: Classes of which callers make no values, and which only hold what the library gave.
_MADE_BY_CALLERS = ("Timing", "Thresholds", "Tiers", "Dedup", "Replacing", "Aggregating", "FileMarker", "LogMetadata",
                    "LogTombstone", "S3Client", "IceLogIO", "IceDBv3", "BufferedWriter")  # fmt: skip
#: They wait for an event loop, close what others need, or belong to the process's end.
_NOT_CALLED = ("write_async", "close_at_exit", "handle")


#: Words of annotations, and the types of values that go with them.
_KINDS: dict[str, type] = {
    "str": str, "Where": str, "Sequence": list, "Mapping": dict, "int": int, "Path": Path, "AsOf": datetime,
    "Expires": timedelta, "timedelta": timedelta, "Txn": tuple, "tuple": tuple, "Rows": list, "Row": list,
    "Merging": Struct, "DeclaredSchema": dict,
}  # fmt: skip
#: Parameters whose values are addresses or options, of which a secret may not be repeated.
_SECRETIVE = ("uri", "log_uri", "source", "target", "storage_options", "source_storage_options", "log_storage_options",
              "s3bucket", "s3prefix", "s3endpoint", "s3_endpoint")  # fmt: skip


class _NoText:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def _breaks_off() -> Iterator[dict[str, int]]:
    yield {"a": 1}
    raise ValueError("the generator broke off")


def _closed_file() -> io.StringIO:
    file = io.StringIO("a\n1\n")
    file.close()
    return file


def _fails(*_: object) -> object:
    raise ZeroDivisionError("a function of the caller")


def _recursive() -> list[object]:
    made: list[object] = []
    made.append(made)
    return made


def hostile_values(folder: Path) -> list[Callable[[], object]]:
    """Functions that make values which most parameters cannot take."""
    values: list[object] = [
        None, True, False, 0, -1, 1, 10**30, 2**63, -(2**63), 10**17, 1.5, float("nan"), float("inf"), -0.0, 3 + 4j,
        Decimal("NaN"), b"", b"\xff\xfe", bytearray(b"x"), memoryview(b"x"),
        "", " ", "\0", "a = 1\0 OR true", "\ud800", "a\udfff", "x" * 100_000, "(" * 3_000, "\N{PARTY POPPER}\u202eü",
        "'", '"', "--", ";", "1; DROP TABLE t", "a = 1) OR (1 = 1", "true", "42", "2026-11-21", "a", "A", "b.c", "*",
        "p = 1", "p=1", "p=1/../x", "../../..", "..", "/dev/null/x", "%00", "%ff", "%zz", "\\", "a\nb", "none", "raise",
        "SELECT 1", "SELECT * FROM t", "SELECT * FROM read_csv('/etc/passwd')", "SELECT a, s FROM _rows", "SELECT nope",
        "COPY t TO 'x.csv'", "SELECT CAST(s AS INT) FROM t", "SELECT a, 'x' AS s FROM _rows", "CAST(s AS INT) = 3",
        "nope = 1", "sum(a) > 1", "a = (SELECT 1)", "getenv('HOME') = 'x'", "a / 0 = 1", "error('x')", "random() > 2",
        "a % 0 AS p", "a AS \"x\"\"y\"", "read_text('x') AS y", "v3", "0", "1970-01-01T00:00:00Z", "9" * 50,
        "s3://", "s3:///x", "s3://B_u!/x", f"s3://user:{SECRET}@b/x", "http://x/y", "memory://", "az://", "file://",
        [], [[]], [[[[]]]], [None], ["a", None], ["a", "a"], ["a", "A"], ["\0"], ["nope"], ["p=1"], ["p=99"], [1, 2],
        [b"a"], ["a AS p", "s AS p"], ["random() AS p"], ["(SELECT 1) AS p"], ["a"], [""], ["x" * 50_000], [{}],
        [{"a": []}],
        [{"a": 10**30}], [{"a": "x"}], [{"a": float("nan")}], [{"": 1}], [{1: 1}], [{"a\0": 1}], [{"a": 1,
        "\ud800": 1}],
        [{"a": 1, "s": "\ud800"}], [{"a": 1, "s": "\0"}], [{"a": object()}], [{"a": 1, "s": "z" * 100_000}],
        (), ("a",), ("app", 1), ("app", -1), ("app", 10**30), ("", 1), ("a\0", 1), ("x" * 5_000, 1), (1, "app"),
        ("a", 1, 2),
        {}, {"a": None}, {"a": "BIGINT"}, {"z": "NOPE"}, {"a": "VARCHAR"}, {1: 2}, {"": ""}, {"z": "BIGINT; DROP"},
        {"AWS_SECRET_ACCESS_KEY": SECRET, "x": 3}, {"AWS_SECRET_ACCESS_KEY": SECRET}, {"nope": SECRET},
        {"z": "STRUCT("},
        {"a"}, frozenset(), range(3), object(), int, Table, _fails, _NoText(), Ellipsis, NotImplemented,
        datetime(2026, 11, 21), datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC), datetime.now(UTC),
        date(2026, 11, 21), timedelta.max, timedelta.min, timedelta(0), timedelta(days=-1), timedelta(days=1),
        Path(), Path("/dev/null/x"), Path("a\0b"), Path("\udcff"), folder, folder / "nope", folder / "empty",
        folder / "junk.parquet", folder / "junk.csv", folder / "junk.jsonl", folder / "*.nope", folder / "bin.json",
        np.int64(3), np.float64("nan"), np.float32(1), np.array([1, 2]), np.array([]), np.datetime64("NaT"),
        np.bool_(True),
        np.str_("a"), pd.NaT, pd.NA, pd.Timestamp("2026-11-21"), pd.Timestamp.max.tz_localize("UTC"), pd.Timedelta(1),
        pd.DataFrame({"a": [1, "x"]}), pd.DataFrame({1: [1]}), pd.Series([1]), pa.table({"a": ["x"]}), pa.array([1]),
        pa.table({}), pa.table({"a": pa.nulls(2)}), pa.schema([("z", pa.null())]), pa.scalar(1), Exception("x"),
        icedb.Dedup(by=("nope",)), icedb.Dedup(by="a"), icedb.Dedup(by=3), icedb.Replacing(("a",), "nope"),
        icedb.Aggregating(by=("a",), sum=("s",)), icedb.Dedup(by=()), icedb.TieredMerge(1, 2), icedb.Thresholds(),
        icedb.Timing(),
    ]  # fmt: skip
    made: list[Callable[[], object]] = [lambda value=value: value for value in values]  # type: ignore[misc]
    return [
        *made,
        _breaks_off,
        _closed_file,
        _recursive,
        lambda: iter([{"a": 1}]),
        lambda: (folder / "junk.csv").open(),
    ]


@dataclass(frozen=True)
class PublicCall:
    """A public call: its name, and the function that finds it in a world."""

    name: str
    bound: Callable[[FuzzTarget], Callable[..., object]]
    parameters: Mapping[str, inspect.Parameter]

    def __repr__(self) -> str:
        return self.name


def _methods(class_: type) -> Iterator[str]:
    for base in class_.__mro__:
        for name, member in vars(base).items():
            plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            if not name.startswith("_") and name not in _NOT_CALLED and inspect.isfunction(plain):
                yield name


@cache
def entries() -> tuple[PublicCall, ...]:
    """Return every public function, constructor and method of `icedb`, and of the readers that need no service."""
    made: dict[str, PublicCall] = {}

    def add(name: str, bound: Callable[[FuzzTarget], Callable[..., object]], function: Callable[..., Any]) -> None:
        parameters = dict(inspect.signature(function).parameters)
        parameters.pop("self", None), parameters.pop("cls", None)
        named = {n: p for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        made.setdefault(name, PublicCall(name, bound, named))

    owners: list[tuple[type, Callable[[FuzzTarget], object]]] = [
        (Table, lambda w: w.table), (Snapshot, lambda w: w.table.snapshot()), (Changes, lambda w: w.table.changes()),
        (QueryResult, lambda w: w.table.query("SELECT * FROM t")), (BufferedWriter, lambda w: w.buffered()),
        (IceDBv3, lambda w: w.v3()), (IceLogIO, lambda _: IceLogIO("host")), (S3Client, lambda w: w.client()),
        (icedb.Schema, lambda _: icedb.Schema()),
    ]  # fmt: skip
    for class_, owner in owners:
        for method in _methods(class_):
            add(f"{class_.__name__}.{method}", lambda w, o=owner, m=method: getattr(o(w), m), getattr(class_, method))
    for name in icedb.__all__:
        public = getattr(icedb, name)
        if name in _MADE_BY_CALLERS or (callable(public) and not inspect.isclass(public)):
            add(name, lambda _, p=public: p, public)
    for name in arrow.__all__:
        add(f"arrow.{name}", lambda _, n=name: getattr(arrow, n), getattr(arrow, name))
    return tuple(made.values())


def _right(name: str, world: FuzzTarget) -> object:
    """Return a valid value of a parameter. Raises KeyError for an unknown parameter."""
    values: dict[str, Callable[[], object]] = {
        "data": lambda: [{"a": 7, "s": "y"}], "rows": lambda: [{"a": 7, "s": "y"}], "uri": world.fresh,
        "source": lambda: str(world.folder / "more.parquet"), "target": world.fresh, "sql": lambda: "SELECT * FROM t",
        "where": lambda: "a = 1", "partitions": lambda: ["p=1"], "name": lambda: "named", "partition": lambda: "p=1",
        "query": lambda: "SELECT a, s FROM _rows", "as_of": world.now, "since": world.now, "table": lambda: world.table,
        "snapshot": lambda: world.table.snapshot(), "part": lambda: world.table.snapshot().parts[0],
        "by": lambda: ("a",),
        "version": lambda: "a", "s3client": world.client, "s3_client": world.client, "log_files": list,
        "timestamp": world.now, "path_safe_hostname": lambda: "host", "s3bucket": lambda: "bucket",
        "s3prefix": lambda: "t",
        "schema": icedb.Schema, "files": list, "line": lambda: '{"p":"x","b":1,"t":1}', "path": lambda: "t/_data/x",
        "columns": lambda: ["a"], "types": lambda: ["BIGINT"], "createdMS": world.now, "fileBytes": lambda: 1,
        "schemaLineIndex": lambda: 1, "fileLineIndex": lambda: 2, "min_age_ms": lambda: 10**12,
        "removal_func": lambda: lambda _: [], "target_partition": lambda: "p=1",
        "filter_query": lambda: "SELECT * FROM _rows",
        "grace_ms": lambda: 10**12, "on": lambda: ["a"], "set": lambda: {"a": "a + 1"},
    }  # fmt: skip
    return values[name]()


@dataclass(frozen=True)
class FuzzCase:
    """One call: the entry, and which parameters get which hostile values."""

    seed: int
    entry: PublicCall
    wrong: Mapping[str, int]

    def __repr__(self) -> str:
        return f"seed {self.seed}: {self.entry.name}({', '.join(self.wrong)})"


def cases(seeds: range, world: FuzzTarget) -> Iterator[FuzzCase]:
    """Return a case for each seed. The entries alternate, so each is called in every few hundred cases.

    Most values have a type that the parameter takes: what goes wrong then is not seen at the border.
    """
    all_entries = [e for e in entries() if e.parameters]
    for seed in seeds:
        chance = random.Random(seed)
        entry = all_entries[seed % len(all_entries)]
        names = chance.sample(sorted(entry.parameters), k=min(len(entry.parameters), chance.choice([1, 1, 1, 2])))
        yield FuzzCase(seed, entry, {name: chance.choice(world.likely(entry, name, chance)) for name in names})


class FuzzTarget:
    """A table that is recreated after each call that changed it, and a folder of hostile files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "files"
        self.folder.mkdir()
        (self.folder / "empty").mkdir()
        (self.folder / "junk.parquet").write_bytes(b"PAR1 junk PAR1")
        (self.folder / "junk.csv").write_bytes(b'a,b\n1\n"x\n')
        (self.folder / "junk.jsonl").write_bytes(b'{"a": 1}\n{"a": [}\n')
        (self.folder / "bin.json").write_bytes(b"\xff\xfe\0\0")
        pq.write_table(pa.table({"a": [9], "s": ["y"]}), self.folder / "more.parquet")
        self.root, self._numbers = folder, count()
        self._pattern = folder / "pattern"
        made = Table.create(str(self._pattern), partition_by=["a % 2 AS p"], sort_by=["a"])
        made.insert([{"a": 1, "s": "x"}, {"a": 2, "s": "y"}])
        made.insert([{"a": 3, "s": None}])
        self._writers: list[BufferedWriter] = []
        self.values = hostile_values(self.folder)
        self.renew()

    def renew(self) -> None:
        """Make the table what it was."""
        for writer in self._writers:
            with suppress(IceDBError):
                writer.close()
        self._writers.clear()
        path = self.root / "t" / str(next(self._numbers)) / "t"
        shutil.copytree(self._pattern, path)
        self.table = Table.open(str(path))
        self.before = self.contents()

    def likely(self, entry: PublicCall, name: str, chance: random.Random) -> Sequence[int]:
        """Return the values to choose from: mostly those of the parameter's type, or all."""
        annotation = str(entry.parameters[name].annotation)
        kinds = tuple(kind for word, kind in _KINDS.items() if word in annotation)
        some = [n for n, value in enumerate(self.values) if isinstance(value(), kinds)]
        return some if some and chance.random() < 0.7 else range(len(self.values))

    def contents(self) -> str:
        """Return the content of the table, read by another handle."""
        try:
            return Table.open(self.table.uri).snapshot().id
        except IceDBError as error:
            return f"unreadable: {error}"

    def fresh(self) -> str:
        return str(self.root / "fresh" / str(next(self._numbers)))

    def now(self) -> int:
        return round(time.time() * 1_000)

    def buffered(self) -> BufferedWriter:
        self._writers.append(BufferedWriter(self.table, delay_max_ms=1))
        return self._writers[-1]

    def client(self) -> S3Client:
        client = S3Client("t", "bucket", "us-east-1", "http://127.0.0.1:9", "key", SECRET)
        client.location = parse_location(self.table.uri)
        return client

    def v3(self) -> IceDBv3:
        return IceDBv3(
            lambda row: f"p={str(row.get('a'))[:1]}", ["a"], s3_client=self.client(), path_safe_hostname="host"
        )


@dataclass(frozen=True)
class Escape:
    """A case with a wrong outcome, and why it is wrong."""

    case: FuzzCase
    values: str
    why: str

    def __str__(self) -> str:
        return f"{self.case!r} {self.values}: {self.why}"


def _shown(value: object) -> str:
    with suppress(Exception):
        return ascii(value)[:60]
    return type(value).__name__


def try_case(world: FuzzTarget, case: FuzzCase) -> Escape | str | None:
    """Return the escaped error, or the name of the error's class, or None if the call succeeded."""
    wrong = {name: world.values[n]() for name, n in case.wrong.items()}
    arguments = dict(wrong)
    for name, parameter in case.entry.parameters.items():
        if name not in arguments and (parameter.default is parameter.empty or name in ("grace_ms",)):
            with suppress(KeyError):
                arguments[name] = _right(name, world)
    wrong_arguments = ", ".join(f"{n}={_shown(v)}" for n, v in wrong.items())
    try:
        answer = case.entry.bound(world)(**arguments)
        if isinstance(answer, QueryResult):
            answer.fetchall()
        elif isinstance(answer, icedb.BufferedWriter):
            answer.close()
        elif hasattr(answer, "result"):
            answer.result(timeout=240)
        elif inspect.isgenerator(answer) or hasattr(answer, "read_next_batch"):
            list(answer)
    except IceDBError as error:
        why = _fault_of(error, case)
        if why is None and world.contents() != world.before:
            why = f"{type(error).__name__}, and the table changed: {error}"
        return Escape(case, wrong_arguments, why) if why else type(error).__name__
    except BaseException as error:
        if isinstance(error, ZeroDivisionError) and "of the caller" in str(error):
            return "the caller's own"
        return Escape(case, wrong_arguments, f"{type(error).__module__}.{type(error).__name__}: {str(error)[:300]}")
    finally:
        if world.contents() != world.before:
            world.renew()
    return None


def _fault_of(error: IceDBError, case: FuzzCase) -> str | None:
    name, text = type(error).__name__, str(error)
    if len(text) < 15 or "\n\n\n" in text or len(text) > 5_000:
        return f"{name} has a message of {len(text)} characters: {text[:200]}"
    if SECRET in text and any(n in _SECRETIVE for n in case.wrong):
        return f"{name} has a secret: {text[:300]}"
    if internal := next((w for w in _INTERNALS if w in text), None):
        return f"{name} has {internal!r}: {text[:300]}"
    if name == "InvalidArgument" and not any(n in text for n in case.wrong):
        return f"{name} names no argument: {text[:300]}"
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and not isinstance(cause, IceDBError):
        return f"{name} is chained to {type(cause).__module__}.{type(cause).__name__}: {text[:200]}"
    return None
