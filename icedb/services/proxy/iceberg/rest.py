"""Responses and errors of Iceberg's REST protocol: JSON documents, without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from icedb.services.proxy.s3.response import S3Response
from icedb.services.proxy.s3.s3_errors import S3Error

__all__ = ["RestError", "json_response", "rest_error", "rest_error_response", "table_response"]

_JSON = ("content-type", "application/json")
#: Responses contain keys and tokens of the tenant.
_PRIVATE = ("cache-control", "no-store")

#: S3's error code -> type of the error. Others are by status.
_TYPES = {"NoSuchBucket": "NoSuchTableException", "SlowDown": "SlowDownException"}
_TYPES_BY_STATUS = {
    400: "BadRequestException", 403: "ForbiddenException", 404: "NotFoundException", 500: "InternalServerError",
    503: "ServiceUnavailableException",
}  # fmt: skip


class RestError(Exception):
    """An error response of the catalog. Its message reveals nothing behind the proxy."""

    def __init__(self, status: int, type_: str, message: str, *, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.type = type_
        self.message = message
        self.headers = headers


def rest_error(error: S3Error) -> RestError:
    """Return an error of the S3 protocol as one of this protocol, in which a bucket is a table."""
    type_ = _TYPES.get(error.code) or _TYPES_BY_STATUS.get(error.status, "BadRequestException")
    return RestError(error.status, type_, error.message.replace("bucket", "table"), headers=error.headers)


def json_response(document: object, *, status: int = 200) -> S3Response:
    """Return a JSON document."""
    return S3Response(status, (_JSON, _PRIVATE), msgspec.json.encode(document))


def rest_error_response(error: RestError) -> S3Response:
    """Return the document of an error."""
    document = {"error": {"message": error.message, "type": error.type, "code": error.status}}
    body = msgspec.json.encode(document)
    return S3Response(error.status, (_JSON, _PRIVATE, *error.headers), body, code=error.type)


def table_response(address: str, document: bytes, config: Mapping[str, Any], *, prefix: str, etag: str) -> S3Response:
    """Return the response to a load of a table. `document` is JSON. `config` is also valid for objects of a prefix."""
    credentials = [{"prefix": prefix, "config": config}]
    fields = b'{"metadata-location":%b,"metadata":%b,"config":%b,"storage-credentials":%b}' % (
        msgspec.json.encode(address), document, msgspec.json.encode(config), msgspec.json.encode(credentials),
    )  # fmt: skip
    return S3Response(200, (_JSON, _PRIVATE, ("etag", etag)), fields)
