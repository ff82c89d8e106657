"""Fuzzing: the proxy responds as S3 does or disconnects, and a listing has each key exactly once.

Requests are random, from seeds, with parts that S3 knows and junk. They are sent to a real proxy with a local table.
"""

from __future__ import annotations

import random
import re
import socket
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import cycle
from urllib.parse import quote, quote_from_bytes, unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icedb import Table
from icedb.format.records import Marker
from icedb.services.proxy.catalog.bucket_view import BucketView
from icedb.services.proxy.s3.listing import list_page
from icedb.services.proxy.s3.request import S3Request
from tests.support.proxy.proxy_attacks import ACME, SOCKET_SECONDS, Asker, replies, wire
from tests.support.proxy.proxy_process import ProxyProcess
from tests.support.proxy.proxy_worlds import ProxyWorld, in_still_loop

REQUESTS = 500
#: Each is sent once on its own connection.
CONNECTIONS = 300
SEED = 20261121


@pytest.fixture(scope="module")
def keys() -> list[str]:
    """Filled by `asker`: the virtual keys that there are, in order."""
    return []


@pytest.fixture(scope="module")
def asker(keys: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    """A proxy before a table of forty parts."""
    folder = tmp_path_factory.mktemp("lake") / "events"
    table = Table.create(folder, partition_by=["d", "u"], storage_options={"fsync": "false"})
    table.insert([{"d": f"2026-11-2{d}", "u": f"ü{u}", "n": u} for d in range(5) for u in range(8)])
    keys += [part.key.partition("_data/")[2] for part in table.snapshot().parts]
    config = f"""
[server]
listen = "127.0.0.1:0"
header_timeout = "2s"

[[tenant]]
name = "acme"
keys = [{{ id = "{ACME.id}", secret = "{ACME.secret}" }}]
bucket = [{{ name = "events", table = "{folder}" }}]
"""
    with ProxyProcess(config) as proxy:
        yield Asker(proxy)


# ------------------------------------------------------------------------------------------------ requests of chance

PARAMETERS = (
    *("list-type", "prefix", "delimiter", "max-keys", "start-after", "continuation-token", "marker", "encoding-type"),
    *("fetch-owner", "location", "versionId", "partNumber", "x-id", "response-content-type", "acl", "versions"),
)
HEADERS = (
    *("range", "if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range", "date", "accept"),
    *("x-amz-date", "x-amz-content-sha256", "content-md5", "content-type", "origin", "expect", "user-agent"),
)
TEXTS = (
    *("", "0", "1", "2", "²", "-1", "7", "1000", "99999999999", "1e3", "true", "url", "*", "/", "u="),
    *("d=2026-11-21/", "null", "bytes=0-1", "bytes=-5", "bytes=5-", "bytes=9-1", "bytes=0-0,2-3", '"x"'),
    *('W/"x"', "Sat, 21 Nov 2026 10:00:00 GMT", "WzAsIiIsIiJd", "[]", "{}", "<a>", "&amp;", "]]>", "../", "%"),
    *("%00", "\\", "'", '"', ";", "ü", "\U0010ffff", "\uffff"),
)


def text(chance: random.Random) -> str:
    """Return known texts, or random characters without surrogates."""
    match chance.randrange(4):
        case 0:
            return chance.choice(TEXTS)
        case 1:
            return "".join(chance.choices(TEXTS, k=chance.randrange(1, 5)))
        case 2:
            return "".join(map(chr, (chance.randrange(0x100) for _ in range(chance.randrange(1, 30)))))
    return "".join(chr(chance.choice((chance.randrange(0xD800), chance.randrange(0xE000, 0x110000)))) for _ in range(9))


def encoded(chance: random.Random) -> str:
    """Return a text as clients encode it, or, rarely, invalid bytes."""
    if not chance.randrange(12):
        return quote_from_bytes(chance.randbytes(chance.randrange(1, 9)), safe="")
    return quote(text(chance), safe=chance.choice(("", "/", "/~'()!$*,:@")))


def any_query(chance: random.Random, asker: Asker, _: list[str]) -> S3Request:
    """Return a request that is mostly a listing."""
    names = chance.sample(PARAMETERS, k=chance.randrange(4)) + [encoded(chance) for _ in range(chance.randrange(2))]
    query = "&".join(f"{name}={encoded(chance)}" for name in names)
    return asker.ask("/events", f"list-type=2&{query}" if chance.randrange(2) and "list-type" not in names else query)


def any_path(chance: random.Random, asker: Asker, keys: list[str]) -> S3Request:
    """Return a request with known or random path segments."""
    steps = ["events", "events@1", "events--1795219200000", "..", ".", "", "_log", "%2e%2e", *map(quote, keys[:3])]
    path = "/".join(
        chance.choice(steps) if chance.randrange(3) else encoded(chance) for _ in range(chance.randrange(4))
    )
    if chance.randrange(2):
        path = f"events/{chance.choice((path, quote(keys[0]), ''))}"
    return asker.ask(f"/{path}", method=chance.choice(("GET", "HEAD")))


def any_headers(chance: random.Random, asker: Asker, keys: list[str]) -> S3Request:
    """Return a request for a part with conditions, ranges, and repeated signed headers."""
    names = chance.sample(HEADERS, k=chance.randrange(1, 5))
    more = tuple((name, re.sub("[\0-\x1f\x7f]", "", text(chance)).encode().decode("latin-1").strip()) for name in names)
    request = asker.ask(f"/events/{quote(keys[0])}")
    return replace(request, headers=(*request.headers, *more))


@pytest.mark.sampled(cases=1, days=3)
@pytest.mark.process
@pytest.mark.parametrize(
    ("make", "statuses"),
    [
        pytest.param(any_query, {200, 400, 403, 501}, id="query"),
        pytest.param(any_path, {200, 400, 403, 404, 405}, id="path"),
        pytest.param(any_headers, {200, 206, 304, 400, 403, 412, 416}, id="headers"),
    ],
)
def test_random_requests_get_responses_of_s3(
    asker: Asker, keys: list[str], make: Callable[[random.Random, Asker, list[str]], S3Request], statuses: set[int]
) -> None:
    chance = random.Random(SEED)
    seen: list[int] = []
    for _ in range(REQUESTS):
        request = make(chance, asker, keys)
        reply = asker.send(request)
        assert reply.status in statuses, (request, reply)
        if reply.header("content-type") == "application/xml" and request.method == "GET":
            ET.fromstring(reply.body)
        if reply.status == 403:  # a request that was not meant to be wrong is accepted
            assert {"x-amz-date", "x-amz-content-sha256", "date"} & {n for n, _ in request.headers[3:]}, request
        seen.append(reply.status)
    assert seen.count(400) >= REQUESTS // 50
    assert seen.count(200) + seen.count(206) >= REQUESTS // 10
    assert "Traceback" not in asker.proxy.errors()


def blobs(chance: random.Random, asker: Asker) -> Iterator[bytes]:
    """Yield bytes that are not a request, or a damaged one."""
    good = wire(asker.ask("/events", "list-type=2"), b"abc", close=False)
    pieces = [good, *good.split(b"\r\n"), b"\r\n", b"\r\n\r\n", b"\0", b"0\r\n\r\n", b"transfer-encoding: chunked\r\n"]
    while True:
        match chance.randrange(4):
            case 0:
                yield chance.randbytes(chance.choice((1, 10, 100, 5_000, 50_000)))
            case 1:
                yield b"".join(chance.choices(pieces, k=chance.randrange(1, 9)))
            case 2:
                broken = bytearray(good)
                for _ in range(chance.randrange(1, 6)):
                    broken[chance.randrange(len(broken))] = chance.randrange(256)
                yield bytes(broken)
            case _:
                start, stop = sorted(chance.choices(range(len(good)), k=2))
                yield good[:start] + good[stop:]


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_the_proxy_survives_any_bytes(asker: Asker) -> None:
    chance = random.Random(SEED)
    made = blobs(chance, asker)
    answered = 0
    for number in range(CONNECTIONS):
        for reply in replies(hung_up(asker.proxy.port, next(made))):
            assert reply.status in {200, 400, 403, 405}
            answered += 1
        if number % 20 == 0:
            assert asker.send(asker.ask("/events")).status == 200
    assert answered >= CONNECTIONS // 4
    assert asker.proxy.alive()
    assert "Traceback" not in asker.proxy.errors()


def hung_up(port: int, sent: bytes) -> bytes:
    """Send all, close the sending side, and read the rest."""
    received = bytearray()
    with socket.create_connection(("127.0.0.1", port), timeout=SOCKET_SECONDS) as connection, suppress(ConnectionError):
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        while piece := connection.recv(65_536):
            received += piece
    return bytes(received)


# ------------------------------------------------------------------------------------------------ listings end

#: Few letters, so that keys share prefixes, and characters at the bounds of orders and successors.
letters = st.sampled_from("aab/=-.ü\ud7ff\ue000\uffff\U00010000\U0010ffff")
names = st.text(letters, max_size=6)
key_sets = st.lists(st.text(letters, min_size=1, max_size=8), max_size=25, unique=True).map(sorted)
listings = st.tuples(names, st.just("") | st.just("/") | st.text(letters, min_size=1, max_size=3))
page_sizes = st.lists(st.integers(1, 5), min_size=1, max_size=5)


def entries_of_s3(keys: list[str], prefix: str, delimiter: str, after: str) -> list[str]:
    """Return keys and common prefixes in the order of their bytes, as S3's API reference defines it."""
    entries: dict[str, None] = {}
    for key in sorted(keys, key=str.encode):
        if key.startswith(prefix) and key.encode() > after.encode():
            _, delimited, rest = key.removeprefix(prefix).partition(delimiter) if delimiter else ("", "", "")
            entries[key.removesuffix(rest) if delimited else key] = None
    entries.pop(after, None)  # the common prefix at the end of the previous page
    return list(entries)


Turn = Callable[[str, int], tuple[list[str], str, bool]]


def followed(turn: Turn, sizes: Iterator[int], after: str, *, pages_max: int) -> list[str]:
    """Return all entries. `turn` returns the entries after one, the last of them, and whether there are more."""
    all_entries: list[str] = []
    for _ in range(pages_max):
        size = next(sizes)
        entries, last, more = turn(after, size)
        assert len(entries) == size if more else len(entries) <= size
        all_entries += entries
        if not more:
            return all_entries
        after = last
    raise AssertionError(f"it goes on after {pages_max} pages")


@pytest.mark.sampled(days=3)
@pytest.mark.long
@settings(max_examples=400)
@given(keys=key_sets, listing=listings, after=names, sizes=page_sizes)
def test_pages_match_s3(keys: list[str], listing: tuple[str, str], after: str, sizes: list[int]) -> None:
    prefix, delimiter = listing

    def turn(after: str, size: int) -> tuple[list[str], str, bool]:
        page = list_page(keys, prefix=prefix, delimiter=delimiter, after=after, size=size)
        entries = sorted([keys[n] for n in page.numbers] + list(page.prefixes))
        assert page.last == (entries[-1] if entries else "")
        return entries, page.last, page.truncated

    expected = entries_of_s3(keys, prefix, delimiter, after)
    assert followed(turn, cycle(sizes), after, pages_max=len(keys) + 1) == expected


@pytest.mark.sampled(days=3)
@pytest.mark.long
@settings(max_examples=200)
@given(st.sampled_from(["_data/", "a/b/_data/", "\U0010ffff/_data/"]), key_sets, listings, names, page_sizes)
def test_pages_of_a_view_are_of_virtual_keys(
    data_prefix: str, keys: list[str], listing: tuple[str, str], after: str, sizes: list[int]
) -> None:
    prefix, delimiter = listing
    view = BucketView.of([Marker(data_prefix + k, 1, 1, 0) for k in keys], data_prefix=data_prefix, as_of_ms=0)

    def turn(after: str, size: int) -> tuple[list[str], str, bool]:
        objects, page = view.page(prefix=prefix, delimiter=delimiter, after=after, size=size)
        entries = sorted([o.key for o in objects] + [view.virtual(p) for p in page.prefixes])
        return entries, view.virtual(page.last), page.truncated

    expected = entries_of_s3(keys, prefix, delimiter, after)
    assert followed(turn, cycle(sizes), after, pages_max=len(keys) + 1) == expected


LISTINGS = {
    "all": ("", ""),
    "days": ("", "/"),
    "users of a day": ("d=2026-11-22/", "/"),
    "several characters": ("", "/u="),
    "a letter": ("d=2026-11-2", "%"),
    "nothing": ("x", ""),
}


def page_over_http(
    asker: Asker, version: int, prefix: str, delimiter: str, after: str, size: int
) -> tuple[list[str], str, bool]:
    """Request the page after `after`: a key for version 1, a token for version 2, or empty for the first page."""
    query = f"prefix={quote(prefix, safe='')}&delimiter={quote(delimiter, safe='')}&max-keys={size}&encoding-type=url"
    if version == 2:
        query += f"&list-type=2&continuation-token={quote(after, safe='')}" if after else "&list-type=2"
    else:
        query += f"&marker={quote(after, safe='')}"
    reply = asker.send(asker.ask("/events", query))
    assert reply.status == 200
    common = reply.texts("Prefix")[1:]  # the first repeats what was asked for
    entries = sorted(map(unquote, [*reply.keys, *common]))
    more = reply.texts("IsTruncated") == ["true"]
    if version == 2:
        return entries, "".join(reply.texts("NextContinuationToken")), more
    return entries, unquote("".join(reply.texts("NextMarker"))) or (entries[-1] if entries else ""), more


@pytest.mark.process
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("listing", LISTINGS)
def test_pages_over_http_end_and_match_s3(asker: Asker, keys: list[str], listing: str, version: int) -> None:
    prefix, delimiter = LISTINGS[listing]
    chance = random.Random(SEED)
    sizes = iter(lambda: chance.randrange(1, 12), None)
    turn = partial(page_over_http, asker, version, prefix, delimiter)
    expected = entries_of_s3(keys, prefix, delimiter, "")
    assert bool(expected) == (listing != "nothing")
    assert followed(turn, sizes, "", pages_max=len(keys) + 1) == expected


@pytest.mark.long
@in_still_loop
async def test_a_listing_continues_beside_listings_of_earlier_times() -> None:
    """The other requests share the view of the listing, whose next page keeps its own time."""
    world = ProxyWorld()
    world.add("u=1", "u=2")
    tables, bucket = world.tables(hold_ms=1_000, refresh_ms=0), world.bucket()
    world.advance(60_000)
    page = await tables.view(bucket, None)
    for _ in range(3):
        earlier = await tables.view(bucket, page.as_of_ms - 900)
        assert earlier.snapshot_id == page.snapshot_id
        again = await tables.resume_view(bucket, None, began_ms=page.as_of_ms, snapshot_id=page.snapshot_id)
        assert again is not None
        page = again
        world.advance(200)
