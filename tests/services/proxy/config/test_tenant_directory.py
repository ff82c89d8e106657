"""Tenant directories of the proxy: a file that changes, and a control plane over real HTTP.

The control plane is an HTTP server of this process on 127.0.0.1. The test controls the clock of the cache.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qs, urlsplit

import pytest

from icedb.services.proxy.config.config_file import load_config
from icedb.services.proxy.config.control_plane import BODY_BYTES_MAX, UNKNOWN_CONCURRENT, UNKNOWN_WAITING, ControlPlane
from icedb.services.proxy.config.settings import ControlPlaneSettings
from icedb.services.proxy.config.tenant_directory import DirectoryChain, FileDirectory
from icedb.services.proxy.config.tenants import AccessKey, KeyOwner, Tenant, TenantDirectory
from icedb.services.proxy.s3.s3_errors import S3Error

SECRET = "sEcReT/that-must+not-be-shown"
TOKEN = "tOkEn.that-must-not-be-shown"
#: Deadline of events that must happen, on a busy machine.
DEADLINE_SECONDS = 120
#: Deadline of events that must not happen: longer than all deadlines of a test.
NEVER_SECONDS = 3 * DEADLINE_SECONDS


@pytest.fixture(autouse=True)
def _all_logs(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Check that no log line, down to DEBUG and with those of the HTTP client, has a secret."""
    caplog.set_level(logging.DEBUG)
    yield
    logged = "\n".join(r.getMessage() for r in caplog.get_records("call"))
    assert "sEcReT" not in logged
    assert "tOkEn" not in logged


# The file.


@dataclass
class TenantsConfig:
    """A `proxy.toml` in its own folder."""

    folder: Path
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.folder / "proxy.toml"

    def write(self, *keys: str, server: str = "") -> None:
        """Write a file of one tenant with these keys in TOML."""
        self.path.write_text(f'[server]\n{server}\n[[tenant]]\nname = "acme"\nkeys = [{", ".join(keys)}]\n')

    def directory(self) -> FileDirectory:
        return FileDirectory(self.path, load_config(self.path, self.environ), self.environ)


def inline(key_id: str, secret: str = SECRET) -> str:
    return f'{{ id = "{key_id}", secret = "{secret}" }}'


def secret_of(directory: TenantDirectory, key_id: str) -> str | None:
    owner = asyncio.run(directory.find(key_id))
    return None if owner is None else owner.key.secret


@pytest.fixture
def file(tmp_path: Path) -> TenantsConfig:
    config = TenantsConfig(tmp_path)
    config.write(inline("OLDKEY"))
    return config


def test_the_file_directory_finds_the_owners_of_its_keys(file: TenantsConfig) -> None:
    file.write(inline("KEY1"), inline("KEY2", SECRET + "2"))
    directory = file.directory()
    owner = asyncio.run(directory.find("KEY2"))
    assert owner is not None
    assert (owner.tenant.name, owner.key) == ("acme", AccessKey("KEY2", SECRET + "2"))
    assert [secret_of(directory, k) for k in ("KEY3", "", "key1")] == [None, None, None]


def test_a_key_is_rotated_without_a_restart(file: TenantsConfig, caplog: pytest.LogCaptureFixture) -> None:
    directory = file.directory()
    assert not directory.changed()
    file.write(inline("OLDKEY"), inline("NEWKEY", SECRET + "2"))
    assert directory.changed()
    assert (secret_of(directory, "OLDKEY"), secret_of(directory, "NEWKEY")) == (SECRET, None)
    assert directory.reload()
    assert not directory.changed()
    assert (secret_of(directory, "OLDKEY"), secret_of(directory, "NEWKEY")) == (SECRET, SECRET + "2")
    file.write(inline("NEWKEY", SECRET + "2"))
    assert directory.reload()
    assert (secret_of(directory, "OLDKEY"), secret_of(directory, "NEWKEY")) == (None, SECRET + "2")
    assert "1 tenants, 1 keys" in caplog.text
    assert "restart" not in caplog.text


@pytest.mark.parametrize("wrong", ["keys = [", '[[tenant]]\nname = "acme"\nkeys = []', None])
def test_an_invalid_file_changes_nothing(
    file: TenantsConfig, wrong: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    directory = file.directory()
    if wrong is None:
        file.path.unlink()
    else:
        file.path.write_text(wrong)
    assert directory.changed()
    assert not directory.reload()
    assert secret_of(directory, "OLDKEY") == SECRET
    assert "the tenants are unchanged" in caplog.text
    assert str(file.path) in caplog.text
    assert not directory.changed(), "it would be read and reported repeatedly"
    file.write(inline("NEWKEY"))
    assert directory.changed()
    assert directory.reload()
    assert (secret_of(directory, "OLDKEY"), secret_of(directory, "NEWKEY")) == (None, SECRET)


def test_a_secret_in_a_file_of_its_own_is_rotated(file: TenantsConfig) -> None:
    secret = file.folder / "secret"
    secret.write_text(SECRET)
    file.write('{ id = "KEY1", secret_file = "secret" }')
    directory = file.directory()
    other = file.folder / "other"
    other.write_text(SECRET[::-1])  # same size and time (set below), so only the inode differs
    before = secret.stat()
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(secret)
    assert directory.changed()
    assert directory.reload()
    assert secret_of(directory, "KEY1") == SECRET[::-1]
    assert not directory.changed()


def test_a_missing_secret_file_is_loaded_later(file: TenantsConfig, caplog: pytest.LogCaptureFixture) -> None:
    directory = file.directory()
    file.write('{ id = "KEY1", secret_file = "secret" }')
    assert not directory.reload()
    assert "secret_file names cannot be read (No such file or directory)" in caplog.text
    assert not directory.changed()
    (file.folder / "secret").write_text(SECRET)
    assert directory.changed()
    assert directory.reload()
    assert (secret_of(directory, "KEY1"), secret_of(directory, "OLDKEY")) == (SECRET, None)


def test_a_secret_in_the_environment_is_reloaded(file: TenantsConfig) -> None:
    file.environ["ACME"] = SECRET
    file.write('{ id = "KEY1", secret_env = "ACME" }')
    directory = file.directory()
    file.environ["ACME"] = SECRET + "2"
    assert directory.reload()
    assert secret_of(directory, "KEY1") == SECRET + "2"


def test_settings_of_the_server_take_a_restart(file: TenantsConfig, caplog: pytest.LogCaptureFixture) -> None:
    directory = file.directory()
    file.write(inline("NEWKEY"), server='connections = 7\nregion = "eu-central-1"')
    file.path.write_text(f'{file.path.read_text()}[storage_options]\nAWS_SESSION_TOKEN = "{SECRET}"')
    for _ in range(2):  # the running configuration is still the first one
        caplog.clear()
        assert directory.reload()
        assert (
            "changes of server.connections, server.region, storage_options take effect after a restart" in caplog.text
        )
    assert secret_of(directory, "NEWKEY") == SECRET


class FixedDirectory:
    """A directory of one key. Without a key, lookups fail."""

    def __init__(self, key_id: str | None, tenant: str = "acme") -> None:
        self.key_id = key_id
        self.tenant = tenant

    async def find(self, access_key_id: str) -> KeyOwner | None:
        if self.key_id is None:
            raise S3Error("ServiceUnavailable")
        key = AccessKey(self.key_id, SECRET)
        return KeyOwner(Tenant(self.tenant, (key,), {}), key) if access_key_id == self.key_id else None


def test_the_first_directory_that_has_a_key_decides() -> None:
    async def owner(key_id: str, *directories: TenantDirectory) -> str | None:
        owner = await DirectoryChain(directories).find(key_id)
        return owner and owner.tenant.name

    assert asyncio.run(owner("KEY", FixedDirectory("KEY", "first"), FixedDirectory("KEY", "second"))) == "first"
    assert asyncio.run(owner("KEY", FixedDirectory("OTHER", "first"), FixedDirectory("KEY", "second"))) == "second"
    assert asyncio.run(owner("KEY", FixedDirectory("OTHER"), FixedDirectory("ANOTHER"))) is None
    assert asyncio.run(owner("KEY", FixedDirectory("KEY", "first"), FixedDirectory(None))) == "first"
    with pytest.raises(S3Error):
        asyncio.run(owner("KEY", FixedDirectory(None), FixedDirectory("KEY")))


# The control plane.


@dataclass
class LookupRequest:
    """A request of the proxy."""

    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]


