"""The policies of docs/sharing.md on a server that enforces them: what each allows and denies."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import pytest

import icedb
from icedb.errors import AccessDenied
from tests.support.site.pages import ROOT

pytestmark = pytest.mark.s3

PAGE = ROOT / "docs" / "sharing.md"


def policy(name: str, bucket: str) -> str:
    """Return a policy of the page as a user's policy for `bucket`."""
    [block] = re.findall(rf"^```json {name}\n(.*?)^```$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    document = json.loads(block.replace("arn:aws:s3:::lake", f"arn:aws:s3:::{bucket}"))
    for statement in document["Statement"]:
        del statement["Principal"]
    return json.dumps(document)


@pytest.fixture(scope="module")
def bucket(s3_server: Any) -> str:
    """A bucket with the table of the page, and another whose name has the same prefix."""
    name = f"icedb-sharing-{uuid.uuid4().hex[:8]}"
    s3_server.client().create_bucket(Bucket=name)
    for table in ("events", "events_secret"):
        created = icedb.Table.create(f"s3://{name}/{table}", storage_options=s3_server.storage_options)
        for n in range(2):
            created.insert([{"n": n, "text": "a"}])
    return name


@pytest.mark.sampled(days=3)
def test_a_reader_reads_that_table_and_changes_nothing(s3_server: Any, bucket: str) -> None:
    reader = s3_server.as_user(policy("reader", bucket)).storage_options
    table = icedb.Table.open(f"s3://{bucket}/events", storage_options=reader)
    rows = table.snapshot().rows
    assert table.query("SELECT count(*) FROM t").fetchall() == [(rows,)]
    assert table.verify().ok
    for change in (
        lambda: table.insert([{"n": 9, "text": "b"}]),
        lambda: table.merge(),
        lambda: table.drop_partitions("true"),
        lambda: table.pin("mine"),
    ):
        with pytest.raises(AccessDenied):
            change()
    assert table.snapshot().rows == rows
    with pytest.raises(AccessDenied):
        icedb.Table.open(f"s3://{bucket}/events_secret", storage_options=reader).snapshot()


@pytest.mark.sampled(days=3)
def test_an_appender_appends_and_deletes_nothing(s3_server: Any, bucket: str) -> None:
    appender = s3_server.as_user(policy("appender", bucket)).storage_options
    table = icedb.Table.open(f"s3://{bucket}/events", storage_options=appender)
    before = table.snapshot().rows or 0
    assert table.insert([{"n": 3, "text": "c"}]).rows == 1
    assert table.insert([{"n": 4, "text": "d", "new": True}], txn=("producer", 1)).rows == 1
    assert table.insert([{"n": 4, "text": "d", "new": True}], txn=("producer", 1)).repeated
    assert table.snapshot().rows == before + 2
    table.merge_log()  # so that there is something to delete
    with pytest.raises(AccessDenied):
        table.cleanup(grace_ms=0, allow_short_grace=True)
    owner = icedb.Table.open(f"s3://{bucket}/events", storage_options=s3_server.storage_options)
    assert owner.snapshot().rows == before + 2
    assert owner.verify(deep=True).ok
