"""The S3 operation of a request, and the call of its handler.

Writes are rejected with 405, and other subresources of S3 (`?acl`, `?versions`, `?tagging`) with 501. Like S3, the
proxy ignores unknown parameters.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from icedb.services.proxy.bucket_operations import Listings, get_bucket_location, head_bucket, list_buckets
from icedb.services.proxy.catalog.bucket_view import VirtualObject
from icedb.services.proxy.catalog.table_catalog import TableCatalog
from icedb.services.proxy.config.tenants import Tenant
from icedb.services.proxy.iceberg.metadata_catalog import MetadataCatalog
from icedb.services.proxy.iceberg.names import parse_name
from icedb.services.proxy.object_operations import get_bytes, get_object
from icedb.services.proxy.s3.address import Address
from icedb.services.proxy.s3.request import S3Request
from icedb.services.proxy.s3.response import S3Response
from icedb.services.proxy.s3.s3_errors import S3Error

__all__ = ["NO_OPERATION", "Operations", "operation_name"]

#: The name of rejected operations in logs and metrics.
NO_OPERATION = "Other"

#: Parameters that select another operation. Source: the operations of S3's API reference.
_SUBRESOURCES = frozenset(
    (
        *("accelerate", "acl", "analytics", "attributes", "cors", "delete", "encryption", "intelligent-tiering"),
        *("inventory", "legal-hold", "lifecycle", "logging", "metadataConfiguration", "metadataTable", "metrics"),
        *("notification", "object-lock", "ownershipControls", "policy", "policyStatus", "publicAccessBlock"),
        *("replication", "requestPayment", "restore", "retention", "select", "session", "tagging", "torrent"),
        *("uploadId", "uploads", "versioning", "versions", "website"),
    )
)
#: Headers that change the meaning of a response, so they cannot be ignored.
_UNSUPPORTED_HEADERS = (
    "x-amz-server-side-encryption-customer-algorithm",
    "x-amz-server-side-encryption-customer-key",
    "x-amz-server-side-encryption-customer-key-md5",
)


def operation_name(request: S3Request, address: Address) -> str:
    """Return the operation's name in S3's API. Raises S3Error: MethodNotAllowed, NotImplemented, InvalidArgument."""
    if request.method not in ("GET", "HEAD"):
        raise S3Error("MethodNotAllowed", headers=(("allow", "GET, HEAD"),))
    names = {name for name, _ in request.parameters}
    if names & _SUBRESOURCES or any(n.startswith("response-") for n in names):
        raise S3Error("NotImplemented")
    if any(request.header(name) is not None for name in _UNSUPPORTED_HEADERS):
        raise S3Error("NotImplemented")
    if not address.bucket:
        if request.method == "HEAD":
            raise S3Error("MethodNotAllowed", headers=(("allow", "GET"),))
        return "ListBuckets"
    if address.key:
        return "GetObject" if request.method == "GET" else "HeadObject"
    if request.method == "HEAD":
        return "HeadBucket"
    if "location" in names:
        return "GetBucketLocation"
    version = request.parameter("list-type")
    if version not in (None, "2"):
        raise S3Error("InvalidArgument", "Invalid List Type specified in Request.")
    return "ListObjects" if version is None else "ListObjectsV2"


@dataclass(frozen=True, slots=True)
class Operations:
    """The operations for authenticated tenants."""

    tables: TableCatalog
    listings: Listings
    region: str
    #: Lifetime of the presigned URL to which a GET is redirected. None: the proxy reads for the client.
    redirect_for: timedelta | None = None
    #: The Iceberg metadata below `metadata/` of each bucket. None: there is none.
    metadata: MetadataCatalog | None = None

    async def respond(self, name: str, tenant: Tenant, address: Address, request: S3Request) -> S3Response:
        """Run the operation of that name. Raises S3Error."""
        if name == "ListBuckets":
            return list_buckets(tenant)
        bucket = tenant.bucket(address.bucket)
        match name:
            case "ListObjectsV2":
                return await self.listings.version_2(tenant, bucket, address, request)
            case "ListObjects":
                return await self.listings.version_1(tenant, bucket, address, request)
            case "GetBucketLocation" | "HeadBucket":
                await self.tables.view(bucket, address.as_of_ms)  # clients check whether the bucket can be read
                return get_bucket_location(self.region) if name == "GetBucketLocation" else head_bucket(self.region)
        if request.parameter("versionId") not in (None, "null"):
            raise S3Error("NoSuchVersion")
        if self.metadata is not None and (metadata_name := parse_name(address.key)) is not None:
            body = await self.metadata.find(bucket, address.as_of_ms, metadata_name)
            return get_bytes(
                VirtualObject(address.key, "", len(body), metadata_name.time_ms),
                body,
                metadata_name.content_type,
                request,
            )
        object_, store = await self.tables.find(bucket, address.as_of_ms, address.key)
        if self.redirect_for is None:
            return get_object(object_, store, request)
        # A provider of credentials may send requests.
        return await asyncio.to_thread(get_object, object_, store, request, redirect_for=self.redirect_for)
