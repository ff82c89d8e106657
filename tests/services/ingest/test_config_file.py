"""Mistakes in `ingest.toml` are reported before the service starts, with their place and remedy."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from icedb import Table
from icedb.errors import InvalidOption
from icedb.services.ingest.config.config_check import check_config
from icedb.services.ingest.config.config_file import load_config
from icedb.services.ingest.config.settings import IngestLimits
from icedb.services.ingest.config.tenant_directory import TenantsFile
from icedb.services.ingest.config.tenants import Tenants
from icedb.services.ingest.events.segment import SEGMENT_SCHEMA
from tests.support.ingest.ingest_process import KEY, OTHER_KEY, SECRET
from tests.support.proxy.proxy_process import ROOT, proxy_command

SERVER = '[server]\nlisten = "127.0.0.1:0"\n'
TABLE = '[[table]]\nname = "events"\nuri = "lake/events"\n'
TENANT = '[[tenant]]\nname = "acme"\ntables = ["events"]\n'
ACME = f'{TENANT}[[tenant.keys]]\nsecret = "{KEY}"\n'
GLOBEX = f'[[tenant]]\nname = "globex"\ntables = ["events"]\n[[tenant.keys]]\nsecret = "{OTHER_KEY}"\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "ingest.toml"
    path.write_text(text)
    return path


def test_settings_have_defaults(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, TABLE + ACME))
    assert (config.server.host, config.server.port, config.server.header_timeout_ms) == ("127.0.0.1", 8080, 30_000)
    table = config.tables["events"]
    assert (table.uri, table.nested, table.id_column) == (str(tmp_path / "lake/events"), "text", None)
    assert config.tenants[0].keys == (KEY,)
    assert KEY not in repr(config)


def test_all_settings_are_read(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{OTHER_KEY}\n")
    text = f"""
