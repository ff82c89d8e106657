"""What is asked of buckets: which there are, where one is, and what it holds, page by page.

A listing of many pages stays on the snapshot that it began with. The continuation token says which: it is a note of the
proxy to itself, checked like any input, and opens nothing that the tenant could not list anyway. Version 1 of the
listing continues after a key; for it, the proxy remembers which snapshot ended a page with that key.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import quote

import msgspec

from icedb.services.proxy.catalog.bucket_view import BucketView, VirtualObject
from icedb.services.proxy.catalog.table_catalog import TableCatalog
from icedb.services.proxy.config.tenants import Tenant, VirtualBucket
from icedb.services.proxy.s3.address import Address
from icedb.services.proxy.s3.listing import Page
from icedb.services.proxy.s3.request import S3Request
from icedb.services.proxy.s3.response import S3Response, xml_response, xml_text
from icedb.services.proxy.s3.s3_errors import S3Error
from icedb.util.lru_cache import LruCache

__all__ = ["Listings", "get_bucket_location", "head_bucket", "list_buckets"]

KEYS_MAX = 1_000
# A client may ask for as many, and gets KEYS_MAX; what is more is no number for S3.
ASKED_MAX = 2_147_483_647
# Version 1: so many listings can be in progress.
ENDED_MAX = 10_000
# Virtual buckets are lines of a configuration, and nobody made them at a time.
CREATED = "1970-01-01T00:00:00.000Z"


def list_buckets(tenant: Tenant) -> S3Response:
    """ListBuckets: those of the tenant, by name."""
    buckets = "".join(
        f"<Bucket><Name>{xml_text(name)}</Name><CreationDate>{CREATED}</CreationDate></Bucket>"
        for name in sorted(tenant.buckets)
    )
    return xml_response("ListAllMyBucketsResult", f"{_owner(tenant)}<Buckets>{buckets}</Buckets>")


def get_bucket_location(region: str) -> S3Response:
    """GetBucketLocation. S3 says nothing for its first region."""
    return xml_response("LocationConstraint", "" if region == "us-east-1" else xml_text(region))


def head_bucket(region: str) -> S3Response:
    """HeadBucket."""
    return S3Response(headers=(("x-amz-bucket-region", region),))


#: Tenant, bucket, its time, prefix, delimiter, size of the pages, and the last key of one.
_PageKey = tuple[str, str, int | None, str, str, int, str]


class _ContinuationToken(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    began_ms: int
    snapshot_id: str
    after: str


class Listings:
    """ListObjectsV2 and ListObjects."""

    def __init__(self, tables: TableCatalog) -> None:
        self._tables = tables
        #: What was listed, and the last key of a page -> what `TableCatalog.view_again` needs.
        self._ended: LruCache[_PageKey, tuple[int, str]] = LruCache(ENDED_MAX)

    async def version_2(
        self, tenant: Tenant, bucket: VirtualBucket, address: Address, request: S3Request
    ) -> S3Response:
        """ListObjectsV2. Raises S3Error: InvalidArgument, and those of `TableCatalog.view`."""
        asked = _ListingRequest(request)
        token, start_after = request.parameter("continuation-token"), request.parameter("start-after") or ""
        if token is None:
            after, view = start_after, await self._tables.view(bucket, address.as_of_ms)
        else:
            read = _read_token(token)
            after, found = read.after, await self._again(bucket, address, read.began_ms, read.snapshot_id)
            if found is None:
                raise _wrong_token()
            view = found
        objects, page = view.page(prefix=asked.prefix, delimiter=asked.delimiter, after=after, size=asked.size)
        owner = _owner(tenant) if request.parameter("fetch-owner") == "true" else ""
        fields = [
            f"<KeyCount>{len(objects) + len(page.prefixes)}</KeyCount>",
            "" if token is None else f"<ContinuationToken>{xml_text(token)}</ContinuationToken>",
            f"<StartAfter>{asked.encoded(start_after)}</StartAfter>" if start_after else "",
        ]
        if page.truncated:
            further = _ContinuationToken(view.as_of_ms, view.snapshot_id, view.virtual(page.last))
            fields.append(f"<NextContinuationToken>{_written(further)}</NextContinuationToken>")
        return asked.answer(address.name, view, objects, page, fields, owner)

    async def version_1(
        self, tenant: Tenant, bucket: VirtualBucket, address: Address, request: S3Request
    ) -> S3Response:
        """ListObjects. Raises S3Error, as version 2."""
        asked = _ListingRequest(request)
        marker = request.parameter("marker") or ""
        listed = tenant.name, bucket.name, address.as_of_ms, asked.prefix, asked.delimiter, asked.size
        ended = self._ended.get((*listed, marker))
        if ended is None:
            view = await self._tables.view(bucket, address.as_of_ms)
        else:
            found = await self._again(bucket, address, *ended)
            if found is None:
                raise S3Error("InvalidArgument", "The listing that ended here is no more. Begin the listing again.")
            view = found
        objects, page = view.page(prefix=asked.prefix, delimiter=asked.delimiter, after=marker, size=asked.size)
        fields = [f"<Marker>{asked.encoded(marker)}</Marker>"]
        if page.truncated:
            last = view.virtual(page.last)
            self._ended.put((*listed, last), (view.as_of_ms, view.snapshot_id))
            if asked.delimiter:
                fields.append(f"<NextMarker>{asked.encoded(last)}</NextMarker>")
        return asked.answer(address.name, view, objects, page, fields, _owner(tenant))

    async def _again(
        self, bucket: VirtualBucket, address: Address, began_ms: int, snapshot_id: str
    ) -> BucketView | None:
        return await self._tables.resume_view(bucket, address.as_of_ms, began_ms=began_ms, snapshot_id=snapshot_id)


class _ListingRequest:
    """What both versions of the listing take, and how they answer."""

    def __init__(self, request: S3Request) -> None:
        self.prefix = request.parameter("prefix") or ""
        self.delimiter = request.parameter("delimiter") or ""
        self.keys_max = _number(request.parameter("max-keys"))
        self.size = min(self.keys_max, KEYS_MAX)
        self.encoding = request.parameter("encoding-type") or ""
        if self.encoding not in ("", "url"):
            raise S3Error("InvalidArgument", "Invalid Encoding Method specified in Request.")
        self.encoded: Callable[[str], str] = quote if self.encoding else xml_text

    def answer(
        self, name: str, view: BucketView, objects: list[VirtualObject], page: Page, fields: list[str], owner: str
    ) -> S3Response:
        """One page. `fields` are those of the version; `owner` is repeated for each object."""
        delimiter = f"<Delimiter>{self.encoded(self.delimiter)}</Delimiter>" if self.delimiter else ""
        encoding = f"<EncodingType>{self.encoding}</EncodingType>" if self.encoding else ""
        contents = "".join([self._content(o, owner) for o in objects])
        prefixes = "".join(
            f"<CommonPrefixes><Prefix>{self.encoded(view.virtual(p))}</Prefix></CommonPrefixes>" for p in page.prefixes
        )
        return xml_response(
            "ListBucketResult",
            f"<Name>{xml_text(name)}</Name><Prefix>{self.encoded(self.prefix)}</Prefix>{''.join(fields)}"
            f"<MaxKeys>{self.size}</MaxKeys>{delimiter}{encoding}"
            f"<IsTruncated>{'true' if page.truncated else 'false'}</IsTruncated>{contents}{prefixes}",
        )

    def _content(self, found: VirtualObject, owner: str) -> str:
        return (
            f"<Contents><Key>{self.encoded(found.key)}</Key><LastModified>{_iso(found.modified_ms)}</LastModified>"
            f"<ETag>&quot;{found.etag[1:-1]}&quot;</ETag><Size>{found.bytes}</Size>{owner}"
            "<StorageClass>STANDARD</StorageClass></Contents>"
        )


def _owner(tenant: Tenant) -> str:
    name = xml_text(tenant.name)
    return f"<Owner><ID>{name}</ID><DisplayName>{name}</DisplayName></Owner>"


@lru_cache(maxsize=4096)  # the parts of a commit have one time
def _iso(unix_ms: int) -> str:
    return f"{datetime.fromtimestamp(unix_ms // 1000, UTC).replace(tzinfo=None).isoformat()}.000Z"


def _number(text: str | None) -> int:
    if text is None or text == "":
        return KEYS_MAX
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= ASKED_MAX):
        raise S3Error("InvalidArgument", f"Argument maxKeys must be an integer between 0 and {ASKED_MAX}.")
    return int(text)


def _written(token: _ContinuationToken) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode()


def _read_token(text: str) -> _ContinuationToken:
    try:
        return msgspec.json.decode(
            base64.b64decode(text.encode(), altchars=b"-_", validate=True), type=_ContinuationToken
        )
    except (binascii.Error, msgspec.DecodeError, UnicodeError, ValueError):
        raise _wrong_token() from None


def _wrong_token() -> S3Error:
    return S3Error("InvalidArgument", "The continuation token provided is incorrect. Begin the listing again.")
