"""The proxy responds like a real S3 server that has the same objects.

Both get the same signed requests, and status, code, headers and parsed XML are compared. If the test server differs
from the documentation of AWS, `test_differences_of_the_test_server_from_s3` has AWS's rule, which the proxy follows.
Later tests cover what the proxy rejects and S3 supports, and what only the proxy has.
"""

from __future__ import annotations

import asyncio
import io
import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from itertools import product
from typing import Any
from urllib.request import Request, urlopen
from xml.etree import ElementTree as ET

import pytest

from icedb import Table
from icedb.services.proxy.catalog.table_catalog import TableCatalog
from icedb.services.proxy.config.tenants import AccessKey, VirtualBucket
from icedb.services.proxy.request_body import BODY_BYTES_MAX
from tests.support.object_stores.stores import Place, S3Server
from tests.support.proxy.proxy_worlds import DOMAIN, AppEndpoint, HttpAnswer, S3Endpoint, ServerEndpoint, make_app

pytestmark = pytest.mark.s3

DAYS = ["2026-11-20", "2026-11-21"]
USERS = ["1", "10", "a b+c", "ü/%", None]
NAMESPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"


@dataclass(frozen=True)
class ProxyAndServer:
    """The same objects behind the proxy and in a bucket of a real server."""

    proxy: AppEndpoint
    server: ServerEndpoint
    bucket: str
    #: Virtual key -> content.
    objects: Mapping[str, bytes] = field(repr=False)

    @property
    def sides(self) -> tuple[S3Endpoint, S3Endpoint]:
        return self.proxy, self.server

    @property
    def keys(self) -> list[str]:
        return sorted(self.objects)


def make_table(place: Place) -> Table:
    table = Table.create(place.uri, partition_by=["d", "u"], storage_options=place.storage_options)
    table.insert([{"d": d, "u": u, "n": n} for n, (d, u) in enumerate(product(DAYS, USERS))])
    table.insert([{"d": DAYS[1], "u": "1", "n": n} for n in range(3)])
    return table


def contents(table: Table) -> dict[str, bytes]:
    handle = table.handle
    prefix = handle.keys.data_prefix
    return {p.key.removeprefix(prefix): handle.store.get(p.key).body for p in table.snapshot().parts}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> Iterator[ProxyAndServer]:
    name = f"events-{uuid.uuid4().hex[:12]}"
    table = make_table(Place("local", str(tmp_path_factory.mktemp("operations") / "table")))
    objects = contents(table)
    s3 = s3_server.client()
    s3.create_bucket(Bucket=name)
    for key, body in objects.items():
        s3.put_object(Bucket=name, Key=key, Body=body, ContentType="application/vnd.apache.parquet")
    tables = TableCatalog()
    server = ServerEndpoint(s3_server.endpoint, AccessKey(s3_server.access_key_id, s3_server.secret_access_key))
    with asyncio.Runner() as runner:
        yield ProxyAndServer(
            AppEndpoint(make_app(tables, [VirtualBucket(name, table.uri)]), runner), server, name, objects
        )
    server.close()
    tables.close()


# ------------------------------------------------------------------------------------------ listings


def listed(answer: HttpAnswer) -> dict[str, Any]:
    """Return the fields of a listing, without those that may differ between endpoints."""
    if answer.status != 200:
        return {"status": answer.status, "code": answer.code}
    root = ET.fromstring(answer.body)
    assert root.tag == f"{NAMESPACE}ListBucketResult"
    fields: dict[str, Any] = {"keys": [], "prefixes": []}
    for element in root:
        name = element.tag.removeprefix(NAMESPACE)
        if name == "Contents":
            one = {c.tag.removeprefix(NAMESPACE): c.text for c in element}
            assert {"LastModified", "ETag"} <= one.keys()
            fields["keys"].append((one["Key"], one["Size"], one["StorageClass"], "Owner" in one))
        elif name == "CommonPrefixes":
            fields["prefixes"].append(element[0].text)
        else:
            assert name not in fields
            fields[name] = element.text or ""
    if "NextContinuationToken" in fields:  # each endpoint has its own
        fields["NextContinuationToken"] = "..."
    fields.pop("ContinuationToken", None)
    return fields


