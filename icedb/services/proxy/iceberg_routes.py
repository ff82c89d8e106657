"""The operations of Iceberg's REST protocol below `/iceberg`, and their authentication.

    GET  v1/config                                 settings of the catalog
    POST v1/oauth/tokens                           a bearer token for an access key
    GET  v1/namespaces[/{namespace}]               the one namespace; HEAD: whether it exists
    GET  v1/namespaces/{namespace}/tables          one table for each virtual bucket
    GET  v1/namespaces/{namespace}/tables/{table}  the table's metadata, and the key to read it; HEAD: whether it exists

A request has a bearer token, or AWS's signature version 4 of a tenant's key. All else is rejected with 405: the catalog
is read-only.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote

from starlette.types import Receive

from icedb.services.proxy.config.settings import IcebergSettings, ServerSettings
from icedb.services.proxy.config.tenants import KeyOwner, TenantDirectory, secret_of
from icedb.services.proxy.iceberg.documents import bucket_address
from icedb.services.proxy.iceberg.metadata_catalog import MetadataCatalog
from icedb.services.proxy.iceberg.rest import RestError, json_response, table_response
from icedb.services.proxy.iceberg.tokens import create_token, token_owner
from icedb.services.proxy.request_body import UnauthenticatedBodies
from icedb.services.proxy.s3.address import bucket_of_host, split_time
from icedb.services.proxy.s3.request import S3Request
from icedb.services.proxy.s3.response import S3Response
from icedb.services.proxy.s3.s3_errors import S3Error
from icedb.services.proxy.signing import AuthenticatedCaller, authenticate

__all__ = ["TOKENS_OPERATION", "IcebergRoutes"]

_ROOT = "/iceberg"
#: The services for which clients sign requests of a REST catalog.
_SERVICES = ("execute-api", "glue", "s3")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,255}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")
_FORM_FIELDS_MAX = 20
# A client that has not authenticated may keep a connection until it is evicted. Connections whose token request has no
# complete body yet cannot be evicted, so they are a small share of all.
_TOKEN_BODIES_SHARE = 16

TOKENS_OPERATION = "iceberg_token"
_NAMESPACE, _TABLE = "{namespace}", "{table}"
#: Path below `v1/` -> method -> the name in logs and metrics.
_OPERATIONS: Mapping[tuple[str, ...], Mapping[str, str]] = {
    ("config",): {"GET": "iceberg_config"},
    ("oauth", "tokens"): {"POST": TOKENS_OPERATION},
    ("namespaces",): {"GET": "iceberg_list_namespaces"},
    ("namespaces", _NAMESPACE): {"GET": "iceberg_load_namespace", "HEAD": "iceberg_namespace_exists"},
    ("namespaces", _NAMESPACE, "tables"): {"GET": "iceberg_list_tables"},
    ("namespaces", _NAMESPACE, "tables", _TABLE): {"GET": "iceberg_load_table", "HEAD": "iceberg_table_exists"},
}
_ENDPOINTS = [
    f"{method} /v1/{{prefix}}/{'/'.join(path)}"
    for path, methods in _OPERATIONS.items()
    for method in methods
    if path[0] == "namespaces"
]


@dataclass(frozen=True, slots=True)
class RestOperation:
    """An operation of a request, with the names in its path."""

    name: str
    namespace: str = ""
    table: str = ""


class IcebergRoutes:
    """Responds to requests below `/iceberg`. Belongs to one event loop."""

    def __init__(
        self,
        catalog: MetadataCatalog,
        directory: TenantDirectory,
        settings: IcebergSettings,
        server: ServerSettings,
        now_ms: Callable[[], int],
    ) -> None:
        self.catalog = catalog
        self._directory = directory
        self._settings = settings
        self._server = server
        self._now_ms = now_ms
        self._token_bodies = UnauthenticatedBodies(max(1, server.connections // _TOKEN_BODIES_SHARE))

    def serves(self, request: S3Request) -> bool:
        """Return whether a request is for the catalog, before it is authenticated. Raises S3Error (InvalidURI)."""
        is_below = _is_below(request.path) or _is_below(request.decoded_path)
        hosts = [value for name, value in request.headers if name == "host"]
        return is_below and not any(bucket_of_host(host, self._server.domains) for host in hosts)

    @staticmethod
    def wants_token(request: S3Request) -> bool:
        """Return whether a request is for a token, so that its body authenticates it."""
        return request.method == "POST" and request.decoded_path == f"{_ROOT}/v1/oauth/tokens"

    # ------------------------------------------------------------------------------------ authentication

    async def authenticate(self, request: S3Request) -> AuthenticatedCaller:
        """Return the caller, by a bearer token or a signature. Raises RestError, S3Error."""
        authorization = request.header("authorization") or ""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() == "bearer":
            owner = await token_owner(token.strip(), self._directory, now_ms=self._now_ms())
            if owner is None:
                raise _not_authorized("The bearer token is invalid or expired. Request another one.")
            return AuthenticatedCaller(owner)
        if not authorization:
            raise _not_authorized("The request has no bearer token and no signature.")
        try:
            return await authenticate(request, self._directory, now_ms=self._now_ms(), services=_SERVICES)
        except S3Error as error:
            if error.status in (400, 403):
                raise _not_authorized(error.message) from None
            raise

    async def authenticate_client(self, request: S3Request, receive: Receive) -> KeyOwner:
        """Return the owner of the key in a request for a token. Raises RestError, S3Error."""
        form = _form(request, await self._token_bodies.read(request, receive))
        if form.get("grant_type") != "client_credentials":
            raise _bad_request("grant_type must be client_credentials.")
        authorization = request.header("authorization")
        if authorization is not None and authorization.partition(" ")[0].lower() == "basic":
            key_id, secrets = _basic_credentials(authorization)
        else:
            key_id, secrets = form.get("client_id", ""), [form.get("client_secret", "")]
        owner = await self._directory.find(key_id) if key_id else None
        matches = [hmac.compare_digest(one.encode(), secret_of(owner).encode()) for one in secrets]
        if owner is None or not any(matches):
            raise _not_authorized("client_id must be an access key id, and client_secret its secret.")
        return owner

    def token_response(self, owner: KeyOwner) -> S3Response:
        """Respond with a token of a key."""
        expires_ms = self._settings.token_expires_ms
        return json_response(
            {
                "access_token": create_token(owner.key, now_ms=self._now_ms(), expires_ms=expires_ms),
                "token_type": "bearer",
                "expires_in": expires_ms // 1000,
                "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
            }
        )

    # ------------------------------------------------------------------------------------ operations

    def operation(self, request: S3Request) -> RestOperation:
        """Return the operation of an authenticated request. Raises RestError: 405 for all that does not exist."""
        version, _, rest = request.decoded_path.removeprefix(f"{_ROOT}/").partition("/")
        segments = tuple(rest.split("/"))
        for path, methods in _OPERATIONS.items():
            names = {p: s for p, s in zip(path, segments, strict=False) if p in (_NAMESPACE, _TABLE)}
            if len(path) != len(segments) or any(names.get(p, p) != s for p, s in zip(path, segments, strict=True)):
                continue
            if version == "v1" and request.method in methods and all(names.values()):
                return RestOperation(methods[request.method], names.get(_NAMESPACE, ""), names.get(_TABLE, ""))
        raise RestError(
            405,
            "UnsupportedOperationException",
            "This catalog is read-only. It lists namespaces and tables, and loads tables.",
            headers=(("allow", "GET, HEAD"),),
        )

    async def respond(self, operation: RestOperation, owner: KeyOwner, request: S3Request) -> S3Response:
        """Run an operation. Raises RestError, S3Error."""
        namespace = self._settings.namespace
        if operation.namespace and operation.namespace != namespace:
            raise RestError(404, "NoSuchNamespaceException", f"The only namespace of this catalog is '{namespace}'.")
        match operation.name:
            case "iceberg_config":
                return json_response({"defaults": {}, "overrides": {}, "endpoints": _ENDPOINTS})
            case "iceberg_list_namespaces":
                below = request.parameter("parent")
                return json_response({"namespaces": [] if below else [[namespace]]})
            case "iceberg_load_namespace":
                return json_response({"namespace": [namespace], "properties": {}})
            case "iceberg_list_tables":
                names = sorted(owner.tenant.buckets)
                return json_response({"identifiers": [{"namespace": [namespace], "name": name} for name in names]})
            case "iceberg_load_table":
                return await self._load_table(operation.table, owner, request)
            case "iceberg_table_exists":
                name, as_of_ms = split_time(operation.table)
                await self.catalog.check_readable(owner.tenant.bucket(name), as_of_ms)
        return S3Response(204)

    async def _load_table(self, table: str, owner: KeyOwner, request: S3Request) -> S3Response:
        name, as_of_ms = split_time(table)
        bucket = owner.tenant.bucket(name)
        document = await self.catalog.document(bucket, as_of_ms)
        config = {
            # ClickHouse needs the slash.
            "s3.endpoint": f"{self._endpoint(request)}/",
            "s3.access-key-id": owner.key.id,
            "s3.secret-access-key": owner.key.secret,
            "s3.region": self._server.region,
            "client.region": self._server.region,
            "s3.path-style-access": "true",
        }
        identity = "\n".join([document.address, *config.values()])
        etag = f'"{hashlib.sha256(identity.encode()).hexdigest()[:32]}"'
        if request.header("if-none-match") == etag:
            return S3Response(304, (("etag", etag),))
        # Without a slash, because earlier snapshots are in buckets whose names have a time at their end.
        prefix = bucket_address(bucket, None)
        return table_response(document.address, document.body, config, prefix=prefix, etag=etag)

    def _endpoint(self, request: S3Request) -> str:
        if self._settings.endpoint is not None:
            return self._settings.endpoint
        host = request.header("host") or ""
        if not _HOST.fullmatch(host):
            raise _bad_request("The header Host is invalid.")
        return f"{'http' if self._server.tls_certificate is None else 'https'}://{host}"


def _is_below(path: str) -> bool:
    return path == _ROOT or path.startswith(f"{_ROOT}/")


def _form(request: S3Request, body: bytes) -> dict[str, str]:
    """Return the fields of a form. Raises RestError."""
    kind = (request.header("content-type") or "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise _bad_request("The content type must be application/x-www-form-urlencoded.")
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, strict_parsing=True, errors="strict",
            max_num_fields=_FORM_FIELDS_MAX,
        )  # fmt: skip
    except ValueError:  # UnicodeDecodeError is a ValueError
        raise _bad_request("The body is not a form.") from None
    if len({name for name, _ in pairs}) < len(pairs):
        raise _bad_request("A field of the form repeats.")
    return dict(pairs)


def _basic_credentials(authorization: str) -> tuple[str, list[str]]:
    """Return the key id, and the secret as it is and decoded: only some clients encode it. Raises RestError."""
    try:
        text = base64.b64decode(authorization.partition(" ")[2].strip(), validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        raise _bad_request("The header Authorization is not valid Basic authentication.") from None
    key_id, _, secret = text.partition(":")
    return key_id, [secret, unquote(secret)]


def _not_authorized(message: str) -> RestError:
    challenge = (("www-authenticate", 'Bearer realm="iceberg"'),)
    return RestError(401, "NotAuthorizedException", message, headers=challenge)


def _bad_request(message: str) -> RestError:
    return RestError(400, "BadRequestException", message)
