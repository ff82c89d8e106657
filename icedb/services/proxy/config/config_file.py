"""The configuration file `proxy.toml`, read and checked as a whole before any of it is used."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import msgspec

from icedb.errors import InvalidOption
from icedb.services.http.config_file import (
    check_listening,
    explicit_settings,
    listen_settings,
    read_config,
    resolve_storage_options,
)
from icedb.services.http.documents import ConfigContext, StrictDocument, canonical_uri, check_positive, check_unique
from icedb.services.http.server_settings import FileStamp
from icedb.services.proxy.config.settings import ControlPlaneSettings, IcebergSettings, ProxyConfig, ServerSettings
from icedb.services.proxy.config.tenant_documents import DocumentSource, parse_tenant

__all__ = ["load_config"]

_DOMAIN = re.compile(r"(?!-)[a-z0-9-]+(\.[a-z0-9-]+)*")


class _ProxyDocument(StrictDocument):
    server: dict[str, Any] = msgspec.field(default_factory=dict)
    storage_options: dict[str, str] = msgspec.field(default_factory=dict)
    storage_options_env: dict[str, str] = msgspec.field(default_factory=dict)
    tenant: list[dict[str, Any]] = msgspec.field(default_factory=list)
    control_plane: dict[str, Any] | None = None
    iceberg: dict[str, Any] | None = None


class _ProxyServerDocument(StrictDocument):
    listen: str | None = None
    admin_listen: str | None = None
    domains: list[str] | None = None
    region: str | None = None
    redirect: bool | None = None
    redirect_expires: Any = None
    refresh: Any = None
    hold: Any = None
    connections: int | None = None
    header_timeout: Any = None
    send_timeout: Any = None
    stop_timeout: Any = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    tables_open: int | None = None


class _ControlPlaneDocument(StrictDocument):
    url: str
    tables: list[str]
    token_env: str | None = None
    timeout: Any = None
    cache: Any = None
    unknown_cache: Any = None
    entries: int | None = None


class _IcebergDocument(StrictDocument):
    enabled: bool = False
    endpoint: str | None = None
    namespace: str | None = None
    token_expires: Any = None
    snapshots: int | None = None


# Durations with the minimum of each in milliseconds. With 0, refresh is for each request, and no part is held.
_SERVER_DURATIONS = {"redirect_expires": 1_000, "refresh": 0, "hold": 0}  # S3's redirects have whole seconds
_CONTROL_PLANE_DURATIONS = {"timeout": 1, "cache": 0, "unknown_cache": 0}
_ICEBERG_DURATIONS = {"token_expires": 1_000}
#: Each snapshot adds some 400 bytes to a document, which clients fetch for each query.
_SNAPSHOTS_MAX = 10_000
_RESERVED_NAMESPACES = ("default", "information_schema", "main", "pg_catalog", "system")
#: The first segment of the catalog's paths, which a path-style bucket of that name would have as well.
_CATALOG_BUCKET = "iceberg"


def load_config(
    path: Path, environ: Mapping[str, str] = os.environ, *, stamps: dict[Path, FileStamp | None] | None = None
) -> ProxyConfig:
    """Read a configuration and the secrets that it names. Raises InvalidOption.

    `stamps` receives the stamp of each file that is read, also if an error is raised.
    """
    place = str(path)
    file, context = read_config(path, _ProxyDocument, environ, stamps)
    source = DocumentSource(place, context=context)
    tenants = tuple(parse_tenant(d, source, number=n) for n, d in enumerate(file.tenant, 1))
    check_unique((t.name for t in tenants), "tenants have the name", place)
    check_unique((k.id for t in tenants for k in t.keys), "access keys have the id", place)
    if not tenants and file.control_plane is None:
        raise InvalidOption(f"{place}: no tenant is configured. Add a [[tenant]] or a [control_plane].")
    iceberg = _iceberg(file.iceberg, f"{place}: [iceberg]")
    if iceberg is not None and (owners := [t.name for t in tenants if _CATALOG_BUCKET in t.buckets]):
        raise InvalidOption(
            f"{place}: [iceberg]: the tenant '{owners[0]}' has a bucket named '{_CATALOG_BUCKET}', which is the "
            "path of the catalog. Rename the bucket, or do not enable the catalog."
        )
    return ProxyConfig(
        server=_server(file.server, context, f"{place}: [server]"),
        tenants=tenants,
        control_plane=_control_plane(file.control_plane, context, f"{place}: [control_plane]"),
        iceberg=iceberg,
        storage_options=resolve_storage_options(file.storage_options, file.storage_options_env, context, place),
        files=MappingProxyType(dict(context.stamps)),
    )


def _server(document: dict[str, Any], context: ConfigContext, place: str) -> ServerSettings:
    values = listen_settings(document, _ProxyServerDocument, _SERVER_DURATIONS, context, place)
    check_positive({"tables_open": values.get("tables_open")}, place)
    values["domains"] = tuple(_domain(d, place) for d in values.get("domains", ()))
    if not re.fullmatch(r"[a-z0-9-]+", values.get("region", "any")):
        raise InvalidOption(f"{place}: region is invalid. Use lower-case letters, digits and '-', as in us-east-1.")
    settings = ServerSettings(**values)
    check_listening(settings, place)
    return settings


def _domain(text: str, place: str) -> str:
    if not _DOMAIN.fullmatch(text.lower()):
        raise InvalidOption(
            f"{place}: domains has an invalid domain. Write s3.example.com, without scheme, port and dots at its ends."
        )
    return text.lower()


def _control_plane(document: dict[str, Any] | None, context: ConfigContext, place: str) -> ControlPlaneSettings | None:
    if document is None:
        return None
    values = explicit_settings(document, _ControlPlaneDocument, _CONTROL_PLANE_DURATIONS, place)
    check_positive({"entries": values.get("entries")}, place)
    if not _is_plain_url(values["url"]):  # not in the message: it may hold a password
        raise InvalidOption(
            f"{place}: url is invalid. Start it with http:// or https://, without user, query or fragment. Set "
            "token_env for a token."
        )
    values["tables"] = tuple(canonical_uri(t, "one of tables", place, context) for t in values["tables"])
    if not values["tables"] or "/" in values["tables"]:
        raise InvalidOption(
            f'{place}: tables has no location. List the locations of all its tables: tables = ["s3://lake/"].'
        )
    if "token_env" in values:
        values["token"] = context.variable(values.pop("token_env"), "token_env", place=place)
        if not re.fullmatch(r"[!-~]+", values["token"]):
            raise InvalidOption(f"{place}: the token is invalid. Set its variable to ASCII characters without spaces.")
    return ControlPlaneSettings(**values)


def _iceberg(document: dict[str, Any] | None, place: str) -> IcebergSettings | None:
    values = explicit_settings(document or {}, _IcebergDocument, _ICEBERG_DURATIONS, place)
    enabled = values.pop("enabled")
    snapshots = values.get("snapshots", 0)
    if not 0 <= snapshots <= _SNAPSHOTS_MAX:
        raise InvalidOption(f"{place}: snapshots is {snapshots}. Set 0 to {_SNAPSHOTS_MAX:,}.")
    if "endpoint" in values:
        if not _is_plain_url(values["endpoint"]) or urlsplit(values["endpoint"]).path not in ("", "/"):
            raise InvalidOption(
                f"{place}: endpoint is invalid. Write the address of this endpoint for clients, without user, path or "
                "query: https://s3.example.com."
            )
        values["endpoint"] = values["endpoint"].rstrip("/")
    namespace = values.get("namespace", "any")
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,62}", namespace) or namespace in _RESERVED_NAMESPACES:
        raise InvalidOption(
            f"{place}: namespace is invalid. Use lower-case letters, digits and '_', a letter first, and none of "
            f"{', '.join(_RESERVED_NAMESPACES)}, which engines reserve."
        )
    return IcebergSettings(**values) if enabled else None


def _is_plain_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        bare = url.port is None or url.port > 0
    except ValueError:
        return False  # an invalid port or IPv6 address
    printable = re.fullmatch(r"[!-~]+", text) is not None
    return bare and printable and url.scheme in ("http", "https") and bool(url.hostname) and not set("@?#") & set(text)
