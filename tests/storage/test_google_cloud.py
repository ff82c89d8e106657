"""Addresses, storage options and credentials of Google Cloud. tests/storage/test_clouds.py has the tests with its
emulator, which verifies no credentials.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from icedb.errors import AccessDenied, BucketNotFound, InvalidOption, InvalidURI, StoreUnavailable
from icedb.storage import obstore_store
from icedb.storage.google_cloud import GoogleAccess
from icedb.storage.location import parse_location
from icedb.storage.obstore_store import open_store
from tests.support.processes import serving

KEY = json.dumps({"private_key": "a-secret-key", "client_email": "lake@project"})
TOKEN = "a-secret-token"
OPTIONS = {"GOOGLE_BEARER_TOKEN": TOKEN}


@pytest.fixture(autouse=True)
def _no_google_of_the_developer(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GOOGLE_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    "options",
    [
        {},
        OPTIONS,
        {"GOOGLE_SERVICE_ACCOUNT_KEY": KEY},
        {"GOOGLE_SERVICE_ACCOUNT": "/a/key.json", "GOOGLE_BASE_URL": "http://127.0.0.1:4443"},
        {"GOOGLE_APPLICATION_CREDENTIALS": "/a/user.json"},
    ],
)
def test_an_address_has_its_options_and_shows_no_secret(options: dict[str, str]) -> None:
    location = parse_location("gs://lake/a/events", options)
    assert (location.uri, location.root, location.prefix) == ("gs://lake/a/events", "lake", "a/events")
    assert "secret" not in repr(location)
    assert location.storage_options == options
    assert pickle.loads(pickle.dumps(location)) == location == parse_location(location.uri, location.storage_options)
    assert parse_location("gs://lake/a/events", {k.lower(): v for k, v in options.items()}) == location


def test_missing_options_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/a/user.json")
    monkeypatch.setenv("GOOGLE_BASE_URL", "http://127.0.0.1:4443/")
    location = parse_location("gs://lake/events")
    assert location.cloud == GoogleAccess("http://127.0.0.1:4443", application_credentials="/a/user.json")
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", "/a/key.json")  # the client prefers it
    assert parse_location("gs://lake/events").cloud == GoogleAccess("http://127.0.0.1:4443", "/a/key.json")
    explicit = parse_location("gs://lake/events", OPTIONS)
    assert explicit.cloud == GoogleAccess("http://127.0.0.1:4443", bearer_token=TOKEN)
    # The client would use the account of the environment.
    with pytest.raises(InvalidOption, match=r"GOOGLE_SERVICE_ACCOUNT in the environment .* Unset it") as caught:
        parse_location("gs://lake/events", {"GOOGLE_SERVICE_ACCOUNT_KEY": KEY})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({**OPTIONS, "GOOGLE_SERVICE_ACCOUNT_KEY": KEY}, "only one of GOOGLE_BEARER_TOKEN and GOOGLE_SERVICE_ACCOUNT_"),
        ({"GOOGLE_BASE_URL": "https://secret@host"}, "contain no credentials"),
        ({"GOOGLE_BASE_URL": "secret"}, "must start with http"),
        ({"AWS_REGION": "secret"}, r"unknown storage options \['AWS_REGION'\]. Known for Google Cloud"),
    ],
)
def test_invalid_options_are_rejected_without_quoting_them(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOption, match=message) as caught:
        parse_location("gs://lake/events", options)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_SERVICE_ACCOUNT"])
def test_an_unusable_key_is_rejected_without_quoting_it(tmp_path: Path, name: str) -> None:
    file = tmp_path / "key.json"
    file.write_text(KEY)  # its private key is none
    location = parse_location("gs://lake/events", {name: str(file) if name.endswith("ACCOUNT") else KEY})
    with pytest.raises(InvalidOption, match="gs://lake/events: the credentials for Google Cloud cannot be used") as got:
        open_store(location)
    assert "secret" not in str(got.value)


def test_an_address_with_credentials_is_rejected_without_quoting_them() -> None:
    with pytest.raises(InvalidURI) as caught:
        parse_location("gs://a-secret@lake/events", OPTIONS)
    assert "secret" not in str(caught.value)


@contextmanager
def _answering(status: int, body: bytes) -> Iterator[tuple[str, list[str | None]]]:
    """Serve the same response to all requests. Yield the endpoint, and the credentials of each request."""
    credentials: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            credentials.append(self.headers["Authorization"])
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class's name
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with serving(server):
        yield f"http://127.0.0.1:{server.server_port}", credentials


def test_refused_credentials_are_denied_and_not_shown() -> None:
    body = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Details>a-secret-detail</Details></Error>"
    with _answering(403, body) as (endpoint, credentials):
        store = open_store(parse_location("gs://lake/events", OPTIONS | {"GOOGLE_BASE_URL": endpoint}))
        with pytest.raises(AccessDenied, match="Check the service account and its rights on that bucket") as caught:
            store.get("events/x")
    assert credentials == [f"Bearer {TOKEN}"]
    assert "secret" not in str(caught.value)


def test_a_missing_bucket_has_the_code_of_the_real_service() -> None:
    with _answering(404, b"<?xml version='1.0'?><Error><Code>NoSuchBucket</Code></Error>") as (endpoint, _):
        store = open_store(parse_location("gs://lake/events", OPTIONS | {"GOOGLE_BASE_URL": endpoint}))
        with pytest.raises(BucketNotFound, match="the bucket 'lake' does not exist"):
            store.list("events/")


def test_a_user_without_a_token_is_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = "Error performing token request: Error performing GET http://metadata/token - {}"
    location = parse_location("gs://lake/events")
    for text in ("HTTP error: error sending request", "Server returned non-2xx status code: 403 Forbidden"):
        translated = obstore_store.translate(Exception(error.format(text)), verb="list", key="", location=location)
        assert isinstance(translated, AccessDenied)
        assert "gcloud auth application-default login" in str(translated)
    busy = Exception(error.format("Server returned non-2xx status code: 503 Service Unavailable"))
    assert isinstance(obstore_store.translate(busy, verb="list", key="", location=location), StoreUnavailable)
