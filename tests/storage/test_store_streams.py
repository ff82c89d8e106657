"""Asynchronous streams of byte ranges, and signed addresses, for all stores and for a server that breaks off."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import pytest

from icedb.errors import AccessDenied, BucketNotFound, IceDBError, StoreUnavailable
from icedb.storage import obstore_store as store_module
from icedb.storage.location import parse_location, with_log
from icedb.storage.obstore_store import PIECE_BYTES, ObjectNotFound, ObjectStore, open_store, open_stream, presign
from icedb.storage.split_store import SplitStore
from icedb.testing import ClockedStore, Fault, FaultyStore, ManualClock
from tests.support.object_stores.stores import CLOUDS, Place
from tests.support.waiting import wait_until

# More than two pieces, and not a number of whole ones.
BODY = b"".join(hashlib.sha512(n.to_bytes(4)).digest() for n in range(40_000))
LARGE_BYTES = 64 * 1024 * 1024

KINDS = ["local", "memory", pytest.param("s3", marks=pytest.mark.s3), *CLOUDS]
KINDS += ["clocked", "two"]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest) -> ObjectStore:
    if request.param == "clocked":
        return ClockedStore(ManualClock())
    place: Place = request.getfixturevalue("local" if request.param == "two" else request.param)
    location = parse_location(place.uri, place.storage_options)
    if request.param == "two":
        location = with_log(location, f"{place.uri}-log")
    return open_store(location)


def _key(store: ObjectStore, path: str = "_data/d=1/part.parquet") -> str:
    return f"{store.location.prefix}/{path}".lstrip("/")


async def _read(store: ObjectStore, key: str, start: int, stop: int) -> bytes:
    return b"".join([piece async for piece in await open_stream(store, key, start, stop)])


async def _begin(store: ObjectStore, key: str, start: int, stop: int) -> None:
    await open_stream(store, key, start, stop)


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(
    ("start", "stop"),
    [
        (0, 1),
        (len(BODY) - 1, len(BODY)),
        (0, len(BODY)),
        (PIECE_BYTES, 2 * PIECE_BYTES),
        (PIECE_BYTES - 1, 2 * PIECE_BYTES + 1),
    ],
)
def test_a_range_is_read_exactly(store: ObjectStore, start: int, stop: int) -> None:
    store.create(_key(store), BODY)
    assert asyncio.run(_read(store, _key(store), start, stop)) == BODY[start:stop]


def test_a_range_comes_in_pieces(store: ObjectStore) -> None:
    store.create(_key(store), BODY)

    async def sizes() -> list[int]:
        return [len(piece) async for piece in await open_stream(store, _key(store), 0, len(BODY))]

    lengths = asyncio.run(sizes())
    assert sum(lengths) == len(BODY)
    assert all(PIECE_BYTES <= size < 2 * PIECE_BYTES for size in lengths[:-1])
    assert 0 < lengths[-1] < 2 * PIECE_BYTES  # the network determines where a piece ends


def test_a_missing_object_raises_before_the_first_piece(store: ObjectStore) -> None:
    with pytest.raises(ObjectNotFound):
        asyncio.run(_begin(store, _key(store), 0, 10))
    store.create(_key(store, "_data/d=1/another.parquet"), b"x")  # now the folder exists
    with pytest.raises(ObjectNotFound):
        asyncio.run(_begin(store, _key(store), 0, 10))


@pytest.mark.parametrize("start", [0, 5, 10, 15])
def test_an_object_with_too_few_bytes_raises_before_the_first_piece(store: ObjectStore, start: int) -> None:
    store.create(_key(store), b"0123456789")
    with pytest.raises(StoreUnavailable, match="part"):
        asyncio.run(_begin(store, _key(store), start, 20))


def test_a_log_in_a_store_of_its_own_is_read_there(local: Place, memory: Place) -> None:
    both = open_store(with_log(parse_location(local.uri), memory.uri))
    assert isinstance(both, SplitStore)
    key = both.location.keys.log_prefix + "a"
    both.log.create(key, b"log")
    assert asyncio.run(_read(both, key, 0, 3)) == b"log"


def test_another_implementation_of_a_store_is_called_in_a_thread() -> None:
    inner = ClockedStore(ManualClock())
    inner.create("_data/p", b"body")
    faulty = FaultyStore(inner)
    asked_by: list[str] = []
    faulty.before = lambda _: asked_by.append(threading.current_thread().name)
    assert asyncio.run(_read(faulty, "_data/p", 1, 3)) == b"od"
    assert asked_by != [threading.main_thread().name]
    assert len(asked_by) == 1
    faulty.inject(Fault.FAIL, kind="get")
    with pytest.raises(StoreUnavailable):
        asyncio.run(_read(faulty, "_data/p", 1, 3))


def test_a_file_that_shrinks_while_it_is_read_raises(local: Place) -> None:
    store = open_store(parse_location(local.uri))
    store.create("_data/p", BODY)

    async def read() -> bytes:
        stream = await open_stream(store, "_data/p", 0, len(BODY))
        first = await anext(stream)
        with Path(local.uri, "_data/p").open("r+b") as file:
            file.truncate(PIECE_BYTES + 7)
        return first + await anext(stream)

    with pytest.raises(StoreUnavailable, match="did not return all of its bytes"):
        asyncio.run(read())


# ------------------------------------------------------------------------------------------ loops and threads


def test_fifty_ranges_are_read_at_once(place: Place) -> None:
    store = open_store(parse_location(place.uri, place.storage_options))
    store.create(_key(store), BODY)

    async def read_all() -> list[bytes]:
        return await asyncio.gather(*(_read(store, _key(store), a, b) for a, b in _fifty()))

    assert asyncio.run(read_all()) == [BODY[a:b] for a, b in _fifty()]


def _fifty() -> list[tuple[int, int]]:
    bounds = [len(BODY) * n // 50 for n in range(51)]
    return list(pairwise(bounds))


def test_one_store_serves_loops_of_several_threads(place: Place) -> None:
    store = open_store(parse_location(place.uri, place.storage_options))
    store.create(_key(store), BODY)
    bodies: list[bytes] = []

    async def read_some() -> None:
        for _ in range(3):
            pieces = await asyncio.gather(*(_read(store, _key(store), a, b) for a, b in _fifty()[::5]))
            bodies.append(b"".join(pieces))

    threads = [threading.Thread(target=lambda: asyncio.run(read_some())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bodies == [b"".join(BODY[a:b] for a, b in _fifty()[::5])] * 6


# ------------------------------------------------------------------------------------------ refusals


@pytest.mark.s3
def test_an_access_error_quotes_no_secret(s3: Place) -> None:
    assert s3.storage_options is not None
    secret = "wrongwrongwrongwrongwrongwrongwrongwrong"
    wrong = open_store(parse_location(s3.uri, s3.storage_options | {"AWS_SECRET_ACCESS_KEY": secret}))
    with pytest.raises(AccessDenied, match="Check the access key") as caught:
        asyncio.run(_read(wrong, _key(wrong), 0, 1))
    assert secret not in str(caught.value)
    assert s3.storage_options["AWS_ACCESS_KEY_ID"] not in str(caught.value)
    elsewhere = open_store(parse_location("s3://no-such-bucket/table", s3.storage_options))
    with pytest.raises(BucketNotFound, match="no-such-bucket"):
        asyncio.run(_read(elsewhere, _key(elsewhere), 0, 1))


def test_an_unreachable_store_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "RETRIES_MAX", 1)
    with pytest.raises(StoreUnavailable, match="Check the endpoint"):
        asyncio.run(_read(_of_server("http://127.0.0.1:1"), "t/p", 0, 1))


# ------------------------------------------------------------------------------------------ a server that breaks off


@dataclass
class BreakingServer:
    """A server of one object for any key. Response n (from 0) breaks off after `breaks(n)` bytes, if not None."""

    body: bytes
    breaks: Callable[[int], int | None]
    endpoint: str = ""
    #: The first byte and the number of sent bytes of each finished response.
    answers: list[tuple[int, int]] = field(default_factory=list)
    #: The client ports of the requests.
    ports: set[int] = field(default_factory=set)

    @contextmanager
    def running(self) -> Iterator[BreakingServer]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def _handler(of: BreakingServer) -> type[BaseHTTPRequestHandler]:
    numbers = iter(range(1_000_000))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            start, end = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            limit = of.breaks(next(numbers))
            sent = 0
            of.ports.add(self.client_address[1])
            try:
                self.send_response(206)
                self.send_header("Content-Length", str(end + 1 - start))
                self.send_header("Content-Range", f"bytes {start}-{end}/{len(of.body)}")
                self.send_header("Last-Modified", "Sat, 21 Nov 2026 00:00:00 GMT")
                self.send_header("ETag", '"one"')
                self.end_headers()
                stop = end + 1 if limit is None else min(end + 1, start + limit)
                while start + sent < stop:
                    sent += self.wfile.write(of.body[start + sent : min(start + sent + 65_536, stop)])
            except ConnectionError:
                limit = sent
            of.answers.append((start, sent))
            self.close_connection = limit is not None

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class's name
            """Say nothing."""

    return Handler


def _of_server(endpoint: str) -> ObjectStore:
    options = {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    return open_store(parse_location("s3://bucket/t", options))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timeouts of the client."""
    monkeypatch.setattr(store_module, "RETRIES_MAX", 1)


