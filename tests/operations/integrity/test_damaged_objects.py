"""Damaged specs, pins and claims: each reader names the object, or answers as without the damage."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from icedb import Dedup, Table
from icedb.errors import CorruptionError, CorruptLog, IceDBError, InvalidOption
from icedb.services.proxy.config.tenant_documents import DocumentSource, parse_tenant
from tests.support.proxy.proxy_views import fetch
from tests.support.proxy.proxy_worlds import ProxyWorld, make_app, run

#: Texts in the place of a number, and of a text, that no program of ours writes.
NO_NUMBERS = [
    "-1",
    "100000000000000000",
    "9" * 30,
    "9" * 5_000,
    "1.5",
    "true",
    "null",
    '"1"',
    "NaN",
    "[]",
    "{}",
    "1e999",
]
NO_TEXTS = ["5", "true", "[]", "{}", "NaN", "1e999", "[" * 50_000 + "]" * 50_000]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the path and value of each leaf of a document."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*at, key))
    else:
        yield at, value


def with_value(document: Any, at: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of a document with another value at a path."""
    made = json.loads(json.dumps(document))
    inner = made
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    return made


def with_text(document: Any, at: tuple[Any, ...], text: str) -> bytes:
    """Return a document as JSON, with a text at a path."""
    return json.dumps(with_value(document, at, "@@")).replace('"@@"', text).encode()


