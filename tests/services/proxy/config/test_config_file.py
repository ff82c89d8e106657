"""The configuration of the proxy: valid files, the error of each invalid file, and no secret in an error."""

from __future__ import annotations

import dataclasses
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from icedb.errors import InvalidOption
from icedb.services.http.server_settings import FileStamp
from icedb.services.proxy.config.config_file import load_config
from icedb.services.proxy.config.settings import IcebergSettings, ServerSettings
from icedb.services.proxy.config.tenant_documents import DocumentSource, parse_tenant
from icedb.services.proxy.config.tenants import AccessKey, Scope, TenantLimits

SECRET = "sEcReT/that-must+not-be-shown"
ENVIRON = {"ACME_SECRET": SECRET, "TOKEN": SECRET, "SHORT": "sEcReT", "SPACED": f"{SECRET} {SECRET}"}

ONE_KEY = f'keys = [{{ id = "ACMEKEY1", secret = "{SECRET}" }}]'
TENANT = f'[[tenant]]\nname = "acme"\n{ONE_KEY}\n'
BUCKET = f'{TENANT}[[tenant.bucket]]\nname = "events"\ntable = "s3://lake/events"\n'
CONTROL_PLANE = '[control_plane]\nurl = "https://keys.example.com/v1"\ntables = ["s3://lake/"]\n'
EXAMPLE = """
[server]
listen = "127.0.0.1:8080"

[[tenant]]
name = "acme"
keys = [{ id = "ACMEKEY1", secret_env = "ACME_SECRET" }]

[[tenant.bucket]]
name = "events"
table = "s3://lake/events"
partitions = ["u=42"]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "proxy.toml"
    path.write_text(text)
    return path


def scope_of(folder: Path, lines: str) -> Scope:
    return load_config(written(folder, BUCKET + lines)).tenants[0].bucket("events").scope


def test_the_example_is_read(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, EXAMPLE), ENVIRON)
    (tenant,) = config.tenants
    assert (tenant.name, tenant.keys) == ("acme", (AccessKey("ACMEKEY1", SECRET),))
    assert tenant.bucket("events").table == "s3://lake/events"
    assert tenant.bucket("events").scope == Scope(partitions=("u=42",))
    assert tenant.limits == TenantLimits()
    assert (config.server, config.control_plane, config.storage_options) == (ServerSettings(), None, {})


def test_all_of_the_server_can_be_set(tmp_path: Path) -> None:
    text = """
    [server]
    listen = "[0::1]:0"
    admin_listen = "localhost:9100"
    domains = ["S3.example.com", "localhost"]
    region = "eu-central-1"
    redirect = true
    redirect_expires = "1m"
    refresh = "0s"
    hold = "1h"
    connections = 7
    header_timeout = "1.5s"
    send_timeout = "2s"
    stop_timeout = "0s"
    tables_open = 3
    """
    assert load_config(written(tmp_path, text + TENANT)).server == ServerSettings(
        host="::1",
        port=0,
        admin_host="localhost",
        admin_port=9100,
        domains=("s3.example.com", "localhost"),
        region="eu-central-1",
        redirect=True,
        redirect_expires_ms=60_000,
        refresh_ms=0,
        hold_ms=3_600_000,
        connections=7,
        header_timeout_ms=1_500,
        send_timeout_ms=2_000,
        stop_timeout_ms=0,
        tables_open=3,
    )


def test_secrets_come_from_the_file_the_environment_or_another_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}-3\n")
    keys = """keys = [{ id = "INLINE", secret = "inline-1" }, { id = "ENV", secret_env = "ACME_SECRET" },
                      { id = "FILE", secret_file = "secret" }]"""
    path = written(tmp_path, f'[[tenant]]\nname = "acme"\nrequests = 5\nbytes_per_second = 1000\n{keys}')
    config = load_config(path, ENVIRON)
    assert [k.secret for k in config.tenants[0].keys] == ["inline-1", SECRET, f"{SECRET}-3"]
    assert config.tenants[0].limits == TenantLimits(5, 1_000)
    assert set(config.files) == {path, tmp_path / "secret"}
    assert config.files[path] == FileStamp.of(path) is not None


def test_scopes_are_partitions_and_times(tmp_path: Path) -> None:
    day = int(datetime(2026, 11, 21, tzinfo=UTC).timestamp() * 1000)
    assert scope_of(tmp_path, 'partitions = ["u=42/", "city=New York/u=7"]').partitions == (
        "u=42",
        "city=New%20York/u=7",
    )
    pinned = Scope(as_of_ms=day, time_travel=False)
    assert scope_of(tmp_path, 'as_of = "2026-11-21T00:00:00Z"') == pinned
    assert scope_of(tmp_path, "as_of = 2026-11-21T01:00:00+01:00") == pinned
    assert scope_of(tmp_path, f"as_of = {day}\ntime_travel = false") == pinned
    assert scope_of(tmp_path, "earliest = 2026-11-21T00:00:00Z") == Scope(earliest_ms=day)
    assert scope_of(tmp_path, "time_travel = false") == Scope(time_travel=False)


def test_relative_table_addresses_start_at_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "what the environment says of a store is no matter of an address")
    for address, table in (
        ("s3a://lake/events/", "s3://lake/events"),
        ("tables/events", f"{tmp_path.resolve()}/tables/events"),
        ("/lake/../lake", "/lake"),
    ):
        config = load_config(written(tmp_path, BUCKET.replace("s3://lake/events", address)))
        assert config.tenants[0].bucket("events").table == table


def test_options_of_the_store_come_from_the_file_and_the_environment(tmp_path: Path) -> None:
    text = f"""
    [storage_options]
    AWS_ENDPOINT_URL = "http://127.0.0.1:9000"
    AWS_ACCESS_KEY_ID = "AKID"
    [storage_options_env]
    AWS_SECRET_ACCESS_KEY = "ACME_SECRET"
    {TENANT}"""
    config = load_config(written(tmp_path, text), ENVIRON)
    assert config.storage_options == {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9000",
        "AWS_ACCESS_KEY_ID": "AKID",
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }


def test_a_control_plane_alone_is_enough(tmp_path: Path) -> None:
    more = 'token_env = "TOKEN"\ntimeout = "1s"\ncache = "0s"\nunknown_cache = "1ms"\nentries = 2'
    settings = load_config(written(tmp_path, CONTROL_PLANE + more), ENVIRON).control_plane
    assert settings is not None
    assert (settings.url, settings.tables, settings.token) == ("https://keys.example.com/v1", ("s3://lake",), SECRET)
    assert (settings.timeout_ms, settings.cache_ms, settings.unknown_cache_ms, settings.entries) == (1_000, 0, 1, 2)


def test_no_secret_is_in_a_repr(tmp_path: Path) -> None:
    text = f"{EXAMPLE}\n{CONTROL_PLANE}token_env = 'TOKEN'\n[storage_options]\nAWS_SESSION_TOKEN = '{SECRET}'"
    config = load_config(written(tmp_path, text), ENVIRON)
    assert config.control_plane is not None
    assert config.control_plane.token == SECRET
    assert SECRET not in repr(config)
    assert SECRET not in repr([getattr(config, f.name) for f in dataclasses.fields(config) if f.repr])


def test_the_iceberg_catalog_is_off_by_default_and_can_be_set(tmp_path: Path) -> None:
    assert load_config(written(tmp_path, TENANT)).iceberg is None
    assert load_config(written(tmp_path, f"{TENANT}[iceberg]\nsnapshots = 3")).iceberg is None
    assert load_config(written(tmp_path, f"{TENANT}[iceberg]\nenabled = true")).iceberg == IcebergSettings()
    text = """
    [iceberg]
    enabled = true
    endpoint = "https://s3.example.com/"
    namespace = "lake"
    token_expires = "5m"
    snapshots = 0
    """
    settings = IcebergSettings("https://s3.example.com", "lake", 300_000, 0)
    assert load_config(written(tmp_path, TENANT + text)).iceberg == settings
    excluding = load_config(written(tmp_path, f'{BUCKET}exclude_columns = ["a", "b"]'))
    assert excluding.tenants[0].bucket("events").exclude_columns == ("a", "b")


def iceberg(lines: str) -> str:
    return f"{TENANT}[iceberg]\nenabled = true\n{lines}"


def key(text: str) -> str:
    return f'[[tenant]]\nname = "acme"\nkeys = [{{ {text} }}]'


def bucket(name: str = "events", lines: str = "", table: str = "s3://lake/events") -> str:
    return f'{TENANT}[[tenant.bucket]]\nname = "{name}"\ntable = "{table}"\n{lines}'


def server(lines: str) -> str:
    return f"{TENANT}[server]\n{lines}"


def control_plane(**changes: str) -> str:
    values = {"url": '"https://keys.example.com"', "tables": '["s3://lake/"]', **changes}
    return "[control_plane]\n" + "\n".join(f"{n} = {v}" for n, v in values.items() if v)


#: Invalid files, with texts of their errors. All errors name the file.
WRONG = {
    "no file": (None, ["cannot be read", "Make it readable"]),
    "no TOML": ("[server]\nlisten = me", ["not valid TOML", "line 2"]),
    "huge number": ("a = 1" + "0" * 5000, ["not valid TOML"]),
    "nobody": ("", ["no tenant is configured", "[control_plane]"]),
    "unknown table": (f"{TENANT}[servre]", ["unknown field `servre`", "Known names: server,"]),
    "one tenant's brackets": (TENANT.replace("[[tenant]]", "[tenant]"), ["tenant: Expected `array`", "[[name]]"]),
    "unknown of the server": (server("port = 8080"), ["[server]", "unknown field `port`", "listen"]),
    "type of the server": (server("region = 1"), ["[server]", "region: Expected `str`, got `int`"]),
    "listen without a port": (server('listen = "127.0.0.1"'), ["[server]: listen", "Write 127.0.0.1:8080"]),
    "listen without a host": (server('listen = ":8080"'), ["[server]: listen", "0.0.0.0:8080 for all interfaces"]),
    "listen beyond the ports": (server('listen = "a:65536"'), ["[server]: listen", "not an address"]),
    "listen on no IPv6": (server('listen = "[1:2]:80"'), ["[server]: listen", "[::1]:8080"]),
    "admin listen": (server('admin_listen = "9100"'), ["[server]: admin_listen", "not an address"]),
    "listen twice": (server('admin_listen = "127.0.0.1:8080"'), ["[server]", "are the same", "another port"]),
    "domain with a port": (server('domains = ["s3.example.com:80"]'), ["[server]", "invalid domain", "without scheme"]),
    "domain with a dot": (server('domains = [".example.com"]'), ["[server]", "invalid domain"]),
    "region": (server('region = "US East"'), ["[server]", "us-east-1"]),
    "duration without a unit": (server("refresh = 5"), ["[server]: refresh", "'5' is no duration", "write 90s"]),
    "duration as a word": (server('hold = "long"'), ["[server]: hold", "no duration"]),
    "duration too long": (server('hold = "8d"'), ["[server]: hold", "0ms to 7d"]),
    "duration too short": (server('redirect_expires = "1ms"'), ["[server]: redirect_expires", "1000ms to 7d"]),
    "no time for a header": (server('header_timeout = "0s"'), ["[server]: header_timeout", "1ms to 7d"]),
    "no connections": (server("connections = 0"), ["[server]", "connections is 0", "at least 1"]),
    "no tables": (server("tables_open = -1"), ["[server]", "tables_open is -1"]),
    "half of TLS": (server('tls_key = "proxy.toml"'), ["[server]", "only one of tls_certificate and tls_key"]),
    "TLS of nothing": (
        server('tls_certificate = "proxy.toml"\ntls_key = "proxy.toml"'),
        ["[server]", "cannot be loaded", "PEM files"],
    ),
    "no TLS key": (server('tls_key = "nothing.pem"'), ["[server]", "tls_key names does not exist"]),
    "no name": (f"[[tenant]]\n{ONE_KEY}", ["tenant 1", "missing required field `name`"]),
    "no keys": ('[[tenant]]\nname = "acme"', ["tenant 'acme'", "missing required field `keys`"]),
    "empty keys": ('[[tenant]]\nname = "acme"\nkeys = []', ["tenant 'acme'", "has no keys", "Add one"]),
    "name with a space": (TENANT.replace('"acme"', '"a b"'), ["tenant 1", "letters, digits"]),
    "empty name": (TENANT.replace('"acme"', '""'), ["tenant 1", "1 to 100"]),
    "unknown of a tenant": (f"{TENANT}request = 1", ["tenant 'acme'", "unknown field `request`", "requests"]),
    "buckets of a service": (f"{TENANT}buckets = []", ["tenant 'acme'", "unknown field `buckets`", "bucket"]),
    "no requests": (f"{TENANT}requests = 0", ["tenant 'acme'", "requests is 0"]),
    "no bytes": (f"{TENANT}bytes_per_second = 0", ["tenant 'acme'", "bytes_per_second is 0"]),
    "true requests": (f"{TENANT}requests = true", ["tenant 'acme'", "requests: Expected `int`, got `bool`"]),
    "two of a name": (TENANT + TENANT.replace("KEY1", "KEY2"), ["two tenants", "'acme'", "Make each unique"]),
    "a key of two": (TENANT + TENANT.replace('"acme"', '"b"'), ["two access keys", "'ACMEKEY1'"]),
    "a key twice": (
        f'[[tenant]]\nname = "acme"\nkeys = [{{id="KEY", secret="{SECRET}"}}, {{id="KEY", secret="{SECRET}2"}}]',
        ["tenant 'acme'", "two access keys", "'KEY'"],
    ),
    "id and secret in each other's place": (
        key(f'id = "{SECRET}", secret = "ACMEKEY1"'),
        ["tenant 'acme', key 1", "3 to 128 letters"],
    ),
    "short id": (key(f'id = "AB", secret = "{SECRET}"'), ["tenant 'acme', key 1", "3 to 128"]),
    "no secret": (key('id = "ACMEKEY1"'), ["key 1", "no secret", "one of secret, secret_env, secret_file"]),
    "two secrets": (key(f'id = "ACMEKEY1", secret = "{SECRET}", secret_env = "E"'), ["secret and secret_env"]),
    "short secret": (
        key('id = "ACMEKEY1", secret_env = "SHORT"'),
        ["'ACMEKEY1'", "8 to 256", "a short secret by trial"],
    ),
    "empty secret": (key('id = "ACMEKEY1", secret = ""'), ["'ACMEKEY1'", "8 to 256"]),
    "secret with a space": (key('id = "ACMEKEY1", secret_env = "SPACED"'), ["'ACMEKEY1'", "without spaces"]),
    "secret as a variable": (key(f'id = "ACMEKEY1", secret_env = "{SECRET}"'), ["secret_env names is not set"]),
    "secret as a file": (key(f'id = "ACMEKEY1", secret_file = "{SECRET}"'), ["secret_file names cannot be read"]),
    "zero in a path": (key('id = "ACMEKEY1", secret_file = "a\\u0000"'), ["cannot be read", "invalid path"]),
    "folder as a secret": (key('id = "ACMEKEY1", secret_file = "."'), ["cannot be read (Is a directory)"]),
    "unknown of a key": (key(f'id = "K1234", secret = "{SECRET}", x = 1'), ["key 1", "unknown field `x`"]),
    "bucket without a table": (f'{TENANT}[[tenant.bucket]]\nname = "events"', ["bucket 'events'", "field `table`"]),
    "bucket without a name": (f'{TENANT}[[tenant.bucket]]\ntable = "a"', ["bucket 1", "field `name`"]),
    "unknown of a bucket": (bucket(lines="asof = 1"), ["tenant 'acme', bucket 'events'", "`asof`", "as_of"]),
    "bucket in capitals": (bucket("Events"), ["tenant 'acme', bucket 'Events'", "3 to 63 of a-z"]),
    "short bucket": (bucket("ev"), ["bucket 'ev'", "3 to 63"]),
    "long bucket": (bucket("e" * 64), ["3 to 63"]),
    "bucket that ends in a dash": (bucket("events-"), ["bucket 'events-'", "at either end"]),
    "bucket with two dots": (bucket("a..b"), ["bucket 'a..b'", "no '..'"]),
    "bucket like an address": (bucket("10.0.0.1"), ["bucket '10.0.0.1'", "no IP address"]),
    "bucket with a time": (bucket("events--20261121t000000z"), ["another bucket as of a time"]),
    "bucket with milliseconds": (bucket("events--1795219200000"), ["another bucket as of a time"]),
    "bucket with an @": (bucket("events@2026"), ["bucket 'events@2026'", "3 to 63"]),
    "bucket twice": (
        BUCKET + '[[tenant.bucket]]\nname = "events"\ntable = "/b"',
        ["tenant 'acme'", "two buckets have the name 'events'"],
    ),
    "table of no scheme": (bucket(table="ftp://lake/x"), ["bucket 'events'", "not a table's address", "scheme 'ftp'"]),
    "table with a password": (bucket(table=f"s3://me:{SECRET}@lake/x"), ["not a table's address", "no credentials"]),
    "table with two dots": (bucket(table="s3://lake/../x"), ["not a table's address", "'..' segment"]),
    "table of nobody": (bucket(table="~nobody-of-that-name/x"), ["bucket 'events'", "not a table's address"]),
    "empty table": (bucket(table=""), ["bucket 'events'", "not a table's address"]),
    "no partitions": (bucket(lines="partitions = []"), ["partitions is empty", "remove partitions"]),
    "empty partition": (
        bucket(lines='partitions = [""]'),
        ["bucket 'events'", "'' is not a partition", "column=value"],
    ),
    "partition with a slash": (bucket(lines='partitions = ["/u=1"]'), ["'/u=1' is not a partition"]),
    "partition without a value": (bucket(lines='partitions = ["u"]'), ["'u' is not a partition", "column=value"]),
    "partition without a name": (bucket(lines='partitions = ["=1"]'), ["'=1' is not a partition"]),
    "partition with a column twice": (bucket(lines='partitions = ["u=1/u=2"]'), ["each column once"]),
    "partition that leaves": (bucket(lines='partitions = ["u=1/../u=2"]'), ["is not a partition"]),
    "partition with an empty step": (bucket(lines='partitions = ["u=1//d=2"]'), ["is not a partition"]),
    "time without a zone": (bucket(lines="as_of = 2026-11-21T00:00:00"), ["bucket 'events'", "as_of", "its zone"]),
    "time that is a day": (bucket(lines="earliest = 2026-11-21"), ["bucket 'events'", "earliest", "its zone"]),
    "time in seconds": (bucket(lines="as_of = 1795219200"), ["as_of", "unix milliseconds"]),
    "time as a truth": (bucket(lines="as_of = true"), ["as_of is 'True'"]),
    "as of a time to come": (bucket(lines="as_of = 9000000000000"), ["as_of is in the future", "Write an earlier"]),
    "earliest to come": (bucket(lines="earliest = 9000000000000"), ["earliest is in the future"]),
    "time after the calendar": (bucket(lines="as_of = 9999999999999999"), ["as_of is in the future"]),
    "time off the calendar": (
        bucket(lines='as_of = "9999-12-31T23:59:59-10:00"'),
        ["as_of is out of the range of times"],
    ),
    "one time and all": (
        bucket(lines="as_of = 1795219200000\ntime_travel = true"),
        ["only one time", "Remove time_travel and earliest"],
    ),
    "one time and an earliest": (bucket(lines="as_of = 1795219200000\nearliest = 1795219200000"), ["only one time"]),
    "no time and an earliest": (
        bucket(lines="time_travel = false\nearliest = 1795219200000"),
        ["earliest has no effect without time_travel"],
    ),
    "unknown storage option": (f'{TENANT}[storage_options]\nAWS_X = "1"', ["[storage_options]", "['AWS_X']", "Known"]),
    "storage option as a number": (f"{TENANT}[storage_options]\nAWS_REGION = 1", ["storage_options", "`str`"]),
    "storage option twice": (
        f'{TENANT}[storage_options]\nAWS_REGION="a"\n[storage_options_env]\naws_region="TOKEN"',
        ["aws_region", "Set each option once"],
    ),
    "storage option of no variable": (
        f'{TENANT}[storage_options_env]\nAWS_REGION = "{SECRET}"',
        ["[storage_options_env] AWS_REGION names is not set"],
    ),
    "half a pair of the store": (
        f'{TENANT}[storage_options]\nAWS_SECRET_ACCESS_KEY = "{SECRET}"',
        ["[storage_options]", "or neither of them"],
    ),
    "endpoint with a password": (
        f'{TENANT}[storage_options]\nAWS_ENDPOINT_URL = "http://me:{SECRET}@127.0.0.1"',
        ["[storage_options]", "contain no credentials"],
    ),
    "fsync": (f'{TENANT}[storage_options]\nfsync = "perhaps"', ["[storage_options]", "'true' or 'false'"]),
    "control plane of a file": (control_plane(url='"file:///etc"'), ["[control_plane]", "http:// or https://"]),
    "control plane without a host": (control_plane(url='"http:///x"'), ["[control_plane]", "http:// or https://"]),
    "control plane with a port": (control_plane(url='"http://a:x/"'), ["[control_plane]", "http:// or https://"]),
    "control plane with a user": (control_plane(url=f'"https://me:{SECRET}@a/"'), ["[control_plane]", "token_env"]),
    "control plane with a query": (
        control_plane(url=f'"https://a/?key={SECRET}"'),
        ["without user, query or fragment"],
    ),
    "control plane without tables": (control_plane(tables=""), ["[control_plane]", "field `tables`"]),
    "control plane with no tables": (control_plane(tables="[]"), ["[control_plane]", "has no location"]),
    "control plane with all folders": (control_plane(tables='["/"]'), ["[control_plane]", "has no location"]),
    "control plane's tables": (control_plane(tables='["ftp://a"]'), ["one of tables is not a table's address"]),
    "control plane's token": (control_plane(token_env=f'"{SECRET}"'), ["token_env names is not set", "Set it"]),
    "token with a space": (control_plane(token_env='"SPACED"'), ["[control_plane]", "ASCII characters without spaces"]),
    "no control plane's time": (control_plane(timeout='"0s"'), ["[control_plane]: timeout", "1ms to 7d"]),
    "no entries": (control_plane(entries="0"), ["[control_plane]", "entries is 0"]),
    "unknown of the catalog": (iceberg("port = 1"), ["[iceberg]", "unknown field `port`", "token_expires"]),
    "catalog's type": (f'{TENANT}[iceberg]\nenabled = "yes"', ["[iceberg]", "enabled: Expected `bool`"]),
    "catalog's endpoint": (iceberg('endpoint = "s3.example.com"'), ["[iceberg]: endpoint", "https://s3.example.com"]),
    "catalog's path": (iceberg('endpoint = "https://a/b"'), ["[iceberg]: endpoint", "without user, path"]),
    "catalog's user": (iceberg(f'endpoint = "https://me:{SECRET}@a"'), ["[iceberg]: endpoint"]),
    "catalog's namespace": (iceberg('namespace = "a.b"'), ["[iceberg]: namespace", "lower-case"]),
    "reserved namespace": (iceberg('namespace = "main"'), ["[iceberg]: namespace", "engines reserve"]),
    "catalog's tokens": (iceberg('token_expires = "0s"'), ["[iceberg]: token_expires", "1000ms to 7d"]),
    "catalog's snapshots": (iceberg("snapshots = 10001"), ["[iceberg]: snapshots is 10001", "0 to 10,000"]),
    "no snapshots": (iceberg("snapshots = -1"), ["[iceberg]: snapshots is -1"]),
    "catalog's bucket": (bucket("iceberg") + "\n[iceberg]\nenabled = true", ["[iceberg]", "a bucket named", "Rename"]),
    "excluded twice": (bucket(lines='exclude_columns = ["a", "a"]'), ["exclude_columns name 'a'"]),
    "excluded text": (bucket(lines='exclude_columns = "a"'), ["exclude_columns: Expected `array`"]),
    "unknown of a control plane": (control_plane(token='"x"'), ["[control_plane]", "`token`", "token_env"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_error_has_its_place_and_no_secret(case: str, tmp_path: Path) -> None:
    text, words = WRONG[case]
    path = tmp_path / "proxy.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidOption) as raised:
        load_config(path, ENVIRON)
    message = str(raised.value)
    assert message.startswith(f"{path}: ")
    assert message.endswith(".")
    assert [w for w in words if w not in message] == [], message
    displayed = "".join(traceback.format_exception(raised.value))
    assert "sEcReT" not in displayed


def test_the_parts_of_the_invalid_files_are_valid(tmp_path: Path) -> None:
    """Otherwise an error of the table above could have another cause."""
    for text in (TENANT, bucket(), server(""), control_plane(), key(f'id = "ACMEKEY1", secret = "{SECRET}"')):
        load_config(written(tmp_path, text), {})


def test_a_file_that_is_not_text_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "proxy.toml"
    path.write_bytes(b"\xff")
    with pytest.raises(InvalidOption, match="not UTF-8"):
        load_config(path)
    (tmp_path / "secret").write_bytes(b"\xff" * 20)
    path.write_text(key('id = "ACMEKEY1", secret_file = "secret"'))
    with pytest.raises(InvalidOption, match="key 1: the file that secret_file names is not UTF-8"):
        load_config(path)


def document(**changes: Any) -> dict[str, Any]:
    return {
        "name": "acme",
        "keys": [{"id": "ACMEKEY1", "secret": SECRET}],
        "buckets": [{"name": "events", "table": "s3://lake/events"}],
        **changes,
    }


SERVICE = DocumentSource("control plane", tables=("s3://lake", "/srv/lake"))


def test_a_control_plane_document_has_the_same_settings() -> None:
    buckets = [{"name": "events", "table": "s3://lake/a/b", "partitions": ["u=1"], "earliest": 1795219200000}]
    tenant = parse_tenant(document(requests=3, buckets=buckets), SERVICE)
    assert (tenant.name, tenant.keys, tenant.limits) == (
        "acme",
        (AccessKey("ACMEKEY1", SECRET),),
        TenantLimits(requests=3),
    )
    assert tenant.bucket("events").scope == Scope(("u=1",), earliest_ms=1795219200000)
    assert parse_tenant(document(buckets=[]), SERVICE).buckets == {}


@pytest.mark.parametrize(
    ("key", "field"),
    [
        ({"id": "ACMEKEY1", "secret_env": "HOME"}, "secret_env"),
        ({"id": "ACMEKEY1", "secret": SECRET, "secret_file": "/etc/passwd"}, "secret_file"),
    ],
)
def test_a_control_plane_cannot_refer_to_local_secrets(key: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidOption, match=f"key 1: .*(unknown field `{field}`|missing required field `secret`)"):
        parse_tenant(document(keys=[key]), SERVICE)


@pytest.mark.parametrize(
    "table",
    [
        "s3://lake2/events",
        "s3://lak",
        "s3://other/lake",
        "/srv/lake2",
        "/srv/lake/../x",
        "/",
        "x",
        "~",
        "memory://lake",
    ],
)
def test_a_control_plane_cannot_open_tables_outside_its_locations(table: str) -> None:
    with pytest.raises(InvalidOption, match="not below one of tables"):
        parse_tenant(document(buckets=[{"name": "events", "table": table}]), SERVICE)


def test_a_link_does_not_lead_out_of_the_tables(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "inside").mkdir()
    (tmp_path / "lake" / "outside").symlink_to(tmp_path)
    source = DocumentSource("control plane", tables=(str((tmp_path / "lake").resolve()),))

    def opened(name: str) -> str:
        buckets = [{"name": "events", "table": f"{tmp_path}/lake/{name}"}]
        return parse_tenant(document(buckets=buckets), source).bucket("events").table

    assert opened("inside").endswith("/lake/inside")
    with pytest.raises(InvalidOption, match="not below"):
        opened("outside/secrets")


@pytest.mark.parametrize("wrong", [None, [], "acme", 1, {}, {"name": 1}, document(bucket=[]), document(keys={})])
def test_an_invalid_tenant_document_is_rejected(wrong: object) -> None:
    with pytest.raises(InvalidOption, match=r"^control plane: tenant"):
        parse_tenant(wrong, SERVICE)