@pytest.mark.sampled(days=3)
@pytest.mark.long
@pytest.mark.usefixtures("impatient")
def test_a_stream_continues_where_the_server_broke_off() -> None:
    with BreakingServer(BODY * 4, lambda _: PIECE_BYTES + 100_000).running() as server:
        assert asyncio.run(_read(_of_server(server.endpoint), "t/p", 7, len(server.body) - 7)) == server.body[7:-7]
    assert len(server.answers) > 2 + store_module.RETRIES_MAX  # more than one request and the client's own retries


@pytest.mark.sampled(days=3)
@pytest.mark.usefixtures("impatient")
def test_a_server_that_stops_raises_unavailable_after_its_last_piece() -> None:
    with BreakingServer(BODY, lambda n: 0 if n else PIECE_BYTES + 100_000).running() as server:

        async def read() -> tuple[bytes, IceDBError]:
            stream = await open_stream(_of_server(server.endpoint), "t/p", 0, len(BODY))
            first = await anext(stream)
            with pytest.raises(StoreUnavailable, match="cannot read 't/p'") as caught:
                await anext(stream)
            return first, caught.value

        first, error = asyncio.run(read())
    assert BODY.startswith(first)
    assert "secret" not in str(error)


@pytest.mark.slow(seconds=15)
def test_a_reader_may_take_longer_than_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "REQUEST_TIMEOUT", timedelta(seconds=5))
    monkeypatch.setattr(store_module, "RETRY_TIMEOUT", timedelta(seconds=4))
    body = BODY * 13  # more than the buffers of the sockets hold

    async def read_slowly(endpoint: str) -> str:
        digest = hashlib.sha256()
        pieces = 0
        async for piece in await open_stream(_of_server(endpoint), "t/p", 0, len(body)):
            digest.update(piece)
            pieces += 1
            await asyncio.sleep(6 if pieces in (1, 5) else 0)  # longer than a request and its retries
        return digest.hexdigest()

    with BreakingServer(body, lambda _: None).running() as server:
        assert asyncio.run(read_slowly(server.endpoint)) == hashlib.sha256(body).hexdigest()
    assert len(server.answers) > 2


