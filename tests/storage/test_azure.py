"""Addresses and storage options of Azure Blob Storage. tests/storage/test_clouds.py has the tests with its emulator."""

from __future__ import annotations

import base64
import pickle

import pytest

from icedb.errors import InvalidOption, InvalidURI
from icedb.storage.azure import AzureAccess
from icedb.storage.location import parse_location

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
    assert isinstance(signed.cloud, AzureAccess)
    assert signed.cloud.sas_token == SIGNATURE
    assert "secret" not in repr(signed)


def test_missing_options_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in OPTIONS.items():
        monkeypatch.setenv(name, value)
    assert parse_location("az://lake/events") == parse_location("az://lake/events", OPTIONS)
    other = parse_location("az://lake/events", {"AZURE_STORAGE_SAS_TOKEN": SIGNATURE})
    assert isinstance(other.cloud, AzureAccess)
    assert other.cloud.key is None  # only the explicit one of the two is used


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