def damages(body: bytes, *, but: tuple[str, ...] = ()) -> Iterator[tuple[str, bytes]]:
    """Yield labels and damaged copies of an object. Readers ignore the values of the keys in `but`."""
    document = json.loads(body)
    for at, value in places(document):
        texts = NO_NUMBERS if isinstance(value, int) and not isinstance(value, bool) else NO_TEXTS
        for text in texts:
            if at[0] not in but and not (text == "true" and isinstance(value, bool)) and value is not None:
                yield f"{at} = {text[:20]}", with_text(document, at, text)
    for n in (0, 1, len(body) // 2, len(body) - 1):
        yield f"cut at {n}", body[:n]
        yield f"byte at {n}", body[:n] + b"\xff" + body[n + 1 :]
    yield from {"empty": b"", "null": b"null", "list": b"[]", "text": b'"x"', "deep": b"[" * 90_000}.items()
    yield from {"mark": b"\xef\xbb\xbf" + body, "twice": body + body, "zeros": bytes(len(body))}.items()


def harmless(body: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield copies of an object with unknown keys, with a repeated key, and with other blanks."""
    text = body.decode().strip()
    for more in ('"later": 1', '"later": "x"', '"later": [[[]]]', '"later": {"t": -1}', '"later": 1, "later": -1e9'):
        yield more, f"{{{more}, {text[1:]}".encode()
    first = next(iter(json.loads(body)))
    yield "a key twice", f"{{{json.dumps(first)}: {json.dumps(json.loads(body)[first])}, {text[1:]}".encode()
    yield "blanks", json.dumps(json.loads(body), indent=7).encode()


def made(folder: Path) -> Table:
    options: dict[str, Any] = {"schema": {"p0": "BIGINT"}, "required": ["n"], "row_id": True}
    options |= {"partition_by": ["n % 2 AS p"], "sort_by": ["n"], "merging": Dedup(by=("n", "p0"))}
    table = Table.create(str(folder / "t"), **options)
    table.insert([{"n": 1, "p0": 2}], txn=("app", 1))
    table.insert([{"n": 2, "p0": 2}])
    table.merge()
    return table


def answers(table: Table) -> dict[str, Callable[[], object]]:
    """Return calls that open the table and read specs, pins and claims."""

    def opened() -> Table:
        return Table.open(table.uri)

    return {
        "rows": lambda: sorted(opened().query("SELECT n, p0, p FROM t").fetchall()),
        "pins": lambda: opened().pins(),
        "cleanup": lambda: opened().cleanup(dry_run=True).deleted_parts,
        "orphans": lambda: opened().delete_orphans(dry_run=True).deleted_parts,
        "verify": lambda: [p.key for p in opened().verify().problems],
        "merge": lambda: opened().merge(dry_run=True).merged_parts,
    }


def outcome(call: Callable[[], Any]) -> tuple[IceDBError | None, Any]:
    """Return the IceDBError that a call raises, or its result."""
    try:
        return None, call()
    except IceDBError as error:
        return error, None


def check(path: Path, table: Table, bads: list[tuple[str, bytes]], oks: list[tuple[str, bytes]]) -> int:
    """Check that readers name each damage or return the usual result. Return how often damages were named."""
    good, named = path.read_bytes(), 0
    right = {name: call() for name, call in answers(table).items()}
    try:
        for label, body in oks:
            path.write_bytes(body)
            assert {name: call() for name, call in answers(table).items()} == right, label
        for label, body in bads:
            path.write_bytes(body)
            before = named
            for name, call in answers(table).items():
                error, answer = outcome(call)
                assert error is None or isinstance(error, CorruptionError), (label, name, error)
                says = str(error) if error is not None else " ".join(answer) if name == "verify" else ""
                named += path.name in says
                assert len(says) < 3_100, (label, name)
                assert path.name in says or (error is None and answer == right[name]), (label, name, error, answer)
            assert named > before, f"{label}: no reader names it"
    finally:
        path.write_bytes(good)
    return named


def sample(some: Iterator[tuple[str, bytes]], count: int) -> list[tuple[str, bytes]]:
    all_ = list(some)
    return random.Random(7).sample(all_, k=min(count, len(all_)))


@pytest.mark.sampled(cases=2, days=3)
@pytest.mark.long
@pytest.mark.parametrize("count", [10, pytest.param(10_000, marks=pytest.mark.slow(seconds=60))])
@pytest.mark.parametrize(
    ("pattern", "ignored"),
    [
        pytest.param("_table.json", ("id",), id="spec"),
        pytest.param("_claims/pin-*", (), id="pin"),
        # A reader of a claim whose transaction is recorded reads only its log file.
        *(
            pytest.param(f"_claims/{kind}-*", ("application", "sequence", "brings_columns"), id=kind)
            for kind in ("epoch", "txn")
        ),
    ],
)
def test_a_damaged_object_is_named(tmp_path: Path, count: int, pattern: str, ignored: tuple[str, ...]) -> None:
    table = made(tmp_path)
    if "pin" in pattern:
        table.pin("a")
    path = max((tmp_path / "t").glob(pattern))
    body = path.read_bytes()
    assert check(path, table, sample(damages(body, but=ignored), count), list(harmless(body)))


# ------------------------------------------------------------------------------------------------ hostile specs


HOSTILE: list[dict[str, Any]] = [
    {"partition_by": ["(SELECT 1) AS p"]},
    {"partition_by": ["(SELECT content FROM read_text('/etc/passwd')) AS p"]},
    {"partition_by": ["getenv('HOME') AS p"]},
    {"partition_by": ["random() AS p"]},
    {"partition_by": ["n AS p); DROP TABLE t; --"]},
    {"partition_by": ["n AS __icedb_file"]},
    {"earlier_partition_by": ["(SELECT 1) AS p"]},
    {"insert_query": "SELECT * FROM read_csv('/etc/passwd')"},
    {"merge_query": "COPY source_files TO '/tmp/x'", "merging": None},
    {"views": [{"name": "../other", "query": "SELECT n FROM _rows"}]},
    {"views": [{"name": "view", "query": "SELECT * FROM read_csv('/etc/passwd')"}]},
    {"merging": {"kind": "dedup", "by": []}},
    {"earlier": [{"until": 1, "partition_by": ["(SELECT 1) AS p"]}]},
    {"earlier": [{"until": 1, "merge_query": "SELECT * FROM read_csv('/etc/passwd')"}]},
    {"columns": {"p0": "BIGINT); DROP"}},
    {"path_columns": {"q": "STRUCT("}},
]


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("changes", HOSTILE, ids=lambda c: f"{next(iter(c))}")
def test_sql_of_a_hostile_spec_is_refused_when_the_table_is_opened(tmp_path: Path, changes: dict[str, Any]) -> None:
    table = made(tmp_path)
    path = tmp_path / "t" / "_table.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(CorruptLog, match=r"_table\.json"):
        Table.open(table.uri)


@pytest.mark.parametrize(
    "changes", [{"partition_by": ["(SELECT 1) AS p"]}, {"insert_query": "SELECT * FROM read_csv('x')"}]
)
def test_sql_of_a_hostile_spec_in_the_log_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    table = made(tmp_path)
    key = table.alter(sort_by=["n", "p0"]).key
    assert key is not None
    path = tmp_path / "t" / "_log" / key.rpartition("/")[2]
    header, *rest = path.read_bytes().split(b"\n")
    fields = json.loads(header)
    fields["spec"] |= changes
    path.write_bytes(b"\n".join([json.dumps(fields).encode(), *rest]))
    with pytest.raises(CorruptLog, match=path.name):
        Table.open(table.uri).snapshot()


# ------------------------------------------------------------------------------------------------ tenants


TENANT = {"name": "a", "keys": [{"id": "key-1", "secret": "S3cret-of-a-tenant"}], "requests": 5,
          "buckets": [{"name": "lake", "table": "s3://lake/t", "partitions": ["d=1"], "as_of": None}]}  # fmt: skip


@pytest.mark.parametrize("at", [at for at, _ in places(TENANT)], ids=lambda at: "-".join(map(str, at)))
def test_a_hostile_document_of_a_tenant_is_refused_without_its_secret(at: tuple[Any, ...]) -> None:
    source = DocumentSource("the control plane", tables=("s3://lake",))
    assert parse_tenant(TENANT, source).name == "a"
    numbers = [-1, 10**17, 10**30, 1.5, float("inf"), True]
    for value in [*numbers, "", "\0", "\ud800", "x" * 10_000, "../..", [], {}, [[]], b"x"]:
        document = with_value(TENANT, at, value)
        error, _ = outcome(lambda document=document: parse_tenant(document, source))
        assert error is None or isinstance(error, InvalidOption)
        assert "S3cret" not in str(error)
        assert len(str(error)) < 1_500
        assert error or at[-1] in ("requests", "as_of", "partitions") or value == "x" * 10_000, (at, value)


def test_a_hostile_spec_affects_only_its_own_table_in_the_proxy(caplog: pytest.LogCaptureFixture) -> None:
    hostile, other = ProxyWorld(), ProxyWorld()
    (key,) = hostile.add("u=1")
    other.add("u=1")
    spec = hostile.table.handle.keys.spec
    body = json.loads(hostile.inner.get(spec).body)
    hostile.inner.delete([spec])
    hostile.inner.create(spec, json.dumps({**body, "partition_by": ["(SELECT 1) AS u"]}).encode())

    async def work() -> None:
        for path in ("/events", f"/events/{key}"):
            answer = await fetch(make_app(hostile.tables(), [hostile.bucket()]), path)
            assert answer.status in (200, 500)
            assert (await fetch(make_app(other.tables(), [other.bucket()]), "/events")).status == 200

    run(work())
    assert "Traceback" not in caplog.text
