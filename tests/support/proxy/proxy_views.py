"""Requests of tests to the catalog of the proxy, and to its application, for the contents of a bucket."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from icedb.format.timing import MINUTE_MS
from icedb.services.proxy.app import ProxyApp
from icedb.services.proxy.catalog.bucket_view import BucketView
from icedb.services.proxy.catalog.table_catalog import TableCatalog
from icedb.services.proxy.config.tenants import VirtualBucket
from icedb.services.proxy.s3.s3_errors import S3Error
from tests.support.proxy.proxy_worlds import HttpAnswer, ProxyWorld, ask_app, question

REFRESH_MS = 1_000
HOLD_MS = 15 * MINUTE_MS
NAMESPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"


def open_world(*partitions: str) -> tuple[ProxyWorld, TableCatalog, VirtualBucket, list[str]]:
    """Create a table with a part in each of these partitions.

    Returns:
        The world, the catalog of a proxy, a bucket of the whole table, and the sorted virtual keys of the parts.
    """
    world = ProxyWorld()
    keys = sorted(world.add(*partitions))
    return world, world.tables(), world.bucket(), keys


def keys_of(view: BucketView) -> list[str]:
    return [view.virtual(k) for k in view.keys]


async def shown(tables: TableCatalog, bucket: VirtualBucket, as_of_ms: int | None = None) -> list[str]:
    return keys_of(await tables.view(bucket, as_of_ms))


async def refusal(
    tables: TableCatalog, bucket: VirtualBucket, as_of_ms: int | None = None, key: str | None = None
) -> str:
    """Return the code with which a listing or a key is rejected."""
    with pytest.raises(S3Error) as caught:
        await (tables.view(bucket, as_of_ms) if key is None else tables.find(bucket, as_of_ms, key))
    return caught.value.code


async def is_there(tables: TableCatalog, bucket: VirtualBucket, key: str, as_of_ms: int | None = None) -> bool:
    try:
        all_keys, _ = await tables.find(bucket, as_of_ms, key)
    except S3Error as error:
        if error.code != "NoSuchKey":
            raise
        return False
    assert all_keys.key == key
    return True


async def page(app: ProxyApp, name: str = "events", **parameters: str) -> tuple[list[str], str]:
    """Request a page. Return its keys and the continuation token, or no keys and the error code."""
    answer = await ask_app(app, question("GET", f"/{name}", {n.replace("_", "-"): v for n, v in parameters.items()}))
    if answer.status != 200:
        return [], answer.code
    root = ET.fromstring(answer.body)
    keys = [str(e.findtext(f"{NAMESPACE}Key")) for e in root.iter(f"{NAMESPACE}Contents")]
    return keys, root.findtext(f"{NAMESPACE}NextContinuationToken") or ""


async def rest_of(app: ProxyApp, token: str, name: str = "events") -> list[str]:
    """Return the keys of all pages after a token."""
    all_keys: list[str] = []
    while token:
        keys, token = await page(app, name, list_type="2", max_keys="2", continuation_token=token)
        assert keys, token
        all_keys += keys
    return all_keys


def says_nothing(answer: HttpAnswer) -> bool:
    """Return whether a response contains nothing of the store and the table."""
    text = answer.body + "".join(f"{n}{v}" for n, v in answer.headers.items()).encode()
    return not any(word in text for word in (b"memory", b"clocked", b"_log", b"_data", b"_table", b"injected", b"/tmp"))


async def fetch(app: ProxyApp, path: str, method: str = "GET") -> HttpAnswer:
    return await ask_app(app, question(method, path))