[server]
listen = "0.0.0.0:80"
admin_listen = "[::1]:81"
connections = 10
receive_timeout = "5s"
send_timeout = "6s"
stop_timeout = "7s"
commit_timeout = "8s"
body_bytes_max = 1000
held_bytes_max = 2000
events_max = 30
[storage_options]
AWS_REGION = "eu-1"
AWS_ACCESS_KEY_ID = "id"
[storage_options_env]
AWS_SECRET_ACCESS_KEY = "STORE_SECRET"
[[table]]
name = "events"
uri = "s3://lake/events"
create = true
partition_by = ["d"]
sort_by = ["n"]
schema = {{ d = "VARCHAR", n = "BIGINT" }}
required = ["d"]
schema_policy = "declared"
id_column = "id"
id_window = "2h"
on_conflict = "quarantine"
nested = "columns"
tenant_column = "tenant"
received_column = "at"
delay_max = "50ms"
rows_max = 7
bytes_max = 8
pending_bytes_max = 9
partitions_max = 10
columns_max = 40
[[table]]
name = "calls"
uri = "s3://lake/calls"
create = true
[[tenant]]
name = "acme"
tables = ["events", "calls"]
segment = "calls"
events_per_second = 5
bytes_per_second = 6
new_columns = false
[[tenant.keys]]
secret_env = "ACME_KEY"
[[tenant.keys]]
secret_file = "key"
[[tenant.webhooks]]
secret = "{SECRET}"
"""
    config = load_config(written(tmp_path, text), {"ACME_KEY": KEY, "STORE_SECRET": "hidden-secret"})
    server, table, tenant = config.server, config.tables["events"], config.tenants[0]
    assert (server.host, server.port, server.admin_host, server.admin_port) == ("0.0.0.0", 80, "::1", 81)
    assert (server.header_timeout_ms, server.send_timeout_ms, server.stop_timeout_ms) == (5_000, 6_000, 7_000)
    assert (server.commit_timeout_ms, server.body_bytes_max, server.held_bytes_max) == (8_000, 1_000, 2_000)
    assert (server.connections, server.events_max) == (10, 30)
    assert config.storage_options["AWS_SECRET_ACCESS_KEY"] == "hidden-secret"
    assert (table.partition_by, table.sort_by, table.schema) == (("d",), ("n",), {"d": "VARCHAR", "n": "BIGINT"})
    assert (table.create, table.required, table.schema_policy) == (True, ("d",), "declared")
    assert (table.id_column, table.id_window_ms, table.delay_max_ms) == ("id", 7_200_000, 50)
    assert (table.on_conflict, table.nested, table.rows_max) == ("quarantine", "columns", 7)
    assert (table.bytes_max, table.pending_bytes_max, table.partitions_max, table.columns_max) == (8, 9, 10, 40)
    assert (table.tenant_column, table.received_column) == ("tenant", "at")
    assert (config.tables["calls"].id_column, config.tables["calls"].schema) == ("message_id", SEGMENT_SCHEMA)
    assert (tenant.keys, tenant.webhook_secrets, tenant.segment) == ((KEY, OTHER_KEY), (SECRET,), "calls")
    assert tenant.limits == IngestLimits(5, 6, new_columns=False)
    for secret in (KEY, OTHER_KEY, SECRET, "hidden-secret"):
        assert secret not in repr(config)


MISTAKES = {
    "no TOML": ("= 1", "not valid TOML"),
    "no table": (ACME, "Add a [[table]]"),
    "no tenant": (TABLE, "Add a [[tenant]]"),
    "unknown": ("[sever]\n" + TABLE + ACME, "sever"),
    "unknown setting": ("[server]\nport = 1\n" + TABLE + ACME, "Known names: listen"),
    "no address": ('[server]\nlisten = "here"\n' + TABLE + ACME, "Write 127.0.0.1:8080"),
    "no duration": ('[server]\ncommit_timeout = "soon"\n' + TABLE + ACME, "commit_timeout: 'soon' is no duration"),
    "below 1": ("[server]\nevents_max = 0\n" + TABLE + ACME, "events_max is 0"),
    "holds less than a body": ("[server]\nheld_bytes_max = 5\n" + TABLE + ACME, "several times as much"),
    "half of TLS": ('[server]\ntls_key = "ingest.toml"\n' + TABLE + ACME, "only one of tls_certificate and tls_key"),
    "table's name": ('[[table]]\nname = "../x"\nuri = "x"\n' + ACME, "part of a URL"),
    "no uri": ('[[table]]\nname = "events"\nuri = "ftp://x/y"\n' + ACME, "uri is not a table's address"),
    "two of a name": (TABLE + TABLE.replace("lake/events", "other") + ACME, "two tables have the name 'events'"),
    "one table twice": (TABLE + TABLE.replace('"events"', '"more"') + ACME, "two tables have the uri"),
    "made of what is there": (TABLE + 'sort_by = ["n"]\n' + ACME, "Set create = true"),
    "columns are one": (TABLE + 'id_column = "a"\ntenant_column = "A"\n' + ACME, "are one column"),
    "no column": (TABLE + 'tenant_column = "_partition"\n' + ACME, "not a valid column name"),
    "kind of nesting": (TABLE + 'nested = "deep"\n' + ACME, "nested"),
    "pending": (TABLE + "pending_bytes_max = 5\n" + ACME, "several times as much"),
    "no keys": (TABLE + TENANT, "Add keys = [{ secret_file"),
    "short key": (TABLE + TENANT + '[[tenant.keys]]\nsecret = "short-key"\n', "16 to 256 ASCII characters"),
    "key with a colon": (TABLE + TENANT + '[[tenant.keys]]\nsecret = "short-key:01234567"\n', "colons"),
    "two secrets": (TABLE + TENANT + '[[tenant.keys]]\nsecret = "short-key"\nsecret_env = "X"\n', "Set one of"),
    "no variable": (TABLE + TENANT + '[[tenant.keys]]\nsecret_env = "short-key"\n', "is not set"),
    "no file": (TABLE + TENANT + '[[tenant.keys]]\nsecret_file = "short-key"\n', "cannot be read"),
    "webhook without a table": (TABLE + ACME + f'[[tenant.webhooks]]\nsecret = "{SECRET}"\n', "no table for them"),
    "short webhook": (
        TABLE + TENANT + 'segment = "events"\n[[tenant.webhooks]]\nsecret = "short-key"\n',
        "a short secret by trial",
    ),
    "no such table": (TABLE + ACME.replace('["events"]', '["event"]'), "there is no table 'event'. Tables: events"),
    "writes nowhere": (TABLE + ACME.replace('["events"]', "[]"), "tables is empty"),
    "segment elsewhere": (
        TABLE + ACME.replace("[[tenant.keys]]", 'segment = "calls"\n[[tenant.keys]]'),
        "not in tables",
    ),
    "nobody writes": (TABLE + '[[table]]\nname = "more"\nuri = "more"\n' + ACME, "table 'more': no tenant may write"),
    "one key of two": (TABLE + ACME + GLOBEX.replace(OTHER_KEY, KEY), "'acme' and tenant 'globex' have the same key"),
    "one key twice": (TABLE + ACME + f'[[tenant.keys]]\nsecret = "{KEY}"\n', "the same key twice"),
    "shared ids": (TABLE + 'id_column = "id"\n' + ACME + GLOBEX, "use up the ids of another"),
    "two tenants of a name": (TABLE + ACME + GLOBEX.replace("globex", "acme", 1), "tenants have the name 'acme'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reported_with_its_remedy(tmp_path: Path, name: str) -> None:
    text, message = MISTAKES[name]
    with pytest.raises(InvalidOption, match=re.escape(message)) as error:
        load_config(written(tmp_path, text), {})
    assert str(error.value).startswith(str(tmp_path))
    for secret in (KEY, OTHER_KEY, SECRET, "short-key"):
        assert secret not in str(error.value)


def test_several_tenants_share_ids_when_each_has_its_own(tmp_path: Path) -> None:
    text = TABLE + 'id_column = "id"\ntenant_column = "tenant"\n' + ACME + GLOBEX
    assert load_config(written(tmp_path, text)).tables["events"].tenant_column == "tenant"


def test_check_opens_each_table(tmp_path: Path) -> None:
    Table.create(tmp_path / "lake/events").insert([{"n": 1}])
    Table.create(tmp_path / "strict", schema={"n": "BIGINT"}, schema_policy="declared")
    more = (
        '[[table]]\nname = "new"\nuri = "new"\ncreate = true\n'
        '[[table]]\nname = "none"\nuri = "none"\n'
        '[[table]]\nname = "strict"\nuri = "strict"\nreceived_column = "at"\n'
    )
    path = written(tmp_path, TABLE + more + ACME.replace('["events"]', '["events", "new", "none", "strict"]'))
    there, new, none, strict = check_config(path)
    assert (there.table, there.state, there.rows, there.tenants, there.error) == ("events", "there", 1, ("acme",), None)
    assert (new.state, new.error) == ("to be made", None)
    assert not (tmp_path / "new").exists()
    assert "create = true" in (none.error or "")
    assert "has no at" in (strict.error or "")


@pytest.mark.process
def test_the_command_checks_and_refuses(tmp_path: Path) -> None:
    path = written(tmp_path, SERVER + TABLE + ACME)
    checked = subprocess.run(
        proxy_command(path, "--check", "--json", verb="ingest"), cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert checked.returncode != 0
    [table] = json.loads(checked.stdout)
    assert table["table"] == "events"
    assert "create = true" in table["error"]
    assert "error: table 'events'" in checked.stderr
    served = subprocess.run(proxy_command(path, verb="ingest"), cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert served.returncode != 0
    assert "lake/events" in served.stderr
    assert KEY not in checked.stderr + served.stderr


def test_tenants_of_new_or_changed_tables_are_not_applied(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The tenants of a file are checked against its tables, so these must equal the running ones."""
    path = written(tmp_path, TABLE + ACME)
    taken: list[Tenants] = []
    running = TenantsFile(path, load_config(path), taken.append)
    for text in (
        TABLE + 'id_column = "id"\ntenant_column = "tenant"\n' + ACME + GLOBEX,
        TABLE.replace("lake/events", "lake/others") + ACME,
        TABLE + TABLE.replace("events", "more") + ACME + GLOBEX.replace("events", "more"),
    ):
        written(tmp_path, text)
        assert not running.reload()
    assert caplog.text.count("Restart to apply the file") == 3
    written(tmp_path, TABLE + 'delay_max = "2s"\n' + ACME + GLOBEX)
    assert running.reload()
    (tenants,) = taken
    assert [tenant and tenant.name for tenant in map(tenants.find_by_key, (KEY, OTHER_KEY))] == ["acme", "globex"]
