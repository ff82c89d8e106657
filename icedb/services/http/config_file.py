"""What files of all servers say alike: where they listen, how the store is reached; checked before it is used."""

from __future__ import annotations

import re
import ssl
import tomllib
from collections.abc import Mapping
from ipaddress import IPv6Address
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from icedb.errors import InvalidOption
from icedb.format.timing import DAY_MS
from icedb.services.http.documents import ConfigContext, check_positive
from icedb.services.http.server_settings import ListenSettings
from icedb.storage.location import parse_location
from icedb.util.durations import parse_duration

__all__ = [
    "LISTEN_DURATIONS",
    "check_listening",
    "explicit_settings",
    "resolve_listen_settings",
    "read_toml",
    "resolve_storage_options",
]

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
# As long as S3 lets a presigned address live; none of the other times is sensibly longer.
_DURATION_MS_MAX = 7 * DAY_MS

#: The least that each may be, in milliseconds.
LISTEN_DURATIONS = {"header_timeout": 1, "send_timeout": 1, "stop_timeout": 0}


def read_toml(path: Path, context: ConfigContext) -> dict[str, Any]:
    """The document in a file. Raises InvalidOption."""
    place = str(path)
    text = context.read(path.absolute(), "the file", place=place)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # tomllib's own, and what huge numbers and depths raise
        raise InvalidOption(f"{place}: this is no TOML: {error}. Correct it there.") from None


def resolve_listen_settings(given: Mapping[str, Any], context: ConfigContext, place: str) -> dict[str, Any]:
    """What was said, with what says where to listen as `ListenSettings` has it. Raises InvalidOption."""
    found = dict(given)
    check_positive({"connections": found.get("connections")}, place)
    for name, prefix in (("listen", ""), ("admin_listen", "admin_")):
        if name in found:
            address = _host_and_port(found.pop(name), f"{place}: {name}")
            found[f"{prefix}host"], found[f"{prefix}port"] = address
    for name in ("tls_certificate", "tls_key"):
        if name in found:
            found[name] = context.existing(found[name], name, place=place)
    return found


def check_listening(settings: ListenSettings, place: str) -> None:
    """Raise InvalidOption for what contradicts itself, and for a certificate that cannot be used."""
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise InvalidOption(f"{place}: tls_certificate and tls_key come together. Give both, or none for plain HTTP.")
    _check_certificate(settings, place)
    if settings.port and (settings.host, settings.port) == (settings.admin_host, settings.admin_port):
        raise InvalidOption(f"{place}: listen and admin_listen are the same. Give admin_listen another port.")


def _check_certificate(settings: ListenSettings, place: str) -> None:
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


def resolve_storage_options(
    said: Mapping[str, str], said_env: Mapping[str, str], context: ConfigContext, place: str
) -> Mapping[str, str]:
    """How the store is reached: what the file says, and the variables that it names. Raises InvalidOption."""
    both = sorted({n.lower() for n in said} & {n.lower() for n in said_env})
    if both:
        raise InvalidOption(
            f"{place}: {', '.join(both)} stand in [storage_options] and in [storage_options_env]. Give each once."
        )
    place = f"{place}: [storage_options]"
    of_environment = {
        name: context.variable(variable, f"[storage_options_env] {name}", place=place)
        for name, variable in said_env.items()
    }
    options = {**said, **of_environment}
    for address in ("s3://any/table", "/any") if options else ():  # an option may be wrong for one kind of store alone
        try:
            parse_location(address, {"AWS_REGION": "any", **options})
        except InvalidOption as error:
            raise InvalidOption(f"{place}: {str(error).removeprefix(f'{address}: ')}") from None
    return MappingProxyType(options)


def explicit_settings(read: msgspec.Struct, durations: Mapping[str, int], place: str) -> dict[str, Any]:
    """What was said, by the names of the settings; durations in milliseconds. Raises InvalidOption."""
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
