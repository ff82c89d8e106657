"""An S3 server on this machine that takes its time, as one in a network does, and counts what it is asked."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import msgspec

from benchmarks.processes import stop
from benchmarks.slow_proxy import CONTROL, RESET
from tests.support.object_stores.counting_proxy import HttpRequest, Kind

__all__ = ["BUCKET", "SlowStore", "s3_server", "slow", "storage_options"]

BUCKET = "icedb-benchmark"
START_SECONDS_MAX = 60
# Of the server's root user, who needs no account.
KEY = "test"


def storage_options(endpoint: str) -> dict[str, str]:
    """How to get into the bucket."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": KEY,
        "AWS_REGION": "us-east-1",
    }


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """The address of a server with an empty bucket, whose files are in `folder`; it ends with the block."""
    folder.mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")} | {
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "SERVICES": "s3",
        "S3_PERSIST": "0",
        "S3_DATA_DIR": str(folder / "data"),
        "TMPDIR": str(folder),
        "LOG_LEVEL": "WARNING",
    }
    log = folder / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", "ministack"], env=env, stdout=out, stderr=out, cwd=folder)
    try:
        if not _answers(process, f"127.0.0.1:{port}"):
            raise RuntimeError(f"the S3 server did not start; is ministack installed?\n{log.read_text()[-2000:]}")
        endpoint = f"http://127.0.0.1:{port}"
        boto3.client(
            "s3", endpoint_url=endpoint, aws_access_key_id=KEY, aws_secret_access_key=KEY, region_name="us-east-1"
        ).create_bucket(Bucket=BUCKET)
        yield endpoint
    finally:
        stop(process)


def _answers(process: subprocess.Popen[bytes], address: str) -> bool:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        connection = http.client.HTTPConnection(address, timeout=2)
        try:
            connection.request("GET", "/_ministack/health")
            if connection.getresponse().status == HTTPStatus.OK:
                return True
        except (http.client.HTTPException, OSError):
            time.sleep(0.1)
        finally:
            connection.close()
    return False


@dataclass(frozen=True, slots=True)
class SlowStore:
    """`endpoint` is what the client is given; `requests` is what it asked since the last `reset`."""

    endpoint: str

    @property
    def requests(self) -> list[HttpRequest]:
        """In the order in which they were answered."""
        return self._ask(CONTROL)

    @property
    def counts(self) -> dict[Kind, int]:
        """How many requests of each kind there were."""
        return dict(Counter(r.kind for r in self.requests))

    def reset(self) -> None:
        """Begin anew."""
        self._ask(RESET)

    def _ask(self, path: str) -> list[HttpRequest]:
        connection = http.client.HTTPConnection(urlsplit(self.endpoint).netloc, timeout=START_SECONDS_MAX)
        try:
            connection.request("GET", path)
            return msgspec.json.decode(connection.getresponse().read(), type=list[HttpRequest])
        finally:
            connection.close()


@contextmanager
def slow(endpoint: str, latency_ms: float) -> Iterator[SlowStore]:
    """A server's proxy, a process of its own, that counts requests, and lets each wait before it hands it on."""
    command = [sys.executable, "-m", "benchmarks.slow_proxy", endpoint, str(latency_ms)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
    try:
        if process.stdout is None or not (port := process.stdout.readline()):
            raise RuntimeError("the proxy of the S3 server did not start")
        yield SlowStore(f"http://127.0.0.1:{int(port)}")
    finally:
        stop(process)