@pytest.mark.sampled(days=3)
def test_a_connection_is_used_for_one_stream_after_the_other() -> None:
    with BreakingServer(BODY, lambda _: None).running() as server:

        async def read() -> None:
            store = _of_server(server.endpoint)
            for start in range(0, 50 * 1_000, 1_000):
                assert await _read(store, "t/p", start, start + 1_000) == BODY[start : start + 1_000]
            assert await _read(store, "t/p", 0, len(BODY)) == BODY

        asyncio.run(read())
    assert len(server.answers) == 51
    assert len(server.ports) < 10


@pytest.mark.sampled(days=3)
@pytest.mark.long
@pytest.mark.parametrize("how", ["closed", "dropped", "never begun"])
def test_an_abandoned_stream_ends_its_request(how: str) -> None:
    with BreakingServer(bytes(LARGE_BYTES), lambda _: None).running() as server:

        async def begin() -> None:
            stream = await open_stream(_of_server(server.endpoint), "t/p", 0, LARGE_BYTES)
            if how != "never begun":
                await anext(stream)
            if how == "closed":
                await stream.aclose()  # type: ignore[attr-defined]
            else:
                del stream
                gc.collect()
            await asyncio.to_thread(wait_until, lambda: server.answers, "the end of the response")

        asyncio.run(begin())
        [(start, sent)] = server.answers
    assert start == 0
    assert sent < LARGE_BYTES