def last_of(answer: HttpAnswer) -> str:
    fields = listed(answer)
    return str(max([k for k, *_ in fields["keys"]] + fields["prefixes"]))


PREFIXES = [
    "",
    "d=2026-11-21/",
    "d=2026-11-21",
    "d=2026-11-21/u=1",
    "d=2026-11-21/u=a%20",
    "d=2026-11-21/u=ü",
    "x",
    "/",
]
DELIMITERS = ["", "/", "=", "u=1"]
SIZES = ["", "1", "2", "1000"]
AFTER = ["", "d=2026-11-20", "d=2026-11-21/u=10", "e"]


def is_inside(prefix: str, delimiter: str, after: str) -> bool:
    """Return whether a listing starts inside a common prefix, which another test covers."""
    return bool(delimiter) and after.startswith(prefix) and delimiter in after[len(prefix) :]


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("version", [1, 2])
def test_listings_match_a_real_server(pair: ProxyAndServer, version: int) -> None:
    for prefix, delimiter, size, after in product(PREFIXES, DELIMITERS, SIZES, AFTER):
        if is_inside(prefix, delimiter, after):
            continue
        parameters = {"prefix": prefix, "delimiter": delimiter, "max-keys": size}
        parameters |= {"marker": after} if version == 1 else {"list-type": "2", "start-after": after}
        sent = {n: v for n, v in parameters.items() if v}
        proxy, server = (listed(side.ask("GET", f"/{pair.bucket}", sent)) for side in pair.sides)
        assert proxy == server, sent


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(
    "more", [{"encoding-type": "url"}, {"fetch-owner": "true"}, {"fetch-owner": "false"}, {"x": "1"}]
)
@pytest.mark.parametrize("version", [1, 2])
def test_further_list_parameters_match_a_real_server(pair: ProxyAndServer, version: int, more: dict[str, str]) -> None:
    for prefix, delimiter, size in product(PREFIXES, DELIMITERS, ["1", "1000"]):
        after = {"marker": "a b+ü/"} if version == 1 else {"list-type": "2", "start-after": "a b+ü/"}
        parameters = {"prefix": prefix, "delimiter": delimiter, "max-keys": size, **after, **more}
        sent = {n: v for n, v in parameters.items() if v}
        proxy, server = (listed(side.ask("GET", f"/{pair.bucket}/", sent)) for side in pair.sides)
        assert proxy == server, sent


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("size", ["1", "2", "5"])
@pytest.mark.parametrize("delimiter", ["", "/", "=", "u=1"])
@pytest.mark.parametrize("version", [1, 2])
def test_pages_match_a_real_server(pair: ProxyAndServer, version: int, delimiter: str, size: str) -> None:
    parameters = {"delimiter": delimiter, "max-keys": size, "prefix": "d=2026-11-21/"}
    pages = [all_pages(side, pair.bucket, version, {n: v for n, v in parameters.items() if v}) for side in pair.sides]
    assert pages[0] == pages[1]
    listed_entries = [k for page in pages[0] for k, *_ in page["keys"]] + [
        p for page in pages[0] for p in page["prefixes"]
    ]
    assert len(listed_entries) == len(set(listed_entries)) > 0


def all_pages(side: S3Endpoint, bucket: str, version: int, parameters: dict[str, str]) -> list[dict[str, Any]]:
    parameters = parameters | ({"list-type": "2"} if version == 2 else {})
    pages: list[dict[str, Any]] = []
    more: dict[str, str] = {}
    while True:
        answer = side.ask("GET", f"/{bucket}", parameters | more)
        pages.append(listed(answer))
        if pages[-1]["IsTruncated"] == "false":
            return pages
        assert len(pages) < 100
        token = ET.fromstring(answer.body).findtext(f"{NAMESPACE}NextContinuationToken")
        more = {"continuation-token": str(token)} if version == 2 else {"marker": last_of(answer)}


@pytest.mark.parametrize(
    ("rule", "parameters", "expected"),
    [
        # "Sets the maximum number of keys returned ... By default, the action returns up to 1,000 key names. The
        # response might contain fewer keys but will never contain more": S3 returns 1000 for larger numbers.
        ("more than 1,000", {"max-keys": "1001"}, {"MaxKeys": "1000", "IsTruncated": "false"}),
        ("more than 1,000", {"max-keys": "2147483647"}, {"MaxKeys": "1000", "IsTruncated": "false"}),
        # An empty page is not truncated: there is no key after which to continue.
        ("none", {"max-keys": "0"}, {"MaxKeys": "0", "IsTruncated": "false", "keys": [], "prefixes": []}),
        # The range of the argument is that of a signed 32-bit integer.
        ("no number", {"max-keys": "2147483648"}, {"status": 400, "code": "InvalidArgument"}),
        ("no number", {"max-keys": "-1"}, {"status": 400, "code": "InvalidArgument"}),
        ("no number", {"max-keys": "many"}, {"status": 400, "code": "InvalidArgument"}),
        ("no number", {"max-keys": "1.0"}, {"status": 400, "code": "InvalidArgument"}),
        # "Valid Values: url".
        ("encoding", {"encoding-type": "base64"}, {"status": 400, "code": "InvalidArgument"}),
        # Tokens are specific to an endpoint. Other texts are rejected: "The continuation token provided is incorrect".
        ("token", {"list-type": "2", "continuation-token": "d=2026"}, {"status": 400, "code": "InvalidArgument"}),
        ("token", {"list-type": "2", "continuation-token": ""}, {"status": 400, "code": "InvalidArgument"}),
        ("type", {"list-type": "3"}, {"status": 400, "code": "InvalidArgument"}),
        # "Amazon S3 starts listing after this specified key": keys after it that share a prefix become that prefix.
        ("inside", {"delimiter": "/", "marker": "d=2026-11-20/u=1/"}, {"prefixes": ["d=2026-11-20/", "d=2026-11-21/"]}),
        ("inside", {"delimiter": "/", "marker": "d=2026-11-20/z"}, {"prefixes": ["d=2026-11-21/"]}),
        # A common prefix as the marker is not repeated, so that paging by NextMarker ends.
        ("told", {"delimiter": "/", "marker": "d=2026-11-20/"}, {"prefixes": ["d=2026-11-21/"]}),
    ],
)
def test_differences_of_the_test_server_from_s3(
    pair: ProxyAndServer, rule: str, parameters: dict[str, str], expected: dict[str, Any]
) -> None:
    fields = listed(pair.proxy.ask("GET", f"/{pair.bucket}", parameters))
    assert {name: fields[name] for name in expected} == expected, rule


# ------------------------------------------------------------------------------------------ objects

HEADERS = ("content-length", "content-range", "content-type", "accept-ranges")
# Of a part of SIZE bytes. The texts are format strings.
RANGES = [
    *(
        "bytes=0-0",
        "bytes=0-",
        "bytes=4-11",
        "bytes=0-{last}",
        "bytes={last}-{last}",
        "bytes={last}-",
        "bytes=7-{size}",
    ),
    *("bytes=7-9223372036854775806", "bytes=7-9223372036854775807", "bytes=0-99999999999999999999"),
    *("bytes=-1", "bytes=-8", "bytes=-{size}", "bytes=-{over}", "bytes=-9223372036854775807"),
    *("bytes={size}-", "bytes={size}-{over}", "bytes=9223372036854775807-", "bytes=-0"),
]
NO_RANGES = [
    "bytes=9-4",
    "bytes=-",
    "bytes=a-b",
    "bytes=0-1,4-5",
    "bytes=0-1, -2",
    "bytes 0-1",
    "0-1",
    "lines=0-1",
    "x",
]


