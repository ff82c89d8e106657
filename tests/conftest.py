"""Fixtures that all tests share: a real S3 server, places where a table can be, and an environment without secrets.

The server is ministack with authentication on, started once per session on a free port. Its root key is not
verified, so the tests sign with the key of a user that is created first: a wrong secret is really refused.
"""

from __future__ import annotations

import base64
import logging
import os
import shutil
import socket
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
from hypothesis import HealthCheck, settings

from icedb.testing import ClockedStore, ManualClock
from tests.support.azure_containers import create_container
from tests.support.bytecode import keep_bytecode
from tests.support.quick_java import QUICK_JAVA, use_quick_java

# How long an example takes says nothing on a machine that does something else too.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

START_SECONDS_MAX = 60
BUCKET = "icedb-tests"
AZURITE = Path(__file__).parents[1] / ".venv" / "azurite" / "node_modules" / ".bin"
LONGEST_FIRST = ("spark", "dagster", "simulation")
ALLOW_ALL = '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"*","Resource":"*"}]}'


keep_bytecode()
use_quick_java()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start processes first: they take longest, and at the end one worker would be left with one of them.

    The tests of a file stay together, in their order: what they share is made once.
    """
    ranks: dict[Path, int] = {}
    for item in items:
        rank = next((n for n, mark in enumerate(LONGEST_FIRST) if item.get_closest_marker(mark)), len(LONGEST_FIRST))
        ranks[item.path] = min(rank, ranks.get(item.path, rank))
    items.sort(key=lambda item: ranks[item.path])


@pytest.fixture(autouse=True, scope="session")
def _no_aws_of_the_developer() -> Iterator[None]:
    """No test may reach, or be decided by, an account of whoever runs it."""
    kept = dict(os.environ)
    for name in [n for n in os.environ if n.startswith("AWS_")]:
        del os.environ[name]
    os.environ["AWS_CONFIG_FILE"] = os.environ["AWS_SHARED_CREDENTIALS_FILE"] = os.devnull
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    yield
    os.environ.clear()
    os.environ.update(kept)


@pytest.fixture(autouse=True, scope="module")
def _level_of_our_logger() -> Iterator[None]:
    """A Dagster instance sets the level of the loggers that its configuration names, and leaves it so."""
    logger = logging.getLogger("icedb")
    level = logger.level
    yield
    logger.setLevel(level)


@dataclass(frozen=True)
class S3Server:
    """A running server and the key of a user who may do everything there."""

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


def _client(service: str, endpoint: str, key: str, secret: str) -> Any:
    return boto3.client(
        service, endpoint_url=endpoint, aws_access_key_id=key, aws_secret_access_key=secret, region_name="us-east-1"
    )


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    folder = tmp_path_factory.mktemp("ministack")
    for attempt in range(3):  # between our choice of a free port and the server's bind somebody may take it
        port = _free_port()
        process = _start(port, folder / f"server-{attempt}.log", folder)
        try:
            endpoint = f"http://127.0.0.1:{port}"
            if _wait_until_ready(process, endpoint):
                yield _with_user(endpoint)
                return
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(folder.glob("*.log")))
    pytest.fail(f"the S3 server did not start:\n{logs}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
    iam = _client("iam", endpoint, "test", "test")
    iam.create_user(UserName="tests")
    iam.put_user_policy(UserName="tests", PolicyName="all", PolicyDocument=ALLOW_ALL)
    key = iam.create_access_key(UserName="tests")["AccessKey"]
    server = S3Server(endpoint, key["AccessKeyId"], key["SecretAccessKey"])
    server.client().create_bucket(Bucket=BUCKET)
    return server


@pytest.fixture(scope="session")
def storage_options(s3_server: S3Server) -> dict[str, str]:
    """How to get into the S3 server's bucket."""
    return s3_server.storage_options


@pytest.fixture(scope="session")
def azure_options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """How to get into a container of Azurite, Azure's emulator: it is of Node.js, and `make azurite` installs it."""
    program = shutil.which("azurite-blob") or shutil.which("azurite-blob", path=str(AZURITE))
    if program is None:
        pytest.skip("there is no Azurite here: make azurite")
    folder = tmp_path_factory.mktemp("azurite")
    key = base64.b64encode(os.urandom(32)).decode()
    port = _free_port()
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
        process.terminate()
        process.wait(10)


@dataclass(frozen=True)
class Place:
    """Where a test may put its table. Nobody else is there."""

    kind: str
    uri: str
    storage_options: dict[str, str] | None = field(default=None, repr=False)

    def below(self, name: str) -> Place:
        return Place(self.kind, f"{self.uri}/{name}", self.storage_options)


def _place(kind: str, request: pytest.FixtureRequest) -> Place:
    if kind == "local":
        return Place(kind, str(request.getfixturevalue("tmp_path") / "table"))
    if kind == "memory":
        return Place(kind, f"memory://{uuid.uuid4().hex}/table")
    return Place(kind, f"s3://{BUCKET}/{uuid.uuid4().hex}/table", request.getfixturevalue("storage_options"))


@pytest.fixture(params=["local", "memory", pytest.param("s3", marks=pytest.mark.s3)])
def place(request: pytest.FixtureRequest) -> Place:
    """Every kind of store, one after the other."""
    return _place(request.param, request)


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def shared_place(request: pytest.FixtureRequest) -> Place:
    """The stores that several processes can share."""
    return _place(request.param, request)


@pytest.fixture
def local(request: pytest.FixtureRequest) -> Place:
    """A folder."""
    return _place("local", request)


@pytest.fixture
def memory(request: pytest.FixtureRequest) -> Place:
    """This process's memory."""
    return _place("memory", request)


@pytest.fixture
def s3(request: pytest.FixtureRequest) -> Place:
    """A prefix in the S3 server's bucket."""
    return _place("s3", request)


@pytest.fixture
def azure(azure_options: dict[str, str]) -> Place:
    """A prefix in a container of Azurite."""
    return Place("azure", f"az://{BUCKET}/{uuid.uuid4().hex}/table", azure_options)


@pytest.fixture
def clock() -> ManualClock:
    """A clock that stands still."""
    return ManualClock()


@pytest.fixture
def clocked(clock: ManualClock) -> ClockedStore:
    """An empty store whose time is the test's."""
    return ClockedStore(clock)


# A master, two workers and an executor for each, all processes of their own.
SPARK_CONFIG = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.app.name": "icedb-tests",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.extraJavaOptions": QUICK_JAVA,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.task.maxFailures": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # no task before both executors are there
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
}


@pytest.fixture(scope="session")
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the files of Spark's applications go, which otherwise is inside the installed package.

    One for the whole run: the Java process that the first session starts keeps to it.
    """
    import pyspark

    home = tmp_path_factory.mktemp("spark-home")
    for name in ("bin", "jars", "python"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    return home


@pytest.fixture(scope="module")
def spark(spark_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Spark session with executors in processes of their own."""
    from pyspark.sql import SparkSession

    from icedb.spark.java import prepare_environment

    folder = tmp_path_factory.mktemp("spark")
    kept = dict(os.environ)
    os.environ["SPARK_HOME"] = str(spark_home)
    prepare_environment()
    builder = SparkSession.builder.config("spark.local.dir", str(folder / "local"))
    for name, value in SPARK_CONFIG.items():
        builder = builder.config(name, value)
    session = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse")).getOrCreate()
    yield session
    session.stop()
    os.environ.clear()
    os.environ.update(kept)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(spark_home / "work", ignore_errors=True)


@pytest.fixture
def pushdown(spark: Any) -> Iterator[None]:
    """Spark offers its filters to Python data sources."""
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "true")
    yield
    spark.conf.unset(name)
