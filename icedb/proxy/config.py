"""What `proxy.toml` says: checked whole before any of it is used."""

from __future__ import annotations

import os
import re
import ssl
import tomllib
from collections.abc import Mapping
from ipaddress import IPv6Address
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import msgspec

from icedb.durations import parse_duration
from icedb.errors import InvalidOption
from icedb.location import parse_location
from icedb.proxy.documents import Machine, Strict, check_positive, check_unique, checked_uri, converted
from icedb.proxy.settings import ControlPlaneSettings, FileStamp, ProxyConfig, ServerSettings
from icedb.proxy.tenant_documents import Source, tenant_of

__all__ = ["load_config"]

_DOMAIN = re.compile(r"(?!-)[a-z0-9-]+(\.[a-z0-9-]+)*")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
# As long as S3 lets a presigned address live; none of the other times is sensibly longer.
_DURATION_MS_MAX = 7 * 24 * 3_600_000


class _File(Strict):
    server: dict[str, Any] = msgspec.field(default_factory=dict)
    storage_options: dict[str, str] = msgspec.field(default_factory=dict)
    storage_options_env: dict[str, str] = msgspec.field(default_factory=dict)
    tenant: list[dict[str, Any]] = msgspec.field(default_factory=list)
    control_plane: dict[str, Any] | None = None


class _Server(Strict):
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


class _ControlPlane(Strict):
    url: str
    tables: list[str]
    token_env: str | None = None
    timeout: Any = None
    cache: Any = None
    unknown_cache: Any = None
    entries: int | None = None


# The least that each may be, in milliseconds. A table may be looked at anew for each request, and nothing held.
_SERVER_DURATIONS = {
    "redirect_expires": 1_000,  # S3 counts it in seconds
    "refresh": 0,
    "hold": 0,
    "header_timeout": 1,
    "send_timeout": 1,
    "stop_timeout": 0,
}
_CONTROL_PLANE_DURATIONS = {"timeout": 1, "cache": 0, "unknown_cache": 0}


def load_config(
    path: Path, environ: Mapping[str, str] = os.environ, *, seen: dict[Path, FileStamp | None] | None = None
) -> ProxyConfig:
    """Read a configuration and the secrets that it names. Raises InvalidOption.

    `seen` gets the stamp of each file that was looked at, also when that ends in an error.
    """
    machine = Machine(environ, path.absolute().parent, {} if seen is None else seen)
    place = str(path)
    try:
        document = tomllib.loads(machine.read(path.absolute(), "the file", place=place))
    except InvalidOption:
        raise
    except (ValueError, RecursionError) as error:  # tomllib's own, and what huge numbers and depths raise
        raise InvalidOption(f"{place}: this is no TOML: {error}. Correct it there.") from None
    file = converted(document, _File, place)
    source = Source(place, machine=machine)
    tenants = tuple(tenant_of(d, source, number=n) for n, d in enumerate(file.tenant, 1))
    check_unique((t.name for t in tenants), "tenants have the name", place)
    check_unique((k.id for t in tenants for k in t.keys), "access keys have the id", place)
    if not tenants and file.control_plane is None:
        raise InvalidOption(f"{place}: nobody could ask for anything. Add a [[tenant]], or a [control_plane].")
    return ProxyConfig(
        server=_server(file.server, machine, f"{place}: [server]"),
        tenants=tenants,
        control_plane=_control_plane(file.control_plane, machine, f"{place}: [control_plane]"),
        storage_options=_storage_options(file, machine, place),
        files=MappingProxyType(dict(machine.seen)),
    )


def _server(document: dict[str, Any], machine: Machine, place: str) -> ServerSettings:
    given = _given(converted(document, _Server, place), _SERVER_DURATIONS, place)
    check_positive({n: given.get(n) for n in ("connections", "tables_open")}, place)
    for name, prefix in (("listen", ""), ("admin_listen", "admin_")):
        if name in given:
            address = _host_and_port(given.pop(name), f"{place}: {name}")
            given[f"{prefix}host"], given[f"{prefix}port"] = address
    given["domains"] = tuple(_domain(d, place) for d in given.get("domains", ()))
    if not re.fullmatch(r"[a-z0-9-]+", given.get("region", "any")):
        raise InvalidOption(f"{place}: region is to be a name such as us-east-1.")
    for name in ("tls_certificate", "tls_key"):
        if name in given:
            given[name] = machine.existing(given[name], name, place=place)
    settings = ServerSettings(**given)
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise InvalidOption(f"{place}: tls_certificate and tls_key come together. Give both, or none for plain HTTP.")
    _check_certificate(settings, place)
    if settings.port and (settings.host, settings.port) == (settings.admin_host, settings.admin_port):
        raise InvalidOption(f"{place}: listen and admin_listen are the same. Give admin_listen another port.")
    return settings


def _check_certificate(settings: ServerSettings, place: str) -> None:
    if settings.tls_certificate is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            settings.tls_certificate,
            settings.tls_key,
            password=lambda: b"",  # never asked for at a terminal
        )
    except OSError as error:  # ssl's own errors, too
        raise InvalidOption(
            f"{place}: {settings.tls_certificate}: the certificate and its key cannot be used: "
            f"{error.strerror or error}. tls_certificate and tls_key name PEM files that belong together, without a "
            "passphrase."
        ) from None


def _host_and_port(text: str, place: str) -> tuple[str, int]:
    found = _ADDRESS.fullmatch(text)
    try:
        if found is not None and int(found[2]) <= 65_535:
            return (str(IPv6Address(found[1][1:-1])) if found[1].startswith("[") else found[1]), int(found[2])
    except ValueError:
        pass  # brackets around what is no IPv6
    raise InvalidOption(f"{place}: this is no address. Write 127.0.0.1:8080, [::1]:8080, or 0.0.0.0:8080 for all.")


def _domain(text: str, place: str) -> str:
    if not _DOMAIN.fullmatch(text.lower()):
        raise InvalidOption(
            f"{place}: domains has what is no domain. Write s3.example.com, without scheme, port and dots at its ends."
        )
    return text.lower()


def _control_plane(document: dict[str, Any] | None, machine: Machine, place: str) -> ControlPlaneSettings | None:
    if document is None:
        return None
    given = _given(converted(document, _ControlPlane, place), _CONTROL_PLANE_DURATIONS, place)
    check_positive({"entries": given.get("entries")}, place)
    if not _is_plain_url(given["url"]):  # not shown: it may hold a password
        raise InvalidOption(
            f"{place}: url is to start with http:// or https://, and to have no user, query or fragment; a token comes "
            "from token_env."
        )
    given["tables"] = tuple(checked_uri(t, "one of tables", place, machine) for t in given["tables"])
    if not given["tables"] or "/" in given["tables"]:
        raise InvalidOption(f'{place}: tables says where all tables are that it may show: tables = ["s3://lake/"].')
    if "token_env" in given:
        given["token"] = machine.variable(given.pop("token_env"), "token_env", place=place)
        if not re.fullmatch(r"[!-~]+", given["token"]):
            raise InvalidOption(f"{place}: the token is to be ASCII without spaces. Set its variable anew.")
    return ControlPlaneSettings(**given)


def _is_plain_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        bare = url.port is None or url.port > 0
    except ValueError:
        return False  # of a port or an IPv6 that is none
    printable = re.fullmatch(r"[!-~]+", text) is not None
    return bare and printable and url.scheme in ("http", "https") and bool(url.hostname) and not set("@?#") & set(text)


def _storage_options(file: _File, machine: Machine, place: str) -> Mapping[str, str]:
    both = sorted({n.lower() for n in file.storage_options} & {n.lower() for n in file.storage_options_env})
    if both:
        raise InvalidOption(
            f"{place}: {', '.join(both)} stand in [storage_options] and in [storage_options_env]. Give each once."
        )
    place = f"{place}: [storage_options]"
    of_environment = {
        name: machine.variable(variable, f"[storage_options_env] {name}", place=place)
        for name, variable in file.storage_options_env.items()
    }
    options = {**file.storage_options, **of_environment}
    for address in ("s3://any/table", "/any") if options else ():  # an option may be wrong for one kind of store alone
        try:
            parse_location(address, {"AWS_REGION": "any", **options})
        except InvalidOption as error:
            raise InvalidOption(f"{place}: {str(error).removeprefix(f'{address}: ')}") from None
    return MappingProxyType(options)


def _given(read: msgspec.Struct, durations: Mapping[str, int], place: str) -> dict[str, Any]:
    """What was said, by the names of the settings; durations in milliseconds."""
    given = {name: value for name, value in msgspec.structs.asdict(read).items() if value is not None}
    for name, least_ms in durations.items():
        if name in given:
            given[f"{name}_ms"] = _duration_ms(given.pop(name), least_ms, f"{place}: {name}")
    return given


def _duration_ms(value: object, least_ms: int, place: str) -> int:
    try:
        found = round(parse_duration(str(value)).total_seconds() * 1000)
    except InvalidOption as error:
        raise InvalidOption(f"{place}: {error}") from None
    if not least_ms <= found <= _DURATION_MS_MAX:
        raise InvalidOption(f"{place}: it is to be {least_ms}ms to 7d.")
    return found
