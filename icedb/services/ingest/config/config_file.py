"""The configuration file `ingest.toml`, read and checked as a whole before any of it is used.

No request is sent to a store. Opening a table later shows whether it exists and has suitable columns.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from icedb.errors import InvalidOption
from icedb.services.http.config_file import (
    check_listening,
    explicit_settings,
    listen_settings,
    read_config,
    resolve_storage_options,
)
from icedb.services.http.documents import (
    ConfigContext,
    SecretDocument,
    StrictDocument,
    canonical_uri,
    check_positive,
    check_unique,
    decode_document,
    read_secret,
)
from icedb.services.http.server_settings import FileStamp
from icedb.services.ingest.config.settings import (
    IngestConfig,
    IngestLimits,
    IngestSettings,
    Nested,
    TableSettings,
    TenantSettings,
)
from icedb.services.ingest.events.segment import SEGMENT_ID, SEGMENT_SCHEMA
from icedb.writer.batch_loader import PARTITION_COLUMN

__all__ = ["load_config"]

# The name of a table is a part of a URL, so it has no characters that need encoding.
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
# A key is sent only over the wire, so an attacker cannot test guesses offline. Still, long keys cost clients nothing.
_KEY = re.compile(r"[!-9;-~]{16,256}")
_WEBHOOK_SECRET = re.compile(r"[!-~]{16,256}")
_CREATE_SETTINGS = ("partition_by", "sort_by", "schema", "required", "schema_policy")
#: Durations with the minimum of each in milliseconds.
_SERVER_DURATIONS = {"commit_timeout": 1}
_TABLE_DURATIONS = {"id_window": 1, "delay_max": 0}


class _IngestDocument(StrictDocument):
    server: dict[str, Any] = msgspec.field(default_factory=dict)
    storage_options: dict[str, str] = msgspec.field(default_factory=dict)
    storage_options_env: dict[str, str] = msgspec.field(default_factory=dict)
    table: list[dict[str, Any]] = msgspec.field(default_factory=list)
    tenant: list[dict[str, Any]] = msgspec.field(default_factory=list)


class _IngestServerDocument(StrictDocument, rename={"header_timeout": "receive_timeout"}):
    listen: str | None = None
    admin_listen: str | None = None
    connections: int | None = None
    header_timeout: Any = None
    send_timeout: Any = None
    stop_timeout: Any = None
    commit_timeout: Any = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    body_bytes_max: int | None = None
    held_bytes_max: int | None = None
    events_max: int | None = None


class _IngestTableDocument(StrictDocument):
    name: str
    uri: str
    create: bool | None = None
    partition_by: list[str] | None = None
    sort_by: list[str] | None = None
    schema: dict[str, str] | None = None
    required: list[str] | None = None
    schema_policy: Literal["open", "declared"] | None = None
    id_column: str | None = None
    id_window: Any = None
    on_conflict: Literal["raise", "cast", "quarantine"] | None = None
    nested: Nested | None = None
    tenant_column: str | None = None
    received_column: str | None = None
    delay_max: Any = None
    rows_max: int | None = None
    bytes_max: int | None = None
    pending_bytes_max: int | None = None
    partitions_max: int | None = None
    columns_max: int | None = None


class _IngestTenantDocument(StrictDocument):
    name: str
    tables: list[str]
    keys: list[dict[str, Any]] = msgspec.field(default_factory=list)
    segment: str | None = None
    webhooks: list[dict[str, Any]] = msgspec.field(default_factory=list)
    events_per_second: int | None = None
    bytes_per_second: int | None = None
    new_columns: bool = True


def load_config(
    path: Path, environ: Mapping[str, str] = os.environ, *, stamps: dict[Path, FileStamp | None] | None = None
) -> IngestConfig:
    """Read a configuration and the secrets that it names. Raises InvalidOption.

    `stamps` receives the stamp of each file that is read, also if an error is raised.
    """
    place = str(path)
    file, context = read_config(path, _IngestDocument, environ, stamps)
    if not file.table:
        raise InvalidOption(f"{place}: no table is configured. Add a [[table]] with name and uri.")
    if not file.tenant:
        raise InvalidOption(f"{place}: no tenant is configured. Add a [[tenant]] with name, tables and a key.")
    tenants = tuple(_tenant(d, context, place, number=n) for n, d in enumerate(file.tenant, 1))
    check_unique((t.name for t in tenants), "tenants have the name", place)
    _check_secrets(tenants, place)
    of_segment = {t.segment for t in tenants}
    tables = [_table(d, context, place, of_segment, number=n) for n, d in enumerate(file.table, 1)]
    check_unique((t.name for t in tables), "tables have the name", place)
    check_unique((t.uri for t in tables), "tables have the uri", place)
    _check_names(tenants, tables, place)
    return IngestConfig(
        server=_server(file.server, context, f"{place}: [server]"),
        tables=MappingProxyType({t.name: t for t in tables}),
        tenants=tenants,
        storage_options=resolve_storage_options(file.storage_options, file.storage_options_env, context, place),
        files=MappingProxyType(dict(context.stamps)),
    )


def _server(document: dict[str, Any], context: ConfigContext, place: str) -> IngestSettings:
    values = listen_settings(document, _IngestServerDocument, _SERVER_DURATIONS, context, place)
    names = ("body_bytes_max", "held_bytes_max", "events_max")
    check_positive({n: values.get(n) for n in names}, place)
    settings = IngestSettings(**values)
    check_listening(settings, place)
    if settings.held_bytes_max < settings.body_bytes_max:
        raise InvalidOption(
            f"{place}: held_bytes_max ({settings.held_bytes_max}) is less than body_bytes_max "
            f"({settings.body_bytes_max}). Set it to several times as much."
        )
    return settings


# ------------------------------------------------------------------------------------------------ tables


def _table(
    document: dict[str, Any], context: ConfigContext, file: str, of_segment: set[str | None], *, number: int
) -> TableSettings:
    place = f"{file}: table {_label(document, number)}"
    values = explicit_settings(document, _IngestTableDocument, _TABLE_DURATIONS, place)
    if not _NAME.fullmatch(values["name"]):
        raise InvalidOption(
            f"{place}: the name is invalid. Use 1 to 100 letters, digits, '.', '_' or '-', without '.' at the start: "
            "it is part of a URL."
        )
    values["uri"] = canonical_uri(values["uri"], "uri", place, context)
    limits = ("rows_max", "bytes_max", "pending_bytes_max", "partitions_max", "columns_max")
    check_positive({n: values.get(n) for n in limits}, place)
    if not values.get("create"):
        for name in _CREATE_SETTINGS:
            if name in values:
                raise InvalidOption(
                    f"{place}: {name} applies only to the creation of a table. Set create = true, or remove {name}."
                )
    for name in ("partition_by", "sort_by", "required"):
        values[name] = tuple(values.get(name, ()))
    if values["name"] in of_segment:
        values.setdefault("id_column", SEGMENT_ID)
        if values.get("create"):
            values["schema"] = {**SEGMENT_SCHEMA, **values.get("schema", {})}
    _check_own_columns(values, place)
    settings = TableSettings(**values)
    if settings.pending_bytes_max < settings.bytes_max:
        raise InvalidOption(
            f"{place}: pending_bytes_max ({settings.pending_bytes_max}) is less than bytes_max ({settings.bytes_max}). "
            "Set it to several times as much."
        )
    return settings


def _check_own_columns(values: Mapping[str, Any], place: str) -> None:
    settings: dict[str, str] = {}
    for name in ("id_column", "tenant_column", "received_column"):
        column = values.get(name)
        if column is None:
            continue
        if not column.strip() or column.casefold() == PARTITION_COLUMN:
            raise InvalidOption(f"{place}: {name} is {column!r}, which is not a valid column name. Set another name.")
        if column.casefold() in settings:
            raise InvalidOption(f"{place}: {name} and {settings[column.casefold()]} are one column. Name two columns.")
        settings[column.casefold()] = name


# ------------------------------------------------------------------------------------------------ tenants


def _tenant(document: dict[str, Any], context: ConfigContext, file: str, *, number: int) -> TenantSettings:
    place = f"{file}: tenant {_label(document, number)}"
    read = decode_document(document, _IngestTenantDocument, place)
    if not _NAME.fullmatch(read.name):
        raise InvalidOption(
            f"{place}: the name is invalid. Use 1 to 100 letters, digits, '.', '_' or '-', without '.' at the start."
        )
    keys = tuple(_key(d, context, f"{place}, key {n}") for n, d in enumerate(read.keys, 1))
    secrets = tuple(_webhook(d, context, f"{place}, webhook {n}") for n, d in enumerate(read.webhooks, 1))
    if not keys and not secrets:
        raise InvalidOption(
            f'{place}: it has no keys. Add keys = [{{ secret_file = "a file" }}], or remove the tenant.'
        )
    if not read.tables:
        raise InvalidOption(f"{place}: tables is empty. Add the name of a [[table]].")
    check_unique(read.tables, "of its tables are", place)
    if read.segment is not None and read.segment not in read.tables:
        raise InvalidOption(f"{place}: segment is '{read.segment}', which is not in tables. Add it to tables.")
    if secrets and read.segment is None:
        raise InvalidOption(f"{place}: it has webhooks, but no table for them. Set segment to the name of a table.")
    limits = IngestLimits(read.events_per_second, read.bytes_per_second, read.new_columns)
    check_positive({"events_per_second": limits.events_per_second, "bytes_per_second": limits.bytes_per_second}, place)
    return TenantSettings(read.name, keys, tuple(read.tables), read.segment, secrets, limits)


def _key(document: object, context: ConfigContext, place: str) -> str:
    key = read_secret(decode_document(document, SecretDocument, place), context, place)
    if not _KEY.fullmatch(key):
        raise InvalidOption(
            f"{place}: the key is invalid. Use 16 to 256 ASCII characters without spaces and colons, for example 40 "
            "random characters."
        )
    return key


def _webhook(document: object, context: ConfigContext, place: str) -> str:
    secret = read_secret(decode_document(document, SecretDocument, place), context, place)
    if not _WEBHOOK_SECRET.fullmatch(secret):
        raise InvalidOption(
            f"{place}: the secret is invalid. Use 16 to 256 ASCII characters without spaces, for example 40 random "
            "characters. An attacker who sees one signed request can find a short secret by trial."
        )
    return secret


# ------------------------------------------------------------------------------------------------ consistency


def _check_secrets(tenants: tuple[TenantSettings, ...], place: str) -> None:
    """Raise InvalidOption if a key occurs twice. The message does not show the key."""
    owners: dict[str, str] = {}
    for tenant in tenants:
        for key in tenant.keys:
            if key in owners:
                raise InvalidOption(
                    f"{place}: tenant '{owners[key]}' and tenant '{tenant.name}' have the same key. Change one."
                    if owners[key] != tenant.name
                    else f"{place}: tenant '{tenant.name}' has the same key twice. Remove one."
                )
            owners[key] = tenant.name


def _check_names(tenants: tuple[TenantSettings, ...], tables: list[TableSettings], place: str) -> None:
    names, writers = {t.name for t in tables}, Counter[str]()
    for tenant in tenants:
        for name in tenant.tables:
            if name not in names:
                raise InvalidOption(
                    f"{place}: tenant '{tenant.name}': there is no table '{name[:100]}'. Tables: "
                    f"{', '.join(sorted(names))}. Add a [[table]] of that name, or correct the name."
                )
            writers[name] += 1
    for table in tables:
        if writers[table.name] > 1 and table.id_column is not None and table.tenant_column is None:
            raise InvalidOption(
                f"{place}: table '{table.name}': several tenants write it, and one could use up the ids of another. "
                'Set tenant_column = "tenant", which stores ids as <tenant>/<id>, or use a table for each tenant.'
            )
        if not writers[table.name]:
            raise InvalidOption(
                f"{place}: table '{table.name}': no tenant may write it. Add it to tables of a [[tenant]], or "
                "remove it."
            )


def _label(document: object, number: int) -> str:
    """Return the name of a document for messages, or its number if the name is invalid."""
    name = document.get("name") if isinstance(document, dict) else None
    return f"'{name}'" if isinstance(name, str) and _NAME.fullmatch(name) else str(number)
