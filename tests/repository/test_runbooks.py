"""The commands of docs/runbooks.md, on real servers: Postgres without its container, an instance, a bucket."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import icedb
from tests.support.object_stores.stores import S3Server
from tests.support.site.pages import ROOT
from tests.support.waiting import wait_until

dg = pytest.importorskip("dagster")

from icedb_dagster.dev import stack
from icedb_dagster.dev.stack.placement import programs_folder

PAGE = (ROOT / "docs" / "runbooks.md").read_text()
RESTORE = ROOT / "deploy" / "restore_objects.py"
IN_CONTAINER = "docker compose exec -T postgres "


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def postgres_commands(text: str) -> list[str]:
    """Return the commands in the container of Postgres, in one line each."""
    lines = re.sub(r"\s*\\\n\s*", " ", text).splitlines()
    return [line.strip().removeprefix(IN_CONTAINER) for line in lines if IN_CONTAINER in line]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A Postgres, and the variables by which its programs and Dagster find it. Commands run in its folder."""
    folder = tmp_path_factory.mktemp("runbooks")
    environ = {name: value for name, value in os.environ.items() if name != "ICEDB_POSTGRES_URL"}
    started = stack.up(folder, services=("postgres",), environ=environ)
    url = urlsplit(started.postgres_url)
    yield {
        **stack.environment(started),
        "PGHOST": str(url.hostname),
        "PGPORT": str(url.port),
        "PGUSER": str(url.username),
        "PGPASSWORD": str(url.password),
        "FOLDER": str(folder),
        "PATH": f"{programs_folder() / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    stack.down(folder)


def run(server: dict[str, str], *commands: str) -> None:
    assert commands
    for command in commands:
        line = command.replace("--username=dagster", f"--username={server['PGUSER']}")
        line = line.replace("ROLE dagster", f'ROLE \\"{server["PGUSER"]}\\"')
        subprocess.run(["bash", "-euc", line], env={**os.environ, **server}, cwd=server["FOLDER"], check=True)


@pytest.fixture
def instance(server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    with dg.DagsterInstance.get() as opened:
        yield opened


def test_the_page_has_no_command_of_postgres_that_is_not_run_here() -> None:
    tested = ("The disk is full", "Postgres is lost", "Keys are rotated", "Upgrade and roll back")
    assert len(postgres_commands(PAGE)) == sum(len(postgres_commands(section(name))) for name in tested) == 9


@pytest.mark.sampled(days=3)
@pytest.mark.dagster
def test_a_dump_of_postgres_is_restored(server: dict[str, str], instance: Any) -> None:
    dump, *restore = postgres_commands(section("Postgres is lost"))
    assert restore == postgres_commands(section("Upgrade and roll back"))
    run_id = instance.create_run_for_job(dg.GraphDefinition("kept").to_job()).run_id
    instance.event_log_storage.set_concurrency_slots("icedb/kept", 1)
    run(server, dump)
    instance.delete_run(run_id)
    instance.event_log_storage.set_concurrency_slots("icedb/kept", 3)
    instance.dispose()
    run(server, *restore)
    with dg.DagsterInstance.get() as again:
        assert again.get_run_by_id(run_id) is not None
        assert again.event_log_storage.get_concurrency_info("icedb/kept").slot_count == 1
    run(server, *postgres_commands(section("The disk is full")))


@pytest.mark.sampled(days=3)
@pytest.mark.dagster
def test_the_password_of_postgres_is_changed(server: dict[str, str], instance: Any) -> None:
    [change] = postgres_commands(section("Keys are rotated"))
    run(server, change)
    new = {**server, "PGPASSWORD": "the-new-one"}
    with pytest.raises(subprocess.CalledProcessError):
        run(server, change)
    run(new, change.replace("the-new-one", server["PGPASSWORD"]))


@pytest.mark.sampled(days=3)
@pytest.mark.dagster
def test_the_slot_of_a_run_without_a_worker_is_freed(instance: Any) -> None:
    [program] = re.findall(r"^ *```python free-slot\n(.*?)^ *```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    program = re.sub(r"^ {3}", "", program, flags=re.MULTILINE)
    storage = instance.event_log_storage
    storage.set_concurrency_slots("icedb/stuck", 1)
    for deleted in (False, True):
        run = instance.create_run_for_job(dg.GraphDefinition("stuck").to_job(), status=dg.DagsterRunStatus.STARTED)
        assert storage.claim_concurrency_slot("icedb/stuck", run.run_id, "work").is_claimed
        if deleted:
            instance.delete_run(run.run_id)
        exec(compile(program.replace('"..."', repr(run.run_id)), "runbook", "exec"), {})
        assert storage.get_concurrency_info("icedb/stuck").active_slot_count == 0
        assert deleted or instance.get_run_by_id(run.run_id).status is dg.DagsterRunStatus.FAILURE


# ------------------------------------------------------------------------------------------ objects of a bucket


def restored(server: S3Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, RESTORE, *arguments],
        env={**os.environ, **server.storage_options},
        capture_output=True,
        text=True,
        check=False,
    )


def utc(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


@pytest.mark.sampled(days=3)
@pytest.mark.s3
@pytest.mark.process
def test_deleted_objects_are_restored_from_the_versions_of_a_bucket(s3_server: S3Server) -> None:
    client, bucket = s3_server.client(), f"icedb-versions-{uuid.uuid4().hex[:8]}"
    client.create_bucket(Bucket=bucket)
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    uri = f"s3://{bucket}/lake/events"
    table = icedb.Table.create(uri, partition_by=["day"], storage_options=s3_server.storage_options)
    for n in range(5):
        table.insert([{"day": "a", "n": n}])
    table.merge()
    table.cleanup(grace_ms=0, allow_short_grace=True)
    rows, stored = table.query("SELECT n FROM t ORDER BY n").fetchall(), keys(client, bucket)
    cleaned = int(time.time())
    wait_until(lambda: int(time.time()) > cleaned, "the next second, which a version's time has")

    since = int(time.time())
    client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in stored]})
    assert not icedb.Table.exists(uri, storage_options=s3_server.storage_options)
    dry = restored(s3_server, uri, "--since", utc(since), "--dry-run")
    assert (dry.stdout.split(), keys(client, bucket)) == (stored, [])
    assert restored(s3_server, uri, "--since", utc(since - 100), "--until", utc(since - 50)).stdout == ""
    done = restored(s3_server, uri, "--since", utc(since))
    assert (done.returncode, done.stderr) == (0, f"restored: {len(stored)} objects\n")
    assert keys(client, bucket) == stored
    again = icedb.Table.open(uri, storage_options=s3_server.storage_options)
    assert again.verify(deep=True).problems == ()
    assert again.query("SELECT n FROM t ORDER BY n").fetchall() == rows


@pytest.mark.sampled(days=3)
@pytest.mark.s3
@pytest.mark.process
def test_a_table_is_restored_from_a_copy_in_another_bucket(s3_server: S3Server) -> None:
    client, names = s3_server.client(), {name: f"icedb-{name}-{uuid.uuid4().hex[:8]}" for name in ("lake", "backup")}
    for name in names.values():
        client.create_bucket(Bucket=name)
    uri = f"s3://{names['lake']}/events"
    table = icedb.Table.create(uri, partition_by=["day"], storage_options=s3_server.storage_options)
    for n in range(3):
        table.insert([{"day": "a", "n": n}])
    stored = keys(client, names["lake"])
    for key in stored:
        client.copy({"Bucket": names["lake"], "Key": key}, names["backup"], key)
    client.delete_objects(Bucket=names["lake"], Delete={"Objects": [{"Key": key} for key in stored]})
    commands = re.findall(r"^ *(aws s3 sync .*)$", PAGE, flags=re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        words = command.replace("s3://lake", f"s3://{names['lake']}").replace("s3://backup", f"s3://{names['backup']}")
        done = subprocess.run(
            [
                sys.executable,
                Path(sys.executable).with_name("aws"),
                *words.split()[1:],
                "--endpoint-url",
                s3_server.endpoint,
            ],
            env={**os.environ, **s3_server.storage_options},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    again = icedb.Table.open(uri, storage_options=s3_server.storage_options)
    assert again.verify(deep=True).problems == ()
    assert again.query("SELECT sum(n) FROM t").fetchall() == [(3,)]


def keys(client: Any, bucket: str) -> list[str]:
    return [found["Key"] for found in client.list_objects_v2(Bucket=bucket).get("Contents", ())]


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["s3://lake", "--since", "2027-01-14T10:00Z"], "s3://lake is no address of a table in a bucket"),
        (["lake/events", "--since", "2027-01-14T10:00Z"], "lake/events is no address of a table in a bucket"),
        (["s3://lake/events", "--since", "2027-01-14T10:00"], "invalid parse_time value: '2027-01-14T10:00'"),
    ],
)
def test_wrong_arguments_restore_nothing(arguments: list[str], message: str) -> None:
    done = subprocess.run([sys.executable, RESTORE, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr
