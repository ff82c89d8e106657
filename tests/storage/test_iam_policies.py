"""The policies of deploy/iam on a server that enforces them: what each role can do, and what it is refused."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

import icedb
from icedb.errors import AccessDenied
from tests.support.object_stores.counting_proxy import CountingProxy, HttpRequest
from tests.support.object_stores.stores import S3Server
from tests.support.proxy.proxy_process import ProxyProcess
from tests.support.site.pages import ROOT

ROLES = ("reader", "appender", "maintainer", "proxy")
READ, WRITE = {"kms:Decrypt"}, {"kms:Decrypt", "kms:GenerateDataKey"}
PREFIX = "lake/prod"

Verb = Callable[[icedb.Table], Any]


def insert_with_claims(table: icedb.Table) -> None:
    """Insert rows with a new column and with a transaction: both put a claim that can be created once."""
    table.insert([{"day": "a", "n": 1, "new": "x"}])
    assert table.insert([{"day": "a", "n": 2}], txn=("producer", 1)).rows == 1
    assert table.insert([{"day": "a", "n": 2}], txn=("producer", 1)).repeated


def restore(table: icedb.Table) -> None:
    before = table.snapshot().as_of_ms
    table.drop_partitions("day = 'b'")
    table.restore(before)


#: In an order in which each has work to do.
READS: dict[str, Verb] = {
    "info": lambda t: t.health(),
    "query": lambda t: t.query("SELECT sum(n) FROM t WHERE n > 0").fetchall(),
    "history": lambda t: t.history(),
    "pins": lambda t: t.pins(),
    "verify": lambda t: t.verify(deep=True),
    "cleanup --dry-run": lambda t: t.cleanup(dry_run=True),
}
APPENDS: dict[str, Verb] = {"insert": lambda t: t.insert([{"day": "a", "n": 1}]), "insert --txn": insert_with_claims}
#: The store cannot tell such a commit from an insert: both put parts and a log file.
COMMITS: dict[str, Verb] = {
    "merge-log": lambda t: t.merge_log(),
    "merge": lambda t: t.merge(),
    "update": lambda t: t.update({"n": "n + 1"}, where="n = 1"),
    "upsert": lambda t: t.upsert([{"day": "a", "n": 3, "new": "y"}], on=["day", "n"]),
    "delete": lambda t: t.delete("n = 3"),
    "overwrite": lambda t: t.overwrite([{"day": "b", "n": 6}]),
    "restore": restore,
    "alter": lambda t: t.alter(sort_by=["n", "day"]),
}
#: Each puts an object in a place of its own, or deletes objects.
OTHERS: dict[str, Verb] = {
    "pin": lambda t: t.pin("quarter", expires=timedelta(days=1)),
    "export --delta": lambda t: t.export_delta(),
    "export --iceberg": lambda t: t.export_iceberg(),
    "unpin": lambda t: t.unpin("of-the-owner"),
    "cleanup": lambda t: t.cleanup(grace_ms=0, allow_short_grace=True),
}


def policy(role: str, bucket: str) -> str:
    text = (ROOT / "deploy" / "iam" / f"{role}.json").read_text()
    for name, value in (
        ("LAKE_BUCKET", bucket),
        ("LAKE_PREFIX", PREFIX),
        ("LAKE_KEY_ARN", "arn:aws:kms:eu-central-1:111111111111:key/0000"),
        ("LAKE_REGION", "eu-central-1"),
    ):
        assert name in text
        text = text.replace(name, value)
    return text


def row(name: str, requests: Iterable[HttpRequest], prefix: str) -> str:
    """Return the row of a verb in the table of the page: the folders that it reads, puts into and deletes from."""
    folders: dict[str, set[str]] = {"read": set(), "put": set(), "delete": set()}
    for request in requests:
        folder, _, rest = request.path.removeprefix(prefix).strip("/").partition("/")
        if folder == "_claims" and rest:
            folder = f"_claims/{rest.partition('-')[0].removesuffix('.json')}"
        action = {"PUT": "put", "COPY": "put", "DELETE": "delete", "DELETE MANY": "delete"}.get(request.kind, "read")
        folders[action].add(f"`{folder}`" if folder else "all" if action == "read" else "objects")
    cells = [", ".join(sorted(f for f in folders[action])) for action in ("read", "put", "delete")]
    return f"| {name} | {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


@pytest.fixture(scope="module")
def bucket(s3_server: S3Server) -> str:
    name = f"icedb-iam-{uuid.uuid4().hex[:8]}"
    s3_server.client().create_bucket(Bucket=name)
    return name


@pytest.fixture
def table(s3_server: S3Server, bucket: str) -> icedb.Table:
    """A table of the owner with small parts, log files, and a pin."""
    uri = f"s3://{bucket}/{PREFIX}/events-{uuid.uuid4().hex[:8]}"
    created = icedb.Table.create(uri, partition_by=["day"], sort_by=["n"], storage_options=s3_server.storage_options)
    for n in range(4):
        created.insert([{"day": "a", "n": n}, {"day": "b", "n": n}])
    created.pin("of-the-owner")
    return created


def opened(table: icedb.Table, server: S3Server) -> icedb.Table:
    return icedb.Table.open(table.uri, storage_options=server.storage_options)


def test_each_document_grants_the_key_and_leaves_no_name_to_fill_in() -> None:
    """The test's server stores objects without keys of KMS, so these statements are only read."""
    for role in ROLES:
        document = json.loads(policy(role, "bucket"))
        assert document["Version"] == "2012-10-17"
        assert "LAKE_" not in json.dumps(document)
        (key,) = [s for s in document["Statement"] if s["Sid"] == "UseTheKey"]
        granted = {key["Action"]} if isinstance(key["Action"], str) else set(key["Action"])
        assert granted == (WRITE if role in ("appender", "maintainer") else READ)
        assert key["Condition"] == {"StringEquals": {"kms:ViaService": "s3.eu-central-1.amazonaws.com"}}


@pytest.mark.sampled(cases=2)
@pytest.mark.s3
@pytest.mark.parametrize(
    ("role", "allowed", "refused"),
    [
        ("reader", READS, APPENDS | COMMITS | OTHERS),
        ("appender", READS | APPENDS | COMMITS, OTHERS),
        ("maintainer", READS | APPENDS | COMMITS | OTHERS, {}),
        ("proxy", {name: READS[name] for name in ("info", "query", "history")}, APPENDS | COMMITS | OTHERS),
    ],
)
def test_a_role_can_do_its_verbs_and_no_others(
    s3_server: S3Server, bucket: str, table: icedb.Table, role: str, allowed: dict[str, Verb], refused: dict[str, Verb]
) -> None:
    user = s3_server.as_user(policy(role, bucket))
    before = table.snapshot()
    for name, verb in refused.items():
        with pytest.raises(AccessDenied, match="access was refused") as caught:
            verb(opened(table, user))
        assert table.uri in str(caught.value), name
    assert table.snapshot().id == before.id
    for verb in allowed.values():
        verb(opened(table, user))
    assert table.verify(deep=True).ok
    elsewhere = f"s3://{bucket}/lake/production/events"
    if not icedb.Table.exists(elsewhere, storage_options=s3_server.storage_options):
        icedb.Table.create(elsewhere, storage_options=s3_server.storage_options)
    with pytest.raises(AccessDenied):
        icedb.Table.open(elsewhere, storage_options=user.storage_options)


@pytest.mark.s3
def test_only_a_maintainer_creates_tables_and_no_role_deletes_a_spec(
    s3_server: S3Server, bucket: str, table: icedb.Table
) -> None:
    users = {role: s3_server.as_user(policy(role, bucket)) for role in ROLES}
    key = table.uri.removeprefix(f"s3://{bucket}/") + "/_table.json"
    for role, user in users.items():
        uri = f"s3://{bucket}/{PREFIX}/new-{role}"
        if role == "maintainer":
            icedb.Table.create(uri, storage_options=user.storage_options)
        else:
            with pytest.raises(AccessDenied):
                icedb.Table.create(uri, storage_options=user.storage_options)
        with pytest.raises(ClientError, match="AccessDenied"):
            user.client().delete_object(Bucket=bucket, Key=key)
    users["maintainer"].client().delete_object(Bucket=bucket, Key=f"{key}.backup")  # of any other name


@pytest.mark.s3
@pytest.mark.process
def test_the_proxy_serves_with_its_policy(s3_server: S3Server, bucket: str, table: icedb.Table) -> None:
    user = s3_server.as_user(policy("proxy", bucket))
    config = '[server]\nlisten = "127.0.0.1:0"\nadmin_listen = "127.0.0.1:0"\n[storage_options]\n' + "".join(
        f'{name} = "{value}"\n' for name, value in user.storage_options.items()
    )
    config += '[[tenant]]\nname = "acme"\nkeys = [{ id = "ACMEKEY1", secret = "of-acme-0123" }]'
    config += f'\n[[tenant.bucket]]\nname = "events"\ntable = "{table.uri}"\ntime_travel = true\n'
    with ProxyProcess(config) as proxy:
        client = S3Server(proxy.endpoint, "ACMEKEY1", "of-acme-0123").client()
        live = client.list_objects_v2(Bucket="events")["Contents"]
        assert len(live) == 8
        assert len(client.get_object(Bucket="events", Key=live[0]["Key"])["Body"].read()) == live[0]["Size"]


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_the_page_lists_the_requests_of_each_verb(s3_server: S3Server, table: icedb.Table) -> None:
    proxy = CountingProxy(s3_server.endpoint)
    rows = []
    with proxy.running():
        through = S3Server(proxy.endpoint, s3_server.access_key_id, s3_server.secret_access_key)
        for name, verb in (READS | APPENDS | COMMITS | OTHERS).items():
            proxy.reset()
            verb(opened(table, through))
            rows.append(row(name, proxy.requests, table.uri.partition("//")[2].partition("/")[2]))
    page = (ROOT / "docs" / "permissions.md").read_text().splitlines()
    missing = [line for line in rows if line not in page]
    assert not missing, "\n".join(missing)
