"""What `proxy.toml` says, and what a control plane says of a tenant: checked whole before any of it is used.

Names that are not known are refused, as is what contradicts itself, by InvalidOption, which names the file, the place
in it and the remedy. It never quotes a secret, nor what stands where one might have been written by mistake: an id that
is none, the name of an environment variable, the path of a secret's file, an address with a user in it.

Relative paths, of tables too, are relative to the file that says them. No request is made: whether a table is there,
its first request tells.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from icedb.durations import parse_duration
from icedb.errors import InvalidOption
from icedb.format.names import has_unsafe_segment, stored_path
from icedb.location import parse_location
from icedb.proxy.addresses import has_time
from icedb.proxy.tenants import AccessKey, Scope, Tenant, TenantLimits, VirtualBucket
from icedb.times import parse_as_of

__all__ = [
    "KEY_ID",
    "ControlPlaneSettings",
    "FileStamp",
    "ProxyConfig",
    "ServerSettings",
    "Source",
    "load_config",
    "tenant_of",
]

#: What an access key's id looks like.
KEY_ID = re.compile(r"[A-Za-z0-9_-]{3,128}")

# Whoever sees one signed request can try secrets at home, as fast as a machine can; what is shorter is found at once.
# S3's own have 40. Neither spaces nor letters beyond ASCII: the files in which clients keep secrets would change them.
_SECRET = re.compile(r"[!-~]{8,256}")
_SECRET_FILE_BYTES_MAX = 4_096
_TENANT_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_BUCKET_NAME = re.compile(r"(?!.*\.\.)(?!\d+\.\d+\.\d+\.\d+$)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_DOMAIN = re.compile(r"(?!-)[a-z0-9-]+(\.[a-z0-9-]+)*")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
# As long as S3 lets a presigned address live; none of the other times is sensibly longer.
_DURATION_MS_MAX = 7 * 24 * 3_600_000
# The last year that a datetime can say.
_TIME_MS_MAX = 253_402_300_799_999
# With these neither the environment nor a client library's files decide whether an address is one.
_ANY_OPTIONS = {
    "AWS_ENDPOINT_URL": "http://any",
    "AWS_REGION": "any",
    "AWS_ACCESS_KEY_ID": "any",
    "AWS_SECRET_ACCESS_KEY": "any",
}


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How the proxy listens, and what it allows itself. To change them takes a restart."""

    host: str = "127.0.0.1"
    #: 0: any free one.
    port: int = 8080
    #: Where metrics are shown; None: nowhere.
    admin_host: str | None = None
    admin_port: int | None = None
    #: In lower case. A request to `events.s3.example.com` is about the bucket `events` with `s3.example.com` here.
    domains: tuple[str, ...] = ()
    #: What clients sign their requests for.
    region: str = "us-east-1"
    #: Whether a part is fetched from the store itself, by a presigned address that the proxy redirects to.
    redirect: bool = False
    redirect_expires_ms: int = 300_000
    #: How old the newest known state of a table may be.
    refresh_ms: int = 1_000
    #: How long a part that was replaced can still be fetched by who has listed it.
    hold_ms: int = 900_000
    #: At a time.
    connections: int = 2_000
    #: How long a client may take to say what it wants.
    header_timeout_ms: int = 10_000
    #: A client that takes nothing of its answer for so long is cut off.
    send_timeout_ms: int = 60_000
    #: How long answers that are under way may take when the proxy is told to stop.
    stop_timeout_ms: int = 30_000
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    #: How many tables are held open at a time.
    tables_open: int = 256


@dataclass(frozen=True, slots=True)
class ControlPlaneSettings:
    """Whom to ask for tenants that the file does not have, and how long an answer is believed."""

    #: Without user, query and fragment: messages may show it.
    url: str
    #: Its tables are these or lie below them; addresses as `Location.uri` has them.
    tables: tuple[str, ...]
    token: str | None = field(default=None, repr=False)
    timeout_ms: int = 2_000
    cache_ms: int = 60_000
    #: How long it is believed that nobody has a key.
    unknown_cache_ms: int = 5_000
    #: How many keys are remembered.
    entries: int = 10_000


@dataclass(frozen=True, slots=True)
class FileStamp:
    """By what it is told that a file is no longer what was read."""

    mtime_ns: int
    bytes: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> FileStamp | None:
        """The stamp of a file now; None: it cannot be looked at."""
        try:
            found = path.stat()
        except (OSError, ValueError):  # ValueError: a zero byte in the path
            return None
        return cls(found.st_mtime_ns, found.st_size, found.st_ino)


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """All that the file says."""

    server: ServerSettings
    tenants: tuple[Tenant, ...]
    control_plane: ControlPlaneSettings | None
    #: How the store is reached, see `icedb.location`; what is not there, the environment decides. Holds secrets.
    storage_options: Mapping[str, str] = field(repr=False)
    #: The files that this was read of, as they were right before.
    files: Mapping[Path, FileStamp | None] = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class _Machine:
    """What a file of this machine may refer to. Each file that is looked at leaves its stamp in `seen`."""

    environ: Mapping[str, str]
    folder: Path
    seen: dict[Path, FileStamp | None]

    def variable(self, name: str, what: str, *, place: str) -> str:
        value = self.environ.get(name)
        if value is None:
            raise InvalidOption(f"{place}: the environment variable that {what} names is not set. Set it.")
        return value

    def read(self, path: Path, what: str, *, place: str, bytes_max: int = -1) -> str:
        self.seen[path] = FileStamp.of(path)  # before it is read: a change in between is then one since
        try:
            with path.open("rb") as file:
                return file.read(bytes_max).decode()
        except UnicodeDecodeError:
            raise InvalidOption(f"{place}: {what} is no UTF-8 text. Write it anew.") from None
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "this is no path"
            raise InvalidOption(f"{place}: {what} cannot be read ({why}). Put it there, readable.") from None

    def existing(self, name: str, what: str, *, place: str) -> Path:
        path = self.folder / name
        self.seen[path] = FileStamp.of(path)
        if not path.is_file():
            raise InvalidOption(f"{place}: the file that {what} names is not there. Put it there.")
        return path


@dataclass(frozen=True, slots=True)
class Source:
    """Where tenants' documents come from, and what they may therefore say."""

    #: As messages call it.
    name: str
    #: The tables that it may name are these or lie below them. None: all.
    tables: tuple[str, ...] | None = None
    #: None: it says nothing of this machine's files and environment, and spells its list of buckets `buckets`.
    machine: _Machine | None = None


