"""Operations on buckets: ListBuckets, GetBucketLocation, HeadBucket, and the listings of objects.

All pages of a listing are of the snapshot of the first page, which the continuation token names. The proxy validates a
token like any input, and a token gives no access beyond what the tenant can list. Version 1 of the listing has no
token: it continues after a key. So the proxy remembers the snapshot of each page by the page's last key.
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
# Clients may request up to this number and get KEYS_MAX. S3 rejects larger numbers.
REQUESTED_KEYS_MAX = 2_147_483_647
# How many pages of version 1 are remembered.
PAGES_MAX = 10_000
# Virtual buckets are configuration, and have no time of creation.
CREATED = "1970-01-01T00:00:00.000Z"


def list_buckets(tenant: Tenant) -> S3Response:
    """Respond to ListBuckets with the tenant's buckets, sorted by name."""
    buckets = "".join(
        f"<Bucket><Name>{xml_text(name)}</Name><CreationDate>{CREATED}</CreationDate></Bucket>"
        for name in sorted(tenant.buckets)
    )
    return xml_response("ListAllMyBucketsResult", f"{_owner(tenant)}<Buckets>{buckets}</Buckets>")


def get_bucket_location(region: str) -> S3Response:
    """Respond to GetBucketLocation. The location of us-east-1 is empty, as in S3."""
    return xml_response("LocationConstraint", "" if region == "us-east-1" else xml_text(region))


def head_bucket(region: str) -> S3Response:
    """Respond to HeadBucket."""
    return S3Response(headers=(("x-amz-bucket-region", region),))


#: The key of a remembered page: tenant, bucket, as-of time, prefix, delimiter, page size, last key.
_PageKey = tuple[str, str, int | None, str, str, int, str]