class FakeControlPlane:
    """A control plane with a response that the test sets, and its client in the proxy."""

    client: ControlPlane

    def __init__(self) -> None:
        #: The time of the client's clock.
        self.ms = 0.0
        self.requests: list[LookupRequest] = []
        self.status = 200
        self.headers: dict[str, str] = {}
        #: The body of responses. None: the document of the key's owner.
        self.body: bytes | None = None
        #: Requests for keys with this prefix are counted, and then wait until `go_on` is set.
        self.holds = ""
        self.go_on = threading.Event()
        self.go_on.set()
        #: Responses wait for this event after the headers.
        self.go_on_with_body = threading.Event()
        self.go_on_with_body.set()
        #: Pause after each byte.
        self.pause_seconds = 0.0
        self._closing = threading.Event()
        self._server = _ControlPlaneServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/keys"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def answers(self, *, status: int = 200, body: object = None, **headers: str) -> None:
        """Set the response, with a body of bytes or a JSON value."""
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.body = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()

    async def find(self, key_id: str) -> KeyOwner | None:
        """Look up a key with the client."""
        return await self.client.find(key_id)

    def write(self, body: bytes, file: BinaryIO) -> None:
        self.go_on_with_body.wait(DEADLINE_SECONDS)
        if not self.pause_seconds:
            file.write(body)
            return
        for n in range(len(body)):
            file.write(body[n : n + 1])
            if self._closing.wait(self.pause_seconds):
                return

    def close(self) -> None:
        self._closing.set()
        self.go_on.set()
        self.go_on_with_body.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _ControlPlaneServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 100  # not 5: the system retries a full queue only after a second or more


def _handler(service: FakeControlPlane) -> type[BaseHTTPRequestHandler]:
    class ControlPlaneHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            address = urlsplit(self.path)
            query = parse_qs(address.query)
            headers = {n.lower(): v for n, v in self.headers.items()}
            service.requests.append(LookupRequest(address.path, query, headers))
            if query["access_key_id"][0].startswith(service.holds):
                service.go_on.wait(DEADLINE_SECONDS)
            body = service.body or json.dumps(document(query["access_key_id"][0])).encode()
            with suppress(OSError):  # the proxy may have disconnected
                self.send_response(service.status)
                for name, value in {"Content-Length": str(len(body)), **service.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                service.write(body, self.wfile)

        def log_message(self, *_args: object) -> None:
            pass

    return ControlPlaneHandler


def document(key_id: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": f"tenant-{key_id}",
        "keys": [{"id": "ANOTHER-KEY", "secret": SECRET + "2"}, {"id": key_id, "secret": SECRET}],
        "buckets": [{"name": "events", "table": f"s3://lake/{key_id}", "partitions": ["u=42"]}],
        **changes,
    }


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeControlPlane]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")  # a proxy of the developer may not reach this machine
    control_plane = FakeControlPlane()
    yield control_plane
    control_plane.close()