class _Strict(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A shape that has no other names than its own."""


class _File(_Strict):
    server: dict[str, Any] = {}
    storage_options: dict[str, str] = {}
    storage_options_env: dict[str, str] = {}
    tenant: list[dict[str, Any]] = []
    control_plane: dict[str, Any] | None = None


class _Server(_Strict):
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


class _ControlPlane(_Strict):
    url: str
    tables: list[str]
    token_env: str | None = None
    timeout: Any = None
    cache: Any = None
    unknown_cache: Any = None
    entries: int | None = None


class _Tenant(_Strict):
    name: str
    keys: list[dict[str, Any]]
    requests: int | None = None
    bytes_per_second: int | None = None
    buckets: list[dict[str, Any]] = []


class _FileTenant(_Tenant, rename={"buckets": "bucket"}):
    buckets: list[dict[str, Any]] = []  # said again: only a class's own fields are renamed


class _Key(_Strict):
    id: str
    secret: str


class _FileKey(_Strict):
    id: str
    secret: str | None = None
    secret_env: str | None = None
    secret_file: str | None = None


class _Bucket(_Strict):
    name: str
    table: str
    partitions: list[str] | None = None
    as_of: Any = None
    time_travel: bool | None = None
    earliest: Any = None


_Shape = TypeVar("_Shape", bound=msgspec.Struct)

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
    machine = _Machine(environ, path.absolute().parent, {} if seen is None else seen)
    place = str(path)
    try:
        document = tomllib.loads(machine.read(path.absolute(), "the file", place=place))
    except InvalidOption:
        raise
    except (ValueError, RecursionError) as error:  # tomllib's own, and what huge numbers and depths raise
        raise InvalidOption(f"{place}: this is no TOML: {error}. Correct it there.") from None
    file = _converted(document, _File, place)
    source = Source(place, machine=machine)
    tenants = tuple(tenant_of(d, source, number=n) for n, d in enumerate(file.tenant, 1))
    _check_unique((t.name for t in tenants), "tenants have the name", place)
    _check_unique((k.id for t in tenants for k in t.keys), "access keys have the id", place)
    if not tenants and file.control_plane is None:
        raise InvalidOption(f"{place}: nobody could ask for anything. Add a [[tenant]], or a [control_plane].")
    return ProxyConfig(
        server=_server(file.server, machine, f"{place}: [server]"),
        tenants=tenants,
        control_plane=_control_plane(file.control_plane, machine, f"{place}: [control_plane]"),
        storage_options=_storage_options(file, machine, place),
        files=MappingProxyType(dict(machine.seen)),
    )


def tenant_of(document: object, source: Source, *, number: int | None = None) -> Tenant:
    """The tenant that a document describes. Raises InvalidOption.

    `number` says which of several it is, should it have no name that can be shown.
    """
    name = document.get("name") if isinstance(document, dict) else None
    shown = f" '{name}'" if isinstance(name, str) and _TENANT_NAME.fullmatch(name) else f" {number}" if number else ""
    place = f"{source.name}: tenant{shown}"
    read = _converted(document, _Tenant if source.machine is None else _FileTenant, place)
    if not _TENANT_NAME.fullmatch(read.name):
        raise InvalidOption(f"{place}: its name is to be 1 to 100 letters, digits, '.', '_' or '-'.")
    keys = tuple(_key(d, source, f"{place}, key {n}") for n, d in enumerate(read.keys, 1))
    if not keys:
        raise InvalidOption(f"{place}: it has no keys. Give it one, or take the tenant out.")
    _check_unique((k.id for k in keys), "access keys have the id", place)
    buckets = [_bucket(d, source, place, number=n) for n, d in enumerate(read.buckets, 1)]
    _check_unique((b.name for b in buckets), "buckets have the name", place)
    limits = TenantLimits(read.requests, read.bytes_per_second)
    _check_positive({"requests": limits.requests, "bytes_per_second": limits.bytes_per_second}, place)
    return Tenant(read.name, keys, MappingProxyType({b.name: b for b in buckets}), limits)


def _key(document: object, source: Source, place: str) -> AccessKey:
    if source.machine is None:
        of_service = _converted(document, _Key, place)
        key_id, secret = of_service.id, of_service.secret
    else:
        of_file = _converted(document, _FileKey, place)
        key_id, secret = of_file.id, _file_secret(of_file, source.machine, place)
    if not KEY_ID.fullmatch(key_id):  # not shown: perhaps it is the secret
        raise InvalidOption(f"{place}: its id is to be 3 to 128 letters, digits, '_' or '-'.")
    if not _SECRET.fullmatch(secret):
        raise InvalidOption(
            f"{place}, '{key_id}': its secret is to be 8 to 256 characters of ASCII without spaces; 40 at random are "
            "good. A short one is found by trial, from one signed request."
        )
    return AccessKey(key_id, secret)


def _file_secret(key: _FileKey, machine: _Machine, place: str) -> str:
    given = [n for n in ("secret", "secret_env", "secret_file") if getattr(key, n) is not None]
    if len(given) != 1:
        raise InvalidOption(
            f"{place}: it has {' and '.join(given) or 'no secret'}. Give one of secret, secret_env, secret_file."
        )
    if key.secret_env is not None:
        return machine.variable(key.secret_env, "secret_env", place=place)
    if key.secret_file is not None:
        what = "the file that secret_file names"
        path = machine.folder / key.secret_file
        # Editors end a file with a newline.
        return machine.read(path, what, place=place, bytes_max=_SECRET_FILE_BYTES_MAX).strip()
    return key.secret or ""


def _bucket(document: object, source: Source, tenant: str, *, number: int) -> VirtualBucket:
    name = document.get("name") if isinstance(document, dict) else None
    place = f"{tenant}, bucket {repr(name[:80]) if isinstance(name, str) else number}"
    read = _converted(document, _Bucket, place)
    if not _BUCKET_NAME.fullmatch(read.name):
        raise InvalidOption(
            f"{place}: a bucket's name is to be 3 to 63 of a-z, 0-9, '.' and '-', with a letter or digit at either "
            "end; no '..', and no IP address."
        )
    if has_time(read.name):
        raise InvalidOption(
            f"{place}: a name with such an end asks for another bucket as of a time. Give it another name."
        )
    return VirtualBucket(read.name, _table(read.table, source, place), _scope(read, place))


def _table(text: str, source: Source, place: str) -> str:
    uri = _uri(text, "table", place, source.machine)
    if source.tables is not None and not any(uri == t or uri.startswith(f"{t}/") for t in source.tables):
        raise InvalidOption(f"{place}: the table '{uri}' is not below one of tables of [control_plane]. Add its place.")
    return uri


def _uri(text: str, name: str, place: str, machine: _Machine | None) -> str:
    """An address in the one way in which it is compared."""
    if machine is not None and text and "://" not in text and not text.startswith("~"):
        text = str(machine.folder / text)
    try:
        return parse_location(text, _ANY_OPTIONS).uri
    except (ValueError, OSError, RuntimeError) as error:  # ours; of a path: no home of such a user, a loop of links
        raise InvalidOption(f"{place}: {name} is no table's address: {error}") from None


def _scope(read: _Bucket, place: str) -> Scope:
    if read.partitions == []:
        raise InvalidOption(f"{place}: partitions is empty. Name some, or leave it out to show the whole table.")
    as_of_ms, earliest_ms = _time_ms(read.as_of, "as_of", place), _time_ms(read.earliest, "earliest", place)
    if as_of_ms is not None and (read.time_travel or earliest_ms is not None):
        raise InvalidOption(
            f"{place}: with as_of it shows one time alone. Leave out time_travel and earliest, or as_of."
        )
    if read.time_travel is False and earliest_ms is not None:
        raise InvalidOption(f"{place}: without time_travel no time is before earliest. Leave out one of them.")
    return Scope(
        partitions=tuple(_partition(p, place) for p in read.partitions or ()),
        as_of_ms=as_of_ms,
        time_travel=as_of_ms is None and read.time_travel is not False,
        earliest_ms=earliest_ms,
    )


def _partition(text: str, place: str) -> str:
    """A partition, or several by their first columns, as the library spells its path."""
    steps = text.removesuffix("/").split("/")
    names = [name for name, equals, _ in (s.partition("=") for s in steps) if name and equals]
    if has_unsafe_segment(steps) or len(names) != len(steps) or len(set(names)) != len(names):
        raise InvalidOption(
            f"{place}: '{text[:200]}' is no partition. Write column=value, of several columns with a slash between "
            "them, each column once: d=2026-11-21/u=42."
        )
    return stored_path("/".join(steps))


def _time_ms(value: object, name: str, place: str) -> int | None:
    """Unix milliseconds, of a text, of a number of them or of what TOML takes for a time."""
    if value is None:
        return None
    try:
        found = parse_as_of(str(value)[:200], table=place, name=name)
    except OverflowError:  # of a zone that leaves the calendar
        found = _TIME_MS_MAX + 1
    if found > _TIME_MS_MAX:
        raise InvalidOption(f"{place}: {name} is after the year 9999. Write an earlier time.")
    return found


def _server(document: dict[str, Any], machine: _Machine, place: str) -> ServerSettings:
    given = _given(_converted(document, _Server, place), _SERVER_DURATIONS, place)
    _check_positive({n: given.get(n) for n in ("connections", "tables_open")}, place)
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
    if settings.port and (settings.host, settings.port) == (settings.admin_host, settings.admin_port):
        raise InvalidOption(f"{place}: listen and admin_listen are the same. Give admin_listen another port.")
    return settings


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


def _control_plane(document: dict[str, Any] | None, machine: _Machine, place: str) -> ControlPlaneSettings | None:
    if document is None:
        return None
    given = _given(_converted(document, _ControlPlane, place), _CONTROL_PLANE_DURATIONS, place)
    _check_positive({"entries": given.get("entries")}, place)
    if not _is_plain_url(given["url"]):  # not shown: it may hold a password
        raise InvalidOption(
            f"{place}: url is to start with http:// or https://, and to have no user, query or fragment; a token comes "
            "from token_env."
        )
    given["tables"] = tuple(_uri(t, "one of tables", place, machine) for t in given["tables"])
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


def _storage_options(file: _File, machine: _Machine, place: str) -> Mapping[str, str]:
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


def _converted(document: object, shape: type[_Shape], place: str) -> _Shape:
    try:
        return msgspec.convert(document, shape)
    except msgspec.ValidationError as error:  # it shows names and types, no values
        what, _, at = str(error).partition(" - at `$")
        what, at = what.replace(" | null", ""), at.strip(".`")  # TOML has no null
        known = ", ".join(f.encode_name for f in msgspec.structs.fields(shape))
        hint = " In TOML each of an array's tables begins with [[name]]." if what.startswith("Expected `array`") else ""
        raise InvalidOption(f"{place}: {f'{at}: ' if at else ''}{what}.{hint} Known names: {known}.") from None


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


def _check_positive(values: Mapping[str, int | None], place: str) -> None:
    for name, value in values.items():
        if value is not None and value < 1:
            raise InvalidOption(f"{place}: {name} is {value}; give 1 at least.")


def _check_unique(names: Iterable[str], what: str, place: str) -> None:
    known: set[str] = set()
    for name in names:
        if name in known:
            raise InvalidOption(f"{place}: two {what} '{name}'. Give each its own.")
        known.add(name)