class _ContinuationToken(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    began_ms: int
    snapshot_id: str
    after: str


class Listings:
    """The operations ListObjectsV2 and ListObjects."""

    def __init__(self, tables: TableCatalog) -> None:
        self._tables = tables
        #: The start time and snapshot id of the listing, for `TableCatalog.resume_view`.
        self._pages: LruCache[_PageKey, tuple[int, str]] = LruCache(PAGES_MAX)

    async def version_2(
        self, tenant: Tenant, bucket: VirtualBucket, address: Address, request: S3Request
    ) -> S3Response:
        """Respond to ListObjectsV2. Raises S3Error: InvalidArgument, and those of `TableCatalog.view`."""
        listing = _ListingRequest(request)
        token, start_after = request.parameter("continuation-token"), request.parameter("start-after") or ""
        if token is None:
            after, view = start_after, await self._tables.view(bucket, address.as_of_ms)
        else:
            position = _decode_token(token)
            after = position.after
            resumed = await self._resume(bucket, address, position.began_ms, position.snapshot_id)
            if resumed is None:
                raise _invalid_token()
            view = resumed
        objects, page = view.page(prefix=listing.prefix, delimiter=listing.delimiter, after=after, size=listing.size)
        owner = _owner(tenant) if request.parameter("fetch-owner") == "true" else ""
        fields = [
            f"<KeyCount>{len(objects) + len(page.prefixes)}</KeyCount>",
            "" if token is None else f"<ContinuationToken>{xml_text(token)}</ContinuationToken>",
            f"<StartAfter>{listing.encoded(start_after)}</StartAfter>" if start_after else "",
        ]
        if page.truncated:
            next_token = _ContinuationToken(view.as_of_ms, view.snapshot_id, view.virtual(page.last))
            text = base64.urlsafe_b64encode(msgspec.json.encode(next_token)).decode()
            fields.append(f"<NextContinuationToken>{text}</NextContinuationToken>")
        return listing.respond(address.name, view, objects, page, fields, owner)

    async def version_1(
        self, tenant: Tenant, bucket: VirtualBucket, address: Address, request: S3Request
    ) -> S3Response:
        """Respond to ListObjects. Raises S3Error, as version 2."""
        listing = _ListingRequest(request)
        marker = request.parameter("marker") or ""
        parameters = tenant.name, bucket.name, address.as_of_ms, listing.prefix, listing.delimiter, listing.size
        previous = self._pages.get((*parameters, marker))
        if previous is None:
            view = await self._tables.view(bucket, address.as_of_ms)
        else:
            resumed = await self._resume(bucket, address, *previous)
            if resumed is None:
                raise S3Error("InvalidArgument", "The listing has expired. Begin the listing again.")
            view = resumed
        objects, page = view.page(prefix=listing.prefix, delimiter=listing.delimiter, after=marker, size=listing.size)
        fields = [f"<Marker>{listing.encoded(marker)}</Marker>"]
        if page.truncated:
            last = view.virtual(page.last)
            self._pages.put((*parameters, last), (view.as_of_ms, view.snapshot_id))
            if listing.delimiter:
                fields.append(f"<NextMarker>{listing.encoded(last)}</NextMarker>")
        return listing.respond(address.name, view, objects, page, fields, _owner(tenant))

    async def _resume(
        self, bucket: VirtualBucket, address: Address, began_ms: int, snapshot_id: str
    ) -> BucketView | None:
        return await self._tables.resume_view(bucket, address.as_of_ms, began_ms=began_ms, snapshot_id=snapshot_id)


class _ListingRequest:
    """The parameters that both versions of the listing have, and their response."""

    def __init__(self, request: S3Request) -> None:
        self.prefix = request.parameter("prefix") or ""
        self.delimiter = request.parameter("delimiter") or ""
        self.keys_max = _number(request.parameter("max-keys"))
        self.size = min(self.keys_max, KEYS_MAX)
        self.encoding = request.parameter("encoding-type") or ""
        if self.encoding not in ("", "url"):
            raise S3Error("InvalidArgument", "Invalid Encoding Method specified in Request.")
        self.encoded: Callable[[str], str] = quote if self.encoding else xml_text

    def respond(
        self, name: str, view: BucketView, objects: list[VirtualObject], page: Page, fields: list[str], owner: str
    ) -> S3Response:
        """Return a page. `fields` are specific to the version, `owner` is repeated for each object."""
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

    def _content(self, object_: VirtualObject, owner: str) -> str:
        return (
            f"<Contents><Key>{self.encoded(object_.key)}</Key><LastModified>{_iso(object_.modified_ms)}</LastModified>"
            f"<ETag>&quot;{object_.etag[1:-1]}&quot;</ETag><Size>{object_.bytes}</Size>{owner}"
            "<StorageClass>STANDARD</StorageClass></Contents>"
        )


def _owner(tenant: Tenant) -> str:
    name = xml_text(tenant.name)
    return f"<Owner><ID>{name}</ID><DisplayName>{name}</DisplayName></Owner>"


@lru_cache(maxsize=4096)  # all parts of a commit have the same time
def _iso(unix_ms: int) -> str:
    return f"{datetime.fromtimestamp(unix_ms // 1000, UTC).replace(tzinfo=None).isoformat()}.000Z"


def _number(text: str | None) -> int:
    if text is None or text == "":
        return KEYS_MAX
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= REQUESTED_KEYS_MAX):
        raise S3Error("InvalidArgument", f"Argument maxKeys must be an integer between 0 and {REQUESTED_KEYS_MAX}.")
    return int(text)


def _decode_token(text: str) -> _ContinuationToken:
    try:
        return msgspec.json.decode(
            base64.b64decode(text.encode(), altchars=b"-_", validate=True), type=_ContinuationToken
        )
    except (binascii.Error, msgspec.DecodeError, UnicodeError, ValueError):
        raise _invalid_token() from None


def _invalid_token() -> S3Error:
    return S3Error("InvalidArgument", "The continuation token provided is incorrect. Begin the listing again.")
