"""An S3 server for examples that need a bucket: ministack, on a free port of 127.0.0.1."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import boto3

from examples.shared.service import free_port

__all__ = ["LocalS3", "local_s3"]

START_SECONDS_MAX = 60


@dataclass(frozen=True, slots=True)
class LocalS3:
    """The address of a bucket, and its credentials."""

    endpoint: str
    bucket: str = "lake"
    region: str = "us-east-1"
    access_key: str = "example"
    secret_key: str = field(default="example-secret", repr=False)

    @property
    def storage_options(self) -> dict[str, str]:
        """The storage options for `icedb.Table`."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": self.region,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
        }


@contextmanager
def local_s3() -> Iterator[LocalS3]:
    """Yield a server with an empty bucket, and delete both afterwards. Raises RuntimeError if it does not start."""
    if importlib.util.find_spec("ministack") is None:
        raise RuntimeError("this example needs a local S3 server. Run: pip install ministack==1.5.33 boto3==1.43.106")
    with tempfile.TemporaryDirectory(prefix="icedb-example-s3-") as folder:
        port = free_port()
        env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        env |= {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "SERVICES": "s3", "LOG_LEVEL": "WARNING"}
        env |= {"S3_PERSIST": "0", "S3_DATA_DIR": f"{folder}/data", "TMPDIR": folder}
        process = subprocess.Popen(
            [sys.executable, "-m", "ministack"], env=env, cwd=folder,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            server = LocalS3(f"http://127.0.0.1:{port}")
            _wait(process, server.endpoint)
            boto3.client(
                "s3", endpoint_url=server.endpoint, region_name=server.region,
                aws_access_key_id=server.access_key, aws_secret_access_key=server.secret_key,
            ).create_bucket(Bucket=server.bucket)  # fmt: skip
            yield server
        finally:
            process.terminate()
            process.wait()


def _wait(process: subprocess.Popen[bytes], endpoint: str) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{endpoint}/_ministack/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError("the S3 server, python -m ministack, did not start. Run the example again.")
