"""How tests ask the proxy's catalog, and the application before it, what a bucket shows."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from icedb.format.timing import MINUTE_MS
from icedb.services.proxy.app import ProxyApp
from icedb.services.proxy.catalog.bucket_view import BucketView
from icedb.services.proxy.catalog.table_catalog import TableCatalog
from icedb.services.proxy.config.tenants import VirtualBucket
from icedb.services.proxy.s3.s3_errors import S3Error
from tests.support.proxy.proxy_worlds import Heard, ask_app, question

REFRESH_MS = 1_000
HOLD_MS = 15 * MINUTE_MS
NAMESPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"


def keys_of(view: BucketView) -> list[str]:
    return [view.virtual(k) for k in view.keys]


async def shown(tables: TableCatalog, bucket: VirtualBucket, as_of_ms: int | None = None) -> list[str]:
    return keys_of(await tables.view(bucket, as_of_ms))


async def refusal(
    tables: TableCatalog, bucket: VirtualBucket, as_of_ms: int | None = None, key: str | None = None
) -> str:
    """The code that a listing, or a key, is refused with."""
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
    """The keys of a page, and how to go on; or, when it is refused, nothing and the code."""
    answer = await ask_app(app, question("GET", f"/{name}", {n.replace("_", "-"): v for n, v in parameters.items()}))
    if answer.status != 200:
        return [], answer.code
    root = ET.fromstring(answer.body)
    keys = [str(e.findtext(f"{NAMESPACE}Key")) for e in root.iter(f"{NAMESPACE}Contents")]
    return keys, root.findtext(f"{NAMESPACE}NextContinuationToken") or ""


async def rest_of(app: ProxyApp, token: str, name: str = "events") -> list[str]:
    """What the pages after a token hold."""
    all_keys: list[str] = []
    while token:
        keys, token = await page(app, name, list_type="2", max_keys="2", continuation_token=token)
        assert keys, token
        all_keys += keys
    return all_keys


def says_nothing(answer: Heard) -> bool:
    """Whether an answer is free of what lies behind the proxy."""
    said = answer.body + "".join(f"{n}{v}" for n, v in answer.headers.items()).encode()
    return not any(word in said for word in (b"memory", b"clocked", b"_log", b"_data", b"_table", b"injected", b"/tmp"))


async def fetch(app: ProxyApp, path: str, method: str = "GET") -> Heard:
    return await ask_app(app, question(method, path))
