"""Tables in the emulator of Azure Blob Storage. tests/storage/test_store.py has the tests of all stores."""

from __future__ import annotations

import base64
import pickle

import duckdb
import pytest

import icedb
from icedb.engines import arrow
from icedb.engines.duckdb.attached_tables import attach
from icedb.errors import AccessDenied, BucketNotFound, InvalidOption, InvalidURI
from icedb.storage.location import parse_location
from tests.support.object_stores.stores import Place

KEY = base64.b64encode(b"a key that is never in any text.").decode()
OPTIONS = {"AZURE_STORAGE_ACCOUNT_NAME": "lakehouse", "AZURE_STORAGE_ACCOUNT_KEY": KEY}
SIGNATURE = "sv=2026-01-01&sig=a-secret-signature"


@pytest.fixture(autouse=True)
def _no_azure_of_the_developer(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCOUNT_NAME", "ACCOUNT_KEY", "SAS_TOKEN", "SAS_KEY", "ENDPOINT"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    monkeypatch.delenv("AZURE_ENDPOINT", raising=False)


def test_the_repr_of_an_address_contains_no_secret() -> None:
    location = parse_location("az://lake/a/events", OPTIONS)
    assert (location.uri, location.prefix) == ("az://lake/a/events", "a/events")
    assert location.endpoint == "https://lakehouse.blob.core.windows.net"
    assert KEY not in repr(location)
    assert "lakehouse" in repr(location)
    again = pickle.loads(pickle.dumps(location))
    assert again == location == parse_location(location.uri, location.storage_options)
    signed = parse_location("az://lake/events", {"account_name": "lakehouse", "sas_token": SIGNATURE})
    assert signed.azure is not None
    assert signed.azure.sas_token == SIGNATURE
    assert "secret" not in repr(signed)


def test_missing_options_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in OPTIONS.items():
        monkeypatch.setenv(name, value)
    assert parse_location("az://lake/events") == parse_location("az://lake/events", OPTIONS)
    other = parse_location("az://lake/events", {"AZURE_STORAGE_SAS_TOKEN": SIGNATURE})
    assert other.azure is not None
    assert other.azure.key is None  # only the explicit one of the two is used


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "AZURE_STORAGE_ACCOUNT_NAME is missing"),
        ({"AZURE_STORAGE_ACCOUNT_NAME": "lakehouse"}, "Entra ID and managed identities are not supported yet"),
        ({**OPTIONS, "AZURE_STORAGE_SAS_TOKEN": SIGNATURE}, "not both"),
        ({**OPTIONS, "AZURE_STORAGE_ACCOUNT_KEY": "secret, and no base64"}, "must be base64"),
        ({**OPTIONS, "AZURE_STORAGE_ENDPOINT": "https://secret@host"}, "contain no credentials"),
        ({**OPTIONS, "AZURE_STORAGE_ENDPOINT": "https://host/?secret"}, "contain no credentials"),
        ({**OPTIONS, "AWS_REGION": "secret"}, r"unknown storage options \['AWS_REGION'\]"),
    ],
)
def test_invalid_options_are_rejected_without_quoting_them(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOption, match=message) as caught:
        parse_location("az://lake/events", options)
    assert "secret" not in str(caught.value)
    assert KEY not in str(caught.value)


def test_an_address_with_a_signature_is_rejected_without_quoting_it() -> None:
    for address in (f"az://lake/events?{SIGNATURE}", "az://a-secret-signature@lake/events"):
        with pytest.raises(InvalidURI) as caught:
            parse_location(address, OPTIONS)
        assert "secret" not in str(caught.value)


def test_spark_rejects_azure() -> None:
    options = pytest.importorskip("icedb.spark.datasource.options", reason="there is no Spark")
    with pytest.raises(InvalidOption, match="Spark does not reach tables in Azure yet"):
        options.path_of({"path": "az://lake/events"})


# ------------------------------------------------------------------------------------------ with the emulator


@pytest.mark.sampled(days=3)
@pytest.mark.azure
def test_a_table_works_in_azure(azure: Place) -> None:
    events = icedb.Table.create(azure.uri, partition_by=["day"], sort_by=["n"], storage_options=azure.storage_options)
    for n in range(6):
        events.insert([{"day": f"2026-11-2{n % 2}", "n": n}])
    before = events.snapshot()
    assert events.insert([{"day": "2026-11-20", "n": 6}], txn=("job", 1)).rows == 1
    assert events.insert([{"day": "2026-11-20", "n": 6}], txn=("job", 1)).rows == 0
    assert events.merge().merged_parts == 7
    copies = events.handle.part_paths.copies
    assert list(copies.rglob("*.parquet")) == [], "a merge fetches its parts, and keeps no copies"
    assert events.query("SELECT day, sum(n) FROM t GROUP BY day ORDER BY day").fetchall() == [
        ("2026-11-20", 12),
        ("2026-11-21", 9),
    ]
    assert before.query("SELECT count(*) FROM t").fetchall() == [(6,)]
    assert events.delete("n = 0").deleted_rows == 1
    events.drop_partitions("day = '2026-11-21'")
    events.merge_log()
    again = icedb.Table.open(azure.uri, storage_options=azure.storage_options)
    assert again.verify().ok
    assert again.verify(deep=True).ok
    assert again.snapshot().to_arrow().sort_by("n")["n"].to_pylist() == [2, 4, 6]
    assert again.query("SELECT sum(n) FROM t WHERE n > 2").fetchall() == [(10,)]


@pytest.mark.azure
def test_readers_read_copies(azure: Place) -> None:
    events = icedb.Table.create(azure.uri, partition_by=["day"], storage_options=azure.storage_options)
    events.insert([{"day": "2026-11-21", "n": n} for n in range(10)])
    assert sum(arrow.dataset(events.snapshot()).to_table()["n"].to_pylist()) == 45
    with duckdb.connect() as connection:
        attach(connection, events, "events")
        assert connection.sql("SELECT sum(n) FROM events WHERE day = '2026-11-21'").fetchall() == [(45,)]


@pytest.mark.azure
def test_errors_name_the_remedy_and_no_secret(azure: Place, azure_options: dict[str, str]) -> None:
    wrong = {**azure_options, "AZURE_STORAGE_ACCOUNT_KEY": KEY}
    with pytest.raises(AccessDenied, match="Check the account, its key or the signature") as caught:
        icedb.Table.create(azure.uri, storage_options=wrong)
    assert KEY not in str(caught.value)
    with pytest.raises(BucketNotFound, match="the container 'no-such-container' does not exist"):
        icedb.Table.create("az://no-such-container/events", storage_options=azure_options)