# ------------------------------------------------------------------------------------------ signed addresses


@pytest.mark.s3
def test_a_signed_address_needs_no_credentials(s3: Place) -> None:
    store = open_store(parse_location(s3.uri, s3.storage_options))
    key = _key(store, "_data/d=a%2Fb ü+c/part.parquet")
    store.create(key, b"body")
    address = presign(store, key, expires=timedelta(minutes=5))
    assert address is not None
    with urllib.request.urlopen(address) as answer:
        assert answer.read() == b"body"
    with pytest.raises(urllib.error.HTTPError):  # the address is valid for this object only
        urllib.request.urlopen(address.replace("part.parquet", "other.parquet"))
    with_its_log = open_store(with_log(store.location, f"{s3.uri}-log"))
    assert presign(with_its_log, key, expires=timedelta(minutes=5)) is not None


@pytest.mark.s3
def test_a_provider_is_called_for_each_address(s3: Place) -> None:
    assert s3.storage_options is not None
    keys = {
        "access_key_id": s3.storage_options["AWS_ACCESS_KEY_ID"],
        "secret_access_key": s3.storage_options["AWS_SECRET_ACCESS_KEY"],
    }
    answers: list[dict[str, str] | None] = [keys]
    options = {"AWS_ENDPOINT_URL": s3.storage_options["AWS_ENDPOINT_URL"], "AWS_REGION": "us-east-1"}
    store = open_store(parse_location(s3.uri, options, credential_provider=lambda: answers[-1]))
    store.create(_key(store), b"body")
    address = presign(store, _key(store), expires=timedelta(minutes=5))
    assert address is not None
    assert asyncio.run(_read(store, _key(store), 0, 4)) == urllib.request.urlopen(address).read() == b"body"
    answers.append(keys | {"access_key_id": "ANOTHER"})
    assert "ANOTHER" in (presign(store, _key(store), expires=timedelta(minutes=5)) or "")
    answers.append(None)
    with pytest.raises(AccessDenied, match="there are no credentials any more"):
        presign(store, _key(store), expires=timedelta(minutes=5))


def test_a_store_without_signatures_has_no_signed_addresses(local: Place, memory: Place) -> None:
    unsigned = parse_location("s3://bucket/t", {"AWS_REGION": "us-east-1"}, credential_provider=lambda: None)
    for location in (parse_location(local.uri), parse_location(memory.uri), unsigned):
        assert presign(open_store(location), "t/_data/p", expires=timedelta(minutes=5)) is None
    assert presign(ClockedStore(ManualClock()), "_data/p", expires=timedelta(minutes=5)) is None
