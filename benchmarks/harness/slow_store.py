"""A local S3 server with the latency of a network, which counts requests."""

from __future__ import annotations

import http.client
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import msgspec

from benchmarks.harness.processes import START_SECONDS_MAX, free_ports, is_up, server, stop
from benchmarks.harness.slow_proxy import CONTROL, RESET
from tests.support.object_stores.counting_proxy import HttpRequest, Kind

__all__ = ["BUCKET", "KEY", "SlowStore", "create_bucket", "s3_server", "slow", "storage_options"]

BUCKET = "icedb-benchmark"
# The key id and the secret of the server's root user.
KEY = "test"


def storage_options(endpoint: str, key_id: str = KEY, secret: str = KEY) -> dict[str, str]:
    """Return the storage options of the bucket."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": key_id,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_REGION": "us-east-1",
    }


def create_bucket(endpoint: str, key_id: str = KEY, secret: str = KEY) -> None:
    """Create the bucket."""
    boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id=key_id, aws_secret_access_key=secret, region_name="us-east-1"
    ).create_bucket(Bucket=BUCKET)


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """Yield the address of a server with an empty bucket. Its files are in `folder`. It is stopped after the block."""
    folder.mkdir(parents=True)
    [port] = free_ports(1)
    environ = {
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "SERVICES": "s3",
        "S3_PERSIST": "0",
        "S3_DATA_DIR": str(folder / "data"),
        "TMPDIR": str(folder),
        "LOG_LEVEL": "WARNING",
    }
    endpoint, command = f"http://127.0.0.1:{port}", [sys.executable, "-m", "ministack"]
    with server("the S3 server", command, folder, environ, lambda _: is_up(endpoint, "/_ministack/health")):
        create_bucket(endpoint)
        yield endpoint


@dataclass(frozen=True, slots=True)
class SlowStore:
    """The delaying proxy: the `endpoint` for clients, and their `requests` since the last `reset`."""

    endpoint: str

    @property
    def requests(self) -> list[HttpRequest]:
        """The requests in the order of their responses."""
        return self._fetch(CONTROL)

    @property
    def counts(self) -> dict[Kind, int]:
        """The number of requests by kind."""
        return dict(Counter(r.kind for r in self.requests))

    def reset(self) -> None:
        """Forget all requests."""
        self._fetch(RESET)

    def _fetch(self, path: str) -> list[HttpRequest]:
        connection = http.client.HTTPConnection(urlsplit(self.endpoint).netloc, timeout=START_SECONDS_MAX)
        try:
            connection.request("GET", path)
            return msgspec.json.decode(connection.getresponse().read(), type=list[HttpRequest])
        finally:
            connection.close()


@contextmanager
def slow(endpoint: str, latency_ms: float) -> Iterator[SlowStore]:
    """Yield a proxy in front of a server, a separate process, which counts requests and delays each of them."""
    command = [sys.executable, "-m", "benchmarks.harness.slow_proxy", endpoint, str(latency_ms)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    try:
        if process.stdout is None or not (port := process.stdout.readline()):
            raise RuntimeError("the proxy of the S3 server did not start")
        yield SlowStore(f"http://127.0.0.1:{int(port)}")
    finally:
        stop(process)