def described(answer: HttpAnswer, names: tuple[str, ...] = HEADERS) -> dict[str, Any]:
    """Return the fields of a response for an object, without those that may differ between endpoints."""
    fields = {"status": answer.status, "code": answer.code} | {n: answer.headers.get(n) for n in names}
    if answer.status >= 400:
        fields.pop("content-length", None)  # the length of the error document
        fields.pop("accept-ranges", None)
    return fields


def some_object(pair: ProxyAndServer) -> tuple[str, int, str]:
    """Return path, size and virtual key of an object whose name needs encoding."""
    key = next(k for k in pair.keys if "a%20b" in k)
    return f"/{pair.bucket}/{key}", len(pair.objects[key]), key


def test_objects_match_a_real_server(pair: ProxyAndServer) -> None:
    for key, body in pair.objects.items():
        for method in ("GET", "HEAD"):
            proxy, server = (side.ask(method, f"/{pair.bucket}/{key}") for side in pair.sides)
            assert described(proxy) == described(server)
            assert proxy.body == server.body == (body if method == "GET" else b"")
            assert proxy.headers["etag"].strip('"') == proxy.headers["etag"][1:-1] != ""
            assert parsedate_to_datetime(proxy.headers["last-modified"])


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("text", RANGES)
def test_a_range_is_that_of_a_real_server(pair: ProxyAndServer, text: str, method: str) -> None:
    path, size, _ = some_object(pair)
    parameters = {"range": text.format(size=size, last=size - 1, over=size + 1_000)}
    proxy = pair.proxy.ask(method, path, headers=parameters)
    # HeadObject: "If the Range is satisfiable, only the ContentLength is affected in the response. If [not], S3 returns
    # a 416". The test server ignores it for HEAD.
    server = pair.server.ask("GET", path, headers=parameters)
    names = HEADERS if server.status == 206 else ("content-range",)
    expected = described(server, names) | ({} if method == "GET" else {"code": ""})
    assert described(proxy, names) == expected
    assert proxy.status in (206, 416)
    if proxy.status == 206:
        assert proxy.body == (server.body if method == "GET" else b"")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("text", NO_RANGES)
def test_an_invalid_or_multiple_range_returns_the_whole_object(pair: ProxyAndServer, text: str, method: str) -> None:
    # RFC 9110, 14.2: "A server MUST ignore ... a Range header field ... that contains an unknown range unit", and one
    # that is malformed; S3: "doesn't support retrieving multiple ranges". The test server returns 416, or
    # the first of several.
    path, size, key = some_object(pair)
    whole = pair.proxy.ask(method, path, headers={"range": text})
    assert (whole.status, whole.headers["content-length"]) == (200, str(size))
    assert "content-range" not in whole.headers
    assert whole.body == (pair.objects[key] if method == "GET" else b"")


def conditions(of: HttpAnswer) -> list[dict[str, str]]:
    """Return each condition alone, true and false, and all combinations of two and three."""
    etag, date = of.headers["etag"], parsedate_to_datetime(of.headers["last-modified"])
    before, same, after = (format_datetime(date + timedelta(seconds=s), usegmt=True) for s in (-60, 0, 60))
    choices = {
        "if-match": (None, etag, etag.strip('"'), "*", '"other"', f'"other", {etag}'),
        "if-unmodified-since": (None, before, same, after, "no date"),
        "if-none-match": (None, etag, etag.strip('"'), "*", '"other"', f'"other", {etag}', f"W/{etag}"),
        "if-modified-since": (None, before, same, after, "no date"),
    }
    every = [{n: v for n, v in zip(choices, values, strict=True) if v} for values in product(*choices.values())]
    few = [e for e in every if len(e) <= 2]
    return few + [e for e in every if len(e) > 2][::17]


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_conditions_match_a_real_server(pair: ProxyAndServer, method: str) -> None:
    path, _, _ = some_object(pair)
    seen = set()
    grids = [conditions(side.ask("HEAD", path)) for side in pair.sides]
    for number, (ours, theirs) in enumerate(zip(*grids, strict=True)):
        proxy = pair.proxy.ask(method, path, headers=ours)
        server = pair.server.ask(method, path, headers=theirs)
        assert (proxy.status, proxy.code) == (server.status, server.code), ours
        if proxy.status == 304:
            assert (proxy.body, proxy.headers.get("content-length")) == (b"", None)
            assert {"etag", "last-modified"} <= proxy.headers.keys()
        seen.add(proxy.status)
        assert number < 1_000
    assert seen == {200, 304, 412}


def test_conditions_go_before_ranges(pair: ProxyAndServer) -> None:
    path, size, _ = some_object(pair)
    etag = pair.proxy.ask("HEAD", path).headers["etag"]
    for text, status in ((f"bytes={size}-", 416), ("bytes=0-3", 206)):
        parameters = {"range": text}
        assert pair.proxy.ask("GET", path, headers=parameters | {"if-none-match": etag}).status == 304
        assert pair.proxy.ask("GET", path, headers=parameters | {"if-match": '"other"'}).status == 412
        assert pair.proxy.ask("GET", path, headers=parameters | {"if-match": etag}).status == status
        assert pair.proxy.ask("GET", path, headers=parameters | {"if-range": etag}).status == status
        # If the object changed, the client needs the whole object (RFC 9110, 13.1.5).
        assert pair.proxy.ask("GET", path, headers=parameters | {"if-range": '"other"'}).status == 200
        assert (
            pair.proxy.ask("GET", path, headers=parameters | {"if-range": "Sat, 21 Nov 1998 00:00:00 GMT"}).status
            == 200
        )


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("number", "headers", "status", "code"),
    [
        # An object without multipart upload has one part. The test server ignores the parameter for it.
        ("1", {}, 206, ""),
        ("2", {}, 416, "InvalidPartNumber"),
        ("10000", {}, 416, "InvalidPartNumber"),
        # "Part number must be an integer between 1 and 10000, inclusive".
        ("0", {}, 400, "InvalidArgument"),
        ("10001", {}, 400, "InvalidArgument"),
        ("-1", {}, 400, "InvalidArgument"),
        ("one", {}, 400, "InvalidArgument"),
        ("1", {"range": "bytes=0-1"}, 400, "InvalidRequest"),
    ],
)
def test_part_numbers(
    pair: ProxyAndServer, number: str, headers: dict[str, str], status: int, code: str, method: str
) -> None:
    path, size, key = some_object(pair)
    answer = pair.proxy.ask(method, path, {"partNumber": number}, headers)
    assert (answer.status, answer.code) == (status, code if method == "GET" else "")
    if status == 206:
        assert answer.headers["content-range"] == f"bytes 0-{size - 1}/{size}"
        assert answer.body == (pair.objects[key] if method == "GET" else b"")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_missing_objects_match_a_real_server(pair: ProxyAndServer, method: str) -> None:
    key = pair.keys[0]
    paths = [
        f"/{pair.bucket}/{k}" for k in (key[:-1], key + "x", key.rpartition("/")[0] + "/", "d=2026-11-21", "..", "a//b")
    ]
    for path in [*paths, "/no-such-bucket-anywhere", f"/no-such-bucket-anywhere/{key}"]:
        proxy, server = (side.ask(method, path) for side in pair.sides)
        assert (proxy.status, proxy.code) == (server.status, server.code), path
        assert proxy.status == 404


# ------------------------------------------------------------------------------------------ buckets, and the service


def names_of(answer: HttpAnswer, tag: str) -> list[str | None]:
    return [e.text for e in ET.fromstring(answer.body).iter(f"{NAMESPACE}{tag}")]


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as running:
        yield running


@pytest.fixture
def table(local: Place) -> Table:
    made = Table.create(local.uri, partition_by=["u"])
    made.insert([{"u": u, "n": 1} for u in ("1", "2")])
    return made


@pytest.fixture
def tables(storage_options: dict[str, str]) -> Iterator[TableCatalog]:
    opened = TableCatalog(storage_options)
    yield opened
    opened.close()


def test_the_buckets_of_a_tenant_are_listed_by_name(runner: asyncio.Runner, tables: TableCatalog, table: Table) -> None:
    side = AppEndpoint(make_app(tables, [VirtualBucket(n, table.uri) for n in ("zoo", "events", "a-1")]), runner)
    answer = side.ask("GET", "/")
    assert names_of(answer, "Name") == ["a-1", "events", "zoo"]
    assert names_of(answer, "ID") == ["acme"]
    assert all(datetime.fromisoformat(str(t)).tzinfo == UTC for t in names_of(answer, "CreationDate"))
    nothing = AppEndpoint(make_app(tables, []), runner).ask("GET", "/")
    assert (nothing.status, names_of(nothing, "Name")) == (200, [])
    assert side.ask("HEAD", "/").status == 405
    assert tables.open_count == 0


@pytest.mark.parametrize(("region", "fields"), [("us-east-1", None), ("eu-central-1", "eu-central-1")])
def test_head_bucket_has_the_region(
    runner: asyncio.Runner, tables: TableCatalog, table: Table, region: str, fields: str | None
) -> None:
    side = AppEndpoint(make_app(tables, [VirtualBucket("events", table.uri)], region=region), runner)
    location = side.ask("GET", "/events", {"location": ""})
    assert names_of(location, "LocationConstraint") == [fields]
    for path in ("/events", "/events/"):
        head = side.ask("HEAD", path)
        assert (head.status, head.headers["x-amz-bucket-region"], head.body) == (200, region, b"")
    assert side.ask("HEAD", "/others").status == 404
    assert side.ask("GET", "/others", {"location": ""}).code == "NoSuchBucket"


def test_a_bucket_may_be_in_the_host_or_the_path(runner: asyncio.Runner, tables: TableCatalog, table: Table) -> None:
    side = AppEndpoint(make_app(tables, [VirtualBucket("events", table.uri)]), runner)
    by_path = side.ask("GET", "/events", {"list-type": "2"})
    for host in (f"events.{DOMAIN}", f"events.{DOMAIN}:8080", f"EVENTS.{DOMAIN.upper()}", f"events.{DOMAIN}."):
        assert listed(side.ask("GET", "/", {"list-type": "2"}, host=host)) == listed(by_path)
    key, *_ = listed(by_path)["keys"][0]
    by_host = side.ask("GET", f"/{key}", host=f"events.{DOMAIN}")
    assert by_host.body == side.ask("GET", f"/events/{key}").body != b""
    # The path does not have the bucket's name, and the domain itself is the service.
    assert side.ask("GET", f"/events/{key}", host=f"events.{DOMAIN}").code == "NoSuchKey"
    assert names_of(side.ask("GET", "/", host=DOMAIN), "Name") == ["events"]
    assert side.ask("GET", "/", host=f"others.{DOMAIN}").code == "NoSuchBucket"
    assert names_of(side.ask("GET", "/", host=f"not{DOMAIN}"), "Name") == ["events"]


def test_a_time_in_the_name_selects_an_older_view(runner: asyncio.Runner, tables: TableCatalog, table: Table) -> None:
    before_ms = table.snapshot().as_of_ms
    table.insert([{"u": "3", "n": 1}])
    side = AppEndpoint(make_app(tables, [VirtualBucket("events", table.uri)]), runner)
    now, then = (listed(side.ask("GET", f"/{n}", {"list-type": "2"})) for n in ("events", f"events--{before_ms}"))
    assert (len(now["keys"]), len(then["keys"])) == (3, 2)
    assert then["Name"] == f"events--{before_ms}"
    new = next(k for k, *_ in now["keys"] if k.startswith("u=3/"))
    assert side.ask("HEAD", f"/events/{new}").status == 200
    assert side.ask("HEAD", f"/events--{before_ms}/{new}").status == 404
    assert side.ask("GET", "/events@yesterday").code == "InvalidArgument"
    assert side.ask("GET", "/events@99999-01-01").code == "InvalidArgument"


# ------------------------------------------------------------------------------------------ refusals

REFUSED = ["acl", "cors", "policy", "tagging", "uploads", "versioning", "versions", "website", "torrent", "attributes"]


@pytest.mark.parametrize("name", REFUSED)
def test_other_subresources_are_not_implemented(pair: ProxyAndServer, name: str) -> None:
    for path in (f"/{pair.bucket}", f"/{pair.bucket}/{pair.keys[0]}"):
        assert described(pair.proxy.ask("GET", path, {name: ""}), ()) == {"status": 501, "code": "NotImplemented"}
        assert pair.proxy.ask("HEAD", path, {name: ""}).status == 501


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        *(({f"response-{name}": "text/plain"}, {}) for name in ("content-type", "content-disposition", "expires")),
        ({}, {"x-amz-server-side-encryption-customer-algorithm": "AES256"}),
    ],
)
def test_other_options_of_a_download_are_not_implemented(
    pair: ProxyAndServer, query: dict[str, str], headers: dict[str, str]
) -> None:
    assert pair.proxy.ask("GET", f"/{pair.bucket}/{pair.keys[0]}", query, headers).code == "NotImplemented"


def test_an_object_has_one_version(pair: ProxyAndServer) -> None:
    path = f"/{pair.bucket}/{pair.keys[0]}"
    assert pair.proxy.ask("GET", path, {"versionId": "null"}).body == pair.objects[pair.keys[0]]
    for version in ("1", "x"):
        proxy, server = (side.ask("GET", path, {"versionId": version}) for side in pair.sides)
        assert described(proxy, ()) == described(server, ()) == {"status": 404, "code": "NoSuchVersion"}
    # Clients send the name of the operation. S3 ignores unknown parameters.
    assert pair.proxy.ask("GET", path, {"x-id": "GetObject"}).status == 200


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("query", [{}, {"delete": ""}, {"uploads": ""}])
def test_nothing_can_be_written(pair: ProxyAndServer, method: str, query: dict[str, str]) -> None:
    for path in ("/", f"/{pair.bucket}", f"/{pair.bucket}/{pair.keys[0]}", f"/{pair.bucket}/new"):
        answer = pair.proxy.ask(method, path, query)
        assert (answer.status, answer.code, answer.headers["allow"]) == (405, "MethodNotAllowed", "GET, HEAD")
    assert pair.proxy.ask("PUT", f"/{pair.bucket}/new", body=b"content").code == "MethodNotAllowed"
    assert pair.proxy.ask("GET", f"/{pair.bucket}/{pair.keys[0]}").body == pair.objects[pair.keys[0]]


def test_an_error_has_one_id_in_headers_and_body(runner: asyncio.Runner, tables: TableCatalog, table: Table) -> None:
    lines = io.BytesIO()
    side = AppEndpoint(make_app(tables, [VirtualBucket("events", table.uri)], log=lines), runner)
    answer = side.ask("GET", "/events/<no> &such?key")
    root = ET.fromstring(answer.body)
    assert [e.tag for e in root] == ["Code", "Message", "Resource", "RequestId"]
    assert root.findtext("Resource") == "/events/%3Cno%3E%20%26such%3Fkey"
    assert root.findtext("RequestId") == answer.headers["x-amz-request-id"]
    assert answer.headers["content-type"] == "application/xml"
    assert answer.headers["content-length"] == str(len(answer.body))
    ids = [side.ask("GET", path).headers["x-amz-request-id"] for path in ("/events", "/events", "/")]
    assert len({root.findtext("RequestId"), *ids}) == 4
    head = side.ask("HEAD", "/events/none")
    assert (head.status, head.body) == (404, b"")
    logged = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert [line["request_id"] for line in logged][:4] == [answer.headers["x-amz-request-id"], *ids]
    assert [line["code"] for line in logged] == ["NoSuchKey", "", "", "", "NoSuchKey"]


# ------------------------------------------------------------------------------------------ redirects


@pytest.mark.sampled(days=3)
def test_a_get_is_redirected_to_the_store(runner: asyncio.Runner, tables: TableCatalog, s3: Place) -> None:
    table = make_table(s3)
    app = make_app(tables, [VirtualBucket("events", table.uri)], redirect=True, redirect_expires_ms=60_000)
    side = AppEndpoint(app, runner)
    for key, body in contents(table).items():
        answer = side.ask("GET", f"/events/{key}")
        assert (answer.status, answer.body, answer.headers["content-length"]) == (307, b"", "0")
        assert answer.headers["cache-control"] == "no-store"
        assert "X-Amz-Expires=60" in answer.headers["location"]
        with urlopen(answer.headers["location"], timeout=60) as got:
            assert got.read() == body
        head = side.ask("HEAD", f"/events/{key}")
        assert (head.status, head.headers["content-length"]) == (200, str(len(body)))
    # Clients repeat the request with the same range. The proxy itself responds if no bytes are needed.
    ranged = side.ask("GET", f"/events/{key}", headers={"range": "bytes=4-11"})
    with urlopen(Request(ranged.headers["location"], headers={"range": "bytes=4-11"}), timeout=60) as got:
        assert (got.status, got.read()) == (206, body[4:12])
    assert side.ask("GET", f"/events/{key}", {"partNumber": "1"}).status == 206  # a presigned URL has no part number
    assert side.ask("GET", f"/events/{key}", headers={"range": f"bytes={len(body)}-"}).status == 416
    assert side.ask("GET", f"/events/{key}", headers={"if-none-match": head.headers["etag"]}).status == 304
    assert side.ask("GET", "/events/none").status == 404
    assert side.ask("GET", "/events").status == 200


def test_a_local_table_is_never_redirected(runner: asyncio.Runner, tables: TableCatalog, local: Place) -> None:
    table = make_table(local)
    side = AppEndpoint(make_app(tables, [VirtualBucket("events", table.uri)], redirect=True), runner)
    for key, body in contents(table).items():
        answer = side.ask("GET", f"/events/{key}")
        assert (answer.status, answer.body) == (200, body)


def test_a_table_in_s3_is_read_for_the_client(runner: asyncio.Runner, tables: TableCatalog, s3: Place) -> None:
    table = make_table(s3)
    side = AppEndpoint(make_app(tables, [VirtualBucket("events", table.uri)]), runner)
    listed_entries = contents(table)
    assert [k for k, *_ in listed(side.ask("GET", "/events"))["keys"]] == sorted(listed_entries)
    for key, body in listed_entries.items():
        assert side.ask("GET", f"/events/{key}").body == body
        assert side.ask("GET", f"/events/{key}", headers={"range": "bytes=-8"}).body == body[-8:]


# ------------------------------------------------------------------------------------------ bodies of questions


@pytest.mark.parametrize("path", ["/{bucket}", "/{bucket}/{key}", "/"])
def test_an_unneeded_body_is_read_and_compared_with_its_hash(pair: ProxyAndServer, path: str) -> None:
    at = path.format(bucket=pair.bucket, key=pair.keys[0])
    plain = pair.proxy.ask("GET", at)
    right = pair.proxy.ask("GET", at, body=b"something")
    assert (right.status, right.body) == (200, plain.body)
    assert pair.proxy.ask("GET", at, body=b"something", signed_body=b"else").code == "XAmzContentSHA256Mismatch"
    assert pair.proxy.ask("GET", at, body=b"something", signed_body=b"").code == "XAmzContentSHA256Mismatch"
    assert pair.proxy.ask("GET", at, signed_body=b"something").code == "XAmzContentSHA256Mismatch"
    assert pair.proxy.ask("GET", at, body=b"x" * BODY_BYTES_MAX).status == 200
    large = pair.proxy.ask("GET", at, body=b"x" * (BODY_BYTES_MAX + 1))
    # The rest of the body is not read, so the connection closes.
    assert (large.status, large.code, large.headers["connection"]) == (400, "EntityTooLarge", "close")
