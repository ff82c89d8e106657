"""The environment of the proxy's benchmark: an S3 server with tables, the proxy, and a client with little overhead.

The server is SeaweedFS if it is installed, otherwise ministack. Server and proxy are separate processes.
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import boto3
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials

from benchmarks.harness import slow_store
from benchmarks.harness.processes import free_ports, is_up, server
from icedb import Table
from icedb.format.codec import encode
from icedb.format.records import LogFile, Marker

__all__ = ["BUCKET", "KEY_ID", "S3", "SECRET", "Client", "boto_client", "make_proxied_table", "proxy", "s3_server"]

BUCKET = slow_store.BUCKET
READ_BYTES = 1024 * 1024

#: The tenant's key.
KEY_ID, SECRET = "BENCHMARK", "benchmark-secret"
_LISTENING = re.compile(r"listening on http://(\S+?)[,;]")


@dataclass(frozen=True, slots=True)
class S3:
    """A server with an empty bucket, and its administrator's key."""

    name: str
    endpoint: str
    key_id: str
    secret: str

    @property
    def storage_options(self) -> dict[str, str]:
        """The storage options of the bucket."""
        return slow_store.storage_options(self.endpoint, self.key_id, self.secret)


# ------------------------------------------------------------------------------------------ servers


@contextmanager
def s3_server(folder: Path) -> Iterator[S3]:
    """Yield a server whose files are in the new folder `folder`. It is stopped after the block."""
    weed = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if weed is None:
        with slow_store.s3_server(folder) as endpoint:
            yield S3("ministack", endpoint, slow_store.KEY, slow_store.KEY)
        return
    folder.mkdir(parents=True)
    (folder / "objects").mkdir()
    names = ("master", "volume", "filer", "s3")
    ports = free_ports(2 * len(names))
    listening = {name: ports.pop() for name in names}
    command = [
        weed, "server", f"-dir={folder / 'objects'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3",
        "-s3.ip.bind=127.0.0.1", "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.volumePreallocate=false",
        *(f"-{name}.port={port}" for name, port in listening.items()),
        *(f"-{name}.port.grpc={ports.pop()}" for name in names),
    ]  # fmt: skip
    seaweed = S3("SeaweedFS", f"http://127.0.0.1:{listening['s3']}", "benchmark-key", "benchmark-secret")
    environ = {"AWS_ACCESS_KEY_ID": seaweed.key_id, "AWS_SECRET_ACCESS_KEY": seaweed.secret}
    with server(seaweed.name, command, folder, environ, lambda _: is_up(seaweed.endpoint, "/healthz")):
        slow_store.create_bucket(seaweed.endpoint, seaweed.key_id, seaweed.secret)
        yield seaweed


@contextmanager
def proxy(folder: Path, store: S3, tables: Sequence[str], *, redirect: bool) -> Iterator[tuple[str, int]]:
    """Yield the address and the process id of `icedb proxy` in front of tables. Each bucket has its table's name."""
    folder.mkdir(parents=True)
    config = folder / "proxy.toml"
    config.write_text(
        f"""
[server]
listen = "127.0.0.1:0"
redirect = {str(redirect).lower()}

[[tenant]]
name = "benchmark"
keys = [{{ id = "{KEY_ID}", secret = "{SECRET}" }}]
"""
        + "".join(f'\n[[tenant.bucket]]\nname = "{t}"\ntable = "s3://{BUCKET}/{t}"\n' for t in tables)
    )
    command = [sys.executable, "-m", "icedb.cli", "proxy", "--config", str(config)]
    with server("the proxy", command, folder, store.storage_options, _LISTENING.search) as (pid, match):
        yield f"http://{match[1]}", pid


# ------------------------------------------------------------------------------------------ tables


def make_proxied_table(store: S3, name: str, *, days: int, parts: int, bodies: Sequence[bytes] = ()) -> list[str]:
    """Create a table whose log file names `parts` live parts. Return their virtual keys.

    Only the first parts have objects, with the contents `bodies`, which need not be Parquet.
    """
    table = Table.create(f"s3://{BUCKET}/{name}", partition_by=["d"], storage_options=store.storage_options)
    handle, objects = table.handle, table.handle.store
    now_ms = handle.clock.now_ms()
    keys = [handle.keys.part(f"d={n % days:05}", f"{now_ms:013}-{n:012x}") for n in range(parts)]
    for key, body in zip(keys, bodies, strict=False):
        objects.create(key, body)
    sizes = [len(b) for b in bodies] + [READ_BYTES] * (parts - len(bodies))
    markers = tuple(Marker(key, size, now_ms, rows=1_000) for key, size in zip(keys, sizes, strict=True))
    objects.create(
        handle.keys.log_file(now_ms, merged=False, writer=handle.writer),
        encode(LogFile(now_ms, {"d": "VARCHAR", "n": "BIGINT"}, markers)),
    )
    return [key.removeprefix(handle.keys.data_prefix) for key in keys]


# ------------------------------------------------------------------------------------------ a client


@dataclass(frozen=True, slots=True)
class Signed:
    """A signed request, which can be sent repeatedly for a quarter of an hour."""

    target: str
    headers: Mapping[str, str]


class Client:
    """A client of one S3 endpoint with persistent connections and little overhead, for one thread."""

    def __init__(self, endpoint: str, key_id: str, secret: str) -> None:
        self.endpoint = endpoint
        self._credentials = Credentials(key_id, secret)
        self._connections: dict[str, http.client.HTTPConnection] = {}
        self._buffer = memoryview(bytearray(READ_BYTES))

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()

    def signed(self, bucket: str, key: str = "", *, query: Mapping[str, str] | None = None, range: str = "") -> Signed:  # noqa: A002 -- the header's name
        """A GET request."""
        target = f"/{bucket}" + (f"/{quote(key)}" if key else "")
        if query:
            target += "?" + urlencode(sorted(query.items()), quote_via=quote)
        request = AWSRequest("GET", self.endpoint + target, headers={"Range": range} if range else {})
        S3SigV4Auth(self._credentials, "s3", "us-east-1").add_auth(request)
        return Signed(target, dict(request.headers.items()))

    def get(self, request: Signed) -> int:
        """The bytes of an object, read and thrown away: how many there were. A redirection is followed."""
        response = self._send(urlsplit(self.endpoint).netloc, request)
        if response.status == HTTPStatus.TEMPORARY_REDIRECT:
            response.read()
            address = urlsplit(response.headers["Location"])
            carried = {n: v for n, v in request.headers.items() if n == "Range"}
            response = self._send(address.netloc, Signed(f"{address.path}?{address.query}", carried))
        self._check(response)
        size = 0
        while count := response.readinto(self._buffer):
            size += count
        return size

    def text(self, request: Signed) -> bytes:
        """Return a response as a whole."""
        response = self._send(urlsplit(self.endpoint).netloc, request)
        self._check(response)
        return response.read()

    def _send(self, netloc: str, request: Signed) -> http.client.HTTPResponse:
        connection = self._connections.get(netloc)
        if connection is None:
            connection = self._connections[netloc] = http.client.HTTPConnection(netloc, timeout=60)
        connection.request("GET", request.target, headers=dict(request.headers))
        return connection.getresponse()

    @staticmethod
    def _check(response: http.client.HTTPResponse) -> None:
        if response.status not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
            raise RuntimeError(f"the response has status {response.status}: {response.read(2_000)!r}")


def boto_client(endpoint: str) -> Any:
    """Return a boto3 client of the tenant."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )
