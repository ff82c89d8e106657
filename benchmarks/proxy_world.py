"""What the proxy's benchmark asks: an S3 server, tables in it, a proxy in front, and a client that costs little itself.

The server is SeaweedFS where it is installed, and else ministack. Server and proxy are processes of their own.
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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

from benchmarks import slow_store
from benchmarks.processes import stop
from icedb import Table
from icedb.format.codec import encode
from icedb.format.records import LogFile, Marker

__all__ = ["BUCKET", "KEY_ID", "S3", "SECRET", "Client", "boto_client", "made_table", "proxy", "s3_server"]

BUCKET = slow_store.BUCKET
START_SECONDS_MAX = 60
READ_BYTES = 1024 * 1024

#: The tenant's key.
KEY_ID, SECRET = "BENCHMARK", "benchmark-secret"
_LISTENING = re.compile(r"listening on http://(\S+?)[,;]")


@dataclass(frozen=True, slots=True)
class S3:
    """A server with an empty bucket, and the key of somebody who may do everything there."""

    name: str
    endpoint: str
    key_id: str
    secret: str

    @property
    def storage_options(self) -> dict[str, str]:
        """For `Table`."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
        }


# ------------------------------------------------------------------------------------------ servers


@contextmanager
def s3_server(folder: Path) -> Iterator[S3]:
    """A server whose files are in `folder`, which is not there yet; it ends with the block."""
    weed = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if weed is None:
        with slow_store.s3_server(folder) as endpoint:
            yield S3("ministack", endpoint, slow_store.KEY, slow_store.KEY)
        return
    with _seaweedfs(weed, folder) as server:
        boto3.client(
            "s3",
            endpoint_url=server.endpoint,
            aws_access_key_id=server.key_id,
            aws_secret_access_key=server.secret,
            region_name="us-east-1",
        ).create_bucket(Bucket=BUCKET)
        yield server


@contextmanager
def _seaweedfs(weed: str, folder: Path) -> Iterator[S3]:
    folder.mkdir(parents=True)
    (folder / "objects").mkdir()
    names = ("master", "volume", "filer", "s3")
    ports = _free_ports(2 * len(names))
    listening = {name: ports.pop() for name in names}
    command = [
        weed, "server", f"-dir={folder / 'objects'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3",
        "-s3.ip.bind=127.0.0.1", "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.volumePreallocate=false",
        *(f"-{name}.port={port}" for name, port in listening.items()),
        *(f"-{name}.port.grpc={ports.pop()}" for name in names),
    ]  # fmt: skip
    server = S3("SeaweedFS", f"http://127.0.0.1:{listening['s3']}", "benchmark-key", "benchmark-secret")
    env = {"AWS_ACCESS_KEY_ID": server.key_id, "AWS_SECRET_ACCESS_KEY": server.secret}
    with _process(command, folder, env) as log:
        _until(lambda: _answers(server.endpoint, "/healthz"), "SeaweedFS", log)
        yield server


@contextmanager
def proxy(folder: Path, server: S3, tables: Sequence[str], *, redirect: bool) -> Iterator[tuple[str, int]]:
    """`icedb proxy` in front of tables: its address and its process. Each bucket has the name of its table."""
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
    with _process(command, folder, server.storage_options) as log:
        match = _until(lambda: _LISTENING.search(log.read_text()), "the proxy", log)
        yield f"http://{match[1]}", int((folder / "pid").read_text())


@contextmanager
def _process(command: Sequence[str], folder: Path, env: Mapping[str, str]) -> Iterator[Path]:
    """A process until the block ends, and the file with what it says on standard error; `pid` has its number."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    log = folder / "errors.log"
    # Where the package is that measures: the benchmark may be run from any folder.
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), kept.get("PYTHONPATH", "")]))
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, env={**kept, **env}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, cwd=folder
        )
    (folder / "pid").write_text(str(process.pid))
    try:
        yield log
    finally:
        stop(process)


def _until(look: Callable[[], Any], name: str, log: Path) -> Any:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        if match := look():
            return match
        time.sleep(0.05)
    raise RuntimeError(f"{name} did not start:\n{log.read_text()[-2000:]}")


def _answers(endpoint: str, path: str) -> bool:
    connection = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == HTTPStatus.OK
    except (http.client.HTTPException, OSError):
        return False
    finally:
        connection.close()


def _free_ports(number: int) -> list[int]:
    """All different: they are held until the last is found."""
    probes = [socket.socket() for _ in range(number)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


# ------------------------------------------------------------------------------------------ tables


def made_table(server: S3, name: str, *, days: int, parts: int, bodies: Sequence[bytes] = ()) -> list[str]:
    """A table of so many live parts, by a log file that names them; the virtual keys of all.

    Only the first parts have objects, with the bodies that are given: nobody but the log is asked for the others, and
    what is no Parquet is as fast to fetch.
    """
    table = Table.create(f"s3://{BUCKET}/{name}", partition_by=["d"], storage_options=server.storage_options)
    handle, store = table.handle, table.handle.store
    now_ms = handle.clock.now_ms()
    keys = [handle.keys.part(f"d={n % days:05}", f"{now_ms:013}-{n:012x}") for n in range(parts)]
    for key, body in zip(keys, bodies, strict=False):
        store.create(key, body)
    sizes = [len(b) for b in bodies] + [READ_BYTES] * (parts - len(bodies))
    markers = tuple(Marker(key, size, now_ms, rows=1_000) for key, size in zip(keys, sizes, strict=True))
    store.create(
        handle.keys.log_file(now_ms, merged=False, writer=handle.writer),
        encode(LogFile(now_ms, {"d": "VARCHAR", "n": "BIGINT"}, markers)),
    )
    return [key.removeprefix(handle.keys.data_prefix) for key in keys]


# ------------------------------------------------------------------------------------------ a client


@dataclass(frozen=True, slots=True)
class Signed:
    """A request that can be made as often as its signature is valid, a quarter of an hour."""

    target: str
    headers: Mapping[str, str]


class Client:
    """Speaks to one S3 endpoint over connections that it keeps, and does little beside: for one thread."""

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
        answer = self._ask(urlsplit(self.endpoint).netloc, request)
        if answer.status == HTTPStatus.TEMPORARY_REDIRECT:
            answer.read()
            address = urlsplit(answer.headers["Location"])
            carried = {n: v for n, v in request.headers.items() if n == "Range"}
            answer = self._ask(address.netloc, Signed(f"{address.path}?{address.query}", carried))
        self._check(answer)
        size = 0
        while count := answer.readinto(self._buffer):
            size += count
        return size

    def text(self, request: Signed) -> bytes:
        """An answer as a whole."""
        answer = self._ask(urlsplit(self.endpoint).netloc, request)
        self._check(answer)
        return answer.read()

    def _ask(self, netloc: str, request: Signed) -> http.client.HTTPResponse:
        connection = self._connections.get(netloc)
        if connection is None:
            connection = self._connections[netloc] = http.client.HTTPConnection(netloc, timeout=60)
        connection.request("GET", request.target, headers=dict(request.headers))
        return connection.getresponse()

    @staticmethod
    def _check(answer: http.client.HTTPResponse) -> None:
        if answer.status not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
            raise RuntimeError(f"the answer is {answer.status}: {answer.read(2_000)!r}")


def boto_client(endpoint: str) -> Any:
    """boto3, as the tenant."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )
