"""The settings that the configuration files of all servers share: listen addresses and storage options."""

from __future__ import annotations

import re
import ssl
import tomllib
from collections.abc import Mapping
from ipaddress import IPv6Address
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from icedb.errors import InvalidOption
from icedb.format.timing import DAY_MS
from icedb.services.http.documents import ConfigContext, StrictDocument, check_positive, decode_document
from icedb.services.http.server_settings import FileStamp, ListenSettings
from icedb.storage.location import parse_location
from icedb.util.durations import parse_duration

__all__ = [
    "check_listening",
    "explicit_settings",
    "host_and_port",
    "listen_settings",
    "read_config",
    "resolve_storage_options",
]

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
# The maximum lifetime of a presigned URL in S3. No other duration needs to be longer.
_DURATION_MS_MAX = 7 * DAY_MS

# Durations that all servers have, with the minimum of each in milliseconds.
_LISTEN_DURATIONS = {"header_timeout": 1, "send_timeout": 1, "stop_timeout": 0}

_Document = TypeVar("_Document", bound=StrictDocument)


def read_config(
    path: Path, shape: type[_Document], environ: Mapping[str, str], stamps: dict[Path, FileStamp | None] | None
) -> tuple[_Document, ConfigContext]:
    """Read a TOML file. `stamps` receives the stamp of each file that is read. Raises InvalidOption."""
    place, context = str(path), ConfigContext(environ, path.absolute().parent, {} if stamps is None else stamps)
    text = context.read(path.absolute(), "the file", place=place)
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # huge numbers raise ValueError, deep nesting raises RecursionError
        raise InvalidOption(f"{place}: the file is not valid TOML: {error}. Correct the file.") from None
    return decode_document(document, shape, place), context


def listen_settings(
    document: object, shape: type[StrictDocument], durations: Mapping[str, int], context: ConfigContext, place: str
) -> dict[str, Any]:
    """Return the settings of a server, with addresses and TLS files as the fields of `ListenSettings`.

    `durations` has the minimum of each duration of the service in milliseconds. Raises InvalidOption.
    """
    resolved = explicit_settings(document, shape, {**durations, **_LISTEN_DURATIONS}, place)
    check_positive({"connections": resolved.get("connections")}, place)
    for name, prefix in (("listen", ""), ("admin_listen", "admin_")):
        if name in resolved:
            address = host_and_port(resolved.pop(name), f"{place}: {name}")
            resolved[f"{prefix}host"], resolved[f"{prefix}port"] = address
    for name in ("tls_certificate", "tls_key"):
        if name in resolved:
            resolved[name] = context.require_file(resolved[name], name, place=place)
    return resolved


def check_listening(settings: ListenSettings, place: str) -> None:
    """Raise InvalidOption if settings contradict each other, or if the certificate is unusable."""
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise InvalidOption(
            f"{place}: only one of tls_certificate and tls_key is set. Set both for HTTPS, or neither for HTTP."
        )
    _check_certificate(settings, place)
    if settings.port and (settings.host, settings.port) == (settings.admin_host, settings.admin_port):
        raise InvalidOption(f"{place}: listen and admin_listen are the same. Set another port for admin_listen.")


def _check_certificate(settings: ListenSettings, place: str) -> None:
    if settings.tls_certificate is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            settings.tls_certificate,
            settings.tls_key,
            password=lambda: b"",  # do not prompt at a terminal
        )
    except OSError as error:  # ssl.SSLError is an OSError
        raise InvalidOption(
            f"{place}: {settings.tls_certificate}: the certificate and its key cannot be loaded: "
            f"{error.strerror or error}. Set tls_certificate and tls_key to a matching pair of PEM files without a "
            "passphrase."
        ) from None


def host_and_port(text: str, place: str) -> tuple[str, int]:
    """Split an address to listen at. Raises InvalidOption, which begins with `place`."""
    match = _ADDRESS.fullmatch(text)
    try:
        if match is not None and int(match[2]) <= 65_535:
            return (str(IPv6Address(match[1][1:-1])) if match[1].startswith("[") else match[1]), int(match[2])
    except ValueError:
        pass  # the brackets do not hold an IPv6 address
    raise InvalidOption(
        f"{place}: the value is not an address. Write 127.0.0.1:8080, [::1]:8080, or 0.0.0.0:8080 for all interfaces."
    )


def resolve_storage_options(
    inline: Mapping[str, str], variables: Mapping[str, str], context: ConfigContext, place: str
) -> Mapping[str, str]:
    """Merge the storage options of the file with those from environment variables. Raises InvalidOption."""
    both = sorted({n.lower() for n in inline} & {n.lower() for n in variables})
    if both:
        raise InvalidOption(
            f"{place}: {', '.join(both)} in both [storage_options] and [storage_options_env]. Set each option once."
        )
    place = f"{place}: [storage_options]"
    from_environment = {
        name: context.variable(variable, f"[storage_options_env] {name}", place=place)
        for name, variable in variables.items()
    }
    options = {**inline, **from_environment}
    for address, usual in _stores_of(options).items():  # an option may be invalid for one store only
        try:
            parse_location(address, {**usual, **options})
        except InvalidOption as error:
            raise InvalidOption(f"{place}: {str(error).removeprefix(f'{address}: ')}") from None
    return MappingProxyType(options)


def _stores_of(options: Mapping[str, str]) -> Mapping[str, Mapping[str, str]]:
    """Return an address in each store that these options are for, with the options that need not be set."""
    if not options:
        return {}
    for prefix, address in (("azure_", "az://any/table"), ("google_", "gs://any/table")):
        if any(name.lower().startswith(prefix) for name in options):
            return {address: {}}
    return {address: {"AWS_REGION": "any"} for address in ("s3://any/table", "/any")}


def explicit_settings(
    document: object, shape: type[StrictDocument], durations: Mapping[str, int], place: str
) -> dict[str, Any]:
    """Return the settings that the document sets, with durations in milliseconds. Raises InvalidOption."""
    fields = msgspec.structs.asdict(decode_document(document, shape, place))
    settings = {name: value for name, value in fields.items() if value is not None}
    for name, min_ms in durations.items():
        if name in settings:
            settings[f"{name}_ms"] = _duration_ms(settings.pop(name), min_ms, f"{place}: {name}")
    return settings


def _duration_ms(value: object, min_ms: int, place: str) -> int:
    try:
        milliseconds = round(parse_duration(str(value)).total_seconds() * 1000)
    except InvalidOption as error:
        raise InvalidOption(f"{place}: {error}") from None
    if not min_ms <= milliseconds <= _DURATION_MS_MAX:
        raise InvalidOption(f"{place}: {value} is out of range. Set {min_ms}ms to 7d.")
    return milliseconds