def looking_up(**settings: int) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Run an async test with a client of the service that caches owners for 60 s and unknown keys for 5 s."""
    settings = {"timeout_ms": DEADLINE_SECONDS * 1_000, "entries": 100} | settings

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @wraps(test)
        def run(service: FakeControlPlane, **arguments: Any) -> None:
            async def work() -> None:
                at = ControlPlaneSettings(service.url, ("s3://lake",), TOKEN, **settings)
                service.client = ControlPlane(at, monotonic_ms=lambda: service.ms)
                try:
                    await asyncio.wait_for(test(service, **arguments), NEVER_SECONDS)
                finally:
                    await service.client.close()

            asyncio.run(work())

        return run

    return decorate


async def unavailable(service: FakeControlPlane, key_id: str = "KEY1") -> bool:
    """Return whether a lookup fails with ServiceUnavailable and its default message."""
    (outcome,) = await asyncio.gather(service.find(key_id), return_exceptions=True)
    expected = S3Error("ServiceUnavailable")
    return isinstance(outcome, S3Error) and (outcome.code, outcome.message) == (expected.code, expected.message)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():
            await asyncio.sleep(0.005)


@looking_up()
async def test_a_tenant_is_looked_up_by_its_key(service: FakeControlPlane) -> None:
    owner = await service.find("KEY_1-a")
    assert owner is not None
    assert (owner.tenant.name, owner.key) == ("tenant-KEY_1-a", AccessKey("KEY_1-a", SECRET))
    assert owner.tenant.bucket("events").scope.partitions == ("u=42",)
    (request,) = service.requests
    assert (request.path, request.query) == ("/v1/keys", {"access_key_id": ["KEY_1-a"]})
    assert request.headers["authorization"] == f"Bearer {TOKEN}"
    assert request.headers["accept"] == "application/json"


@pytest.mark.parametrize("key_id", ["", "AB", "A" * 129, "KEY/1", "KEY&a=b", "KEY 1", "KEY1\n", "KÉY1"])
@looking_up()
async def test_an_invalid_key_is_not_looked_up(service: FakeControlPlane, key_id: str) -> None:
    assert await service.find(key_id) is None
    assert service.requests == []


@looking_up()
async def test_a_response_is_cached_for_a_time(service: FakeControlPlane) -> None:
    first = await service.find("KEY1")
    service.ms = 44_999
    assert await service.find("KEY1") is first
    assert not service.client._lookups
    service.ms = 60_000
    service.answers(body=document("KEY1", name="renamed"))
    owner = await service.find("KEY1")
    assert owner is not None
    assert owner.tenant.name == "renamed"
    assert len(service.requests) == 2


@looking_up()
async def test_a_cached_response_is_as_old_as_its_request(service: FakeControlPlane) -> None:
    service.go_on.clear()
    task = asyncio.create_task(service.find("KEY1"))
    await until(lambda: len(service.requests) == 1)
    service.ms = 60_000
    service.go_on.set()
    assert await task is not None
    await service.find("KEY1")
    assert len(service.requests) == 2


@looking_up()
async def test_unknown_keys_are_cached_for_a_shorter_time(service: FakeControlPlane) -> None:
    service.status = 404
    assert await service.find("KEY1") is None
    service.ms = 4_999
    assert await service.find("KEY1") is None
    assert len(service.requests) == 1
    service.status = 200
    service.ms = 5_000
    assert await service.find("KEY1") is not None
    assert len(service.requests) == 2


@looking_up()
async def test_a_revoked_key_is_rejected_when_its_cache_entry_expires(service: FakeControlPlane) -> None:
    assert await service.find("KEY1") is not None
    service.status = 404
    service.ms = 60_000
    assert await service.find("KEY1") is None


#: Invalid responses of a control plane, with the reason in the log.
NO_ANSWERS: dict[str, tuple[dict[str, Any], str]] = {
    "500": ({"status": 500}, "status 500"),
    "401": ({"status": 401}, "status 401"),
    "204": ({"status": 204}, "status 204"),
    "redirect": ({"status": 302, "Location": "/elsewhere"}, "status 302"),
    "no JSON": ({"body": b"<html>"}, "not JSON"),
    "no UTF-8": ({"body": b'{"name": "\xff"}'}, "not JSON"),
    "depths": ({"body": b"[" * 900_000}, "not JSON"),
    "no tenant": ({"body": []}, "Expected `object`"),
    "half a tenant": ({"body": {"name": "acme"}}, "missing required field `keys`"),
    "another's key": ({"body": document("KEY2")}, "tenant 'tenant-KEY2', which does not have the requested key"),
    "a table elsewhere": (
        {"body": document("KEY1", buckets=[{"name": "all", "table": "/etc"}])},
        "'/etc' is not below",
    ),
    "a secret of this machine": ({"body": document("KEY1", keys=[{"id": "KEY1", "secret_env": "HOME"}])}, "key 1"),
    "a line of the log": (
        {"body": document("KEY1", buckets=[{"name": "all", "table": "/lake\nall is well"}])},
        "lake all is well",
    ),
    "too much": (
        {"body": json.dumps(document("KEY1")).encode() + b" " * BODY_BYTES_MAX},
        f"more than {BODY_BYTES_MAX} bytes",
    ),
    "too little": ({"Content_Length": "100000", "Connection": "close"}, "ProtocolError"),
}


@pytest.mark.parametrize("case", NO_ANSWERS)
@looking_up()
async def test_an_invalid_response_is_rejected_and_not_cached(
    service: FakeControlPlane, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    wrong, reason = NO_ANSWERS[case]
    service.answers(**wrong)
    assert await unavailable(service)
    assert await unavailable(service), "failures are not cached"
    assert len(service.requests) == 2
    service.answers()
    assert await service.find("KEY1") is not None
    service.answers(**wrong)
    service.ms = 60_000
    assert await unavailable(service), "expired entries are not used"
    assert {a.path for a in service.requests} == {"/v1/keys"}
    warnings = [r.getMessage() for r in caplog.records if r.name == "icedb.proxy" and r.levelno == logging.WARNING]
    assert len(warnings) == 3
    for text in warnings:
        assert text.startswith(f"the control plane {service.url} cannot be used: ")
        assert reason in text
        assert text.isprintable()


@looking_up()
async def test_a_response_is_not_decompressed(service: FakeControlPlane) -> None:
    """A body of a few bytes could otherwise decompress to gigabytes."""
    service.answers(Content_Encoding="gzip")
    assert await service.find("KEY1") is not None  # the header is ignored


@looking_up()
async def test_no_control_plane_is_a_503(service: FakeControlPlane, caplog: pytest.LogCaptureFixture) -> None:
    service.close()
    assert await unavailable(service)
    assert "cannot be used: ConnectError" in caplog.text


@pytest.mark.parametrize("slow", ["headers", "body", "bytes"])
@looking_up(timeout_ms=400)
async def test_a_slow_response_is_a_failure(
    service: FakeControlPlane, slow: str, caplog: pytest.LogCaptureFixture
) -> None:
    if slow == "headers":
        service.go_on.clear()
    elif slow == "body":
        service.go_on_with_body.clear()
    else:
        service.pause_seconds = 0.02  # each byte is in time, the whole is not
    assert await unavailable(service)
    assert "no response within 400 ms" in caplog.text


@looking_up()
async def test_concurrent_lookups_share_a_request(service: FakeControlPlane) -> None:
    service.go_on.clear()
    tasks = [asyncio.create_task(service.find(k)) for k in ["KEY1"] * 20 + ["KEY2"]]
    await until(lambda: len(service.requests) == 2)
    service.go_on.set()
    *ones, two = await asyncio.gather(*tasks)
    assert {owner and owner.tenant.name for owner in ones} == {"tenant-KEY1"}
    assert two is not None
    assert two.tenant.name == "tenant-KEY2"
    assert sorted(a.query["access_key_id"][0] for a in service.requests) == ["KEY1", "KEY2"]


@looking_up()
async def test_concurrent_lookups_share_a_failure(service: FakeControlPlane) -> None:
    service.status = 500
    service.go_on.clear()
    tasks = [asyncio.create_task(unavailable(service)) for _ in range(5)]
    await until(lambda: len(service.requests) == 1)
    service.go_on.set()
    assert await asyncio.gather(*tasks) == [True] * 5
    assert len(service.requests) == 1


@looking_up()
async def test_a_cancelled_client_does_not_cancel_the_lookup_of_others(service: FakeControlPlane) -> None:
    service.go_on.clear()
    first, second = (asyncio.create_task(service.find("KEY1")) for _ in range(2))
    await until(lambda: len(service.requests) == 1)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    third = asyncio.create_task(service.find("KEY1"))
    await asyncio.sleep(0)
    service.go_on.set()
    assert await second is not None
    assert await third is await second
    assert len(service.requests) == 1


@pytest.mark.long
@looking_up()
async def test_a_response_is_cached_after_all_clients_disconnected(service: FakeControlPlane) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
    for key_id, status in (("KEY1", 200), ("KEY2", 500)):
        service.status = status
        service.go_on.clear()
        sent = len(service.requests)
        task = asyncio.create_task(service.find(key_id))
        await until(lambda sent=sent: len(service.requests) == sent + 1)  # type: ignore[misc]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        service.go_on.set()
        await until(lambda: not service.client._lookups)
    assert await service.find("KEY1") is not None
    assert len(service.requests) == 2
    gc.collect()  # an unretrieved exception is reported on collection
    assert complaints == []


@looking_up(entries=2)
async def test_the_least_recently_used_keys_are_evicted(service: FakeControlPlane) -> None:
    for key_id in ("KEY1", "KEY2", "KEY1", "KEY3"):
        await service.find(key_id)
    sent = len(service.requests)
    assert sent == 3
    await service.find("KEY1")
    await service.find("KEY3")
    assert len(service.requests) == sent
    await service.find("KEY2")
    assert len(service.requests) == sent + 1


@looking_up(entries=2)
async def test_invented_keys_evict_no_tenant(service: FakeControlPlane) -> None:
    await service.find("KEY1")
    service.status = 404
    for n in range(5):
        assert await service.find(f"MADE-UP-{n}") is None
    assert await service.find("KEY1") is not None
    assert len(service.requests) == 6
    assert await service.find("MADE-UP-4") is None
    assert len(service.requests) == 6
    assert await service.find("MADE-UP-0") is None
    assert len(service.requests) == 7, "the cache of unknown keys is limited, too"


@looking_up()
async def test_an_entry_in_use_is_renewed_before_it_expires(service: FakeControlPlane) -> None:
    first = await service.find("KEY1")
    service.answers(body=document("KEY1", name="renamed"))
    service.go_on.clear()
    service.ms = 45_000
    for _ in range(3):
        assert await service.find("KEY1") is first, "no request waits for the renewal"
    await until(lambda: len(service.requests) == 2)
    service.go_on.set()
    await until(lambda: not service.client._lookups)
    service.go_on.clear()
    for service.ms in (60_000, 89_999):
        owner = await service.find("KEY1")
        assert owner is not None
        assert owner.tenant.name == "renamed"
    service.go_on.set()
    await until(lambda: not service.client._lookups)
    assert len(service.requests) == 2


@looking_up()
async def test_an_entry_whose_renewal_fails_is_used_until_it_expires(service: FakeControlPlane) -> None:
    first = await service.find("KEY1")
    service.status = 500
    for service.ms in (45_000, 45_001, 48_749, 59_999):
        for _ in range(3):
            assert await service.find("KEY1") is first
            await until(lambda: not service.client._lookups)
    assert len(service.requests) == 3, "not renewed at each use"
    service.ms = 60_000
    assert await unavailable(service)


@looking_up()
async def test_a_revoked_key_in_use_is_rejected_after_the_renewal(service: FakeControlPlane) -> None:
    await service.find("KEY1")
    service.status = 404
    service.ms = 45_000
    assert await service.find("KEY1") is not None
    await until(lambda: not service.client._lookups)
    assert await service.find("KEY1") is None
    assert len(service.requests) == 2


@pytest.mark.long
@looking_up()
async def test_unknown_keys_do_not_block_known_ones(service: FakeControlPlane) -> None:
    """The limit holds for any number of concurrent lookups of unknown keys with slow responses."""
    room = UNKNOWN_CONCURRENT + UNKNOWN_WAITING

    await service.find("KEY1")
    service.holds = "MADE-UP"
    service.go_on.clear()
    strangers = [asyncio.create_task(service.find(f"MADE-UP-{n}")) for n in range(room)]
    await until(lambda: len(service.requests) == 1 + UNKNOWN_CONCURRENT)
    for n in range(1_000):
        assert await unavailable(service, f"MADE-UP-TOO-{n}"), "at once"
    assert not any(task.done() for task in strangers)
    service.ms = 45_000
    await service.find("KEY1")
    await until(lambda: "KEY1" not in service.client._lookups)
    assert len(service.requests) == 2 + UNKNOWN_CONCURRENT
    service.ms = 1_000_000  # also for a key whose entry expired long ago
    assert await service.find("KEY1") is not None
    assert len(service.requests) == 3 + UNKNOWN_CONCURRENT
    service.status = 404
    service.go_on.set()
    assert await asyncio.gather(*strangers) == [None] * room
    assert await service.find("MADE-UP-TOO-1") is None, "slots are free again"


@looking_up()
async def test_closing_waits_for_lookups_in_progress_only(service: FakeControlPlane) -> None:
    service.go_on.clear()
    task = asyncio.create_task(service.find("KEY1"))
    await until(lambda: len(service.requests) == 1)
    closing = asyncio.create_task(service.client.close())
    await asyncio.sleep(0)
    assert await unavailable(service, "KEY2")
    service.go_on.set()
    assert await task is not None
    await closing
    assert len(service.requests) == 1


@looking_up()
async def test_nothing_of_the_token_or_a_secret_is_in_a_repr(service: FakeControlPlane) -> None:
    owner = await service.find("KEY1")
    logged = repr((service.client, service.client._settings, owner))
    assert "tenant-KEY1" in logged
    assert "sEcReT" not in logged
    assert "tOkEn" not in logged
