"""Attacks on the Iceberg catalog of a real proxy: each cell has a request and the expected status and type of error.

No answer, log line or repr has a secret, an address behind the proxy, or a name of the other tenant.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import io
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote, urlencode

import fastavro
import pytest

from icedb import Table
from icedb.services.proxy.config.config_file import load_config
from icedb.services.proxy.config.tenants import AccessKey, KeyOwner
from icedb.services.proxy.iceberg.tokens import create_token, token_owner
from icedb.services.proxy.s3.request import S3Request
from tests.support.proxy.iceberg_catalogs import CatalogAnswer, ask_token, bearer, load, send
from tests.support.proxy.proxy_clients import Access, boto3_client
from tests.support.proxy.proxy_process import ProxyProcess
from tests.support.proxy.proxy_signatures import OneTenant, presigned, signed
from tests.support.waiting import wait_until

pytestmark = pytest.mark.process

SECRET = "acme-Secret+1/="
SECRETS = {"ACMEKEY1": SECRET, "RIVALKEY1": "rival-Secret+2/="}
CONFIG = """
[server]
listen = "127.0.0.1:0"
domains = ["s3.test"]
refresh = "0s"

[iceberg]
enabled = true
token_expires = "{expires}"

[[tenant]]
name = "acme"
requests = 8
keys = [{{ id = "ACMEKEY1", secret = "acme-Secret+1/=" }}]
bucket = [{{ name = "events", table = "{lake}/shared", partitions = ["u=1"] }}]

[[tenant]]
name = "rival"
keys = [{{ id = "RIVALKEY1", secret = "rival-Secret+2/=" }}]
bucket = [
    {{ name = "private", table = "{lake}/shared", partitions = ["u=2"] }},
    {{ name = "events", table = "{lake}/shared", partitions = ["u=2"] }},
]
"""
HUGE = 100_000
TABLES = "/iceberg/v1/namespaces/tables/tables"
TOKENS = "/iceberg/v1/oauth/tokens"
FORM = {"content-type": "application/x-www-form-urlencoded"}


@dataclass(frozen=True)
class Attacked:
    proxy: ProxyProcess
    acme: Access
    rival: Access
    lake: Path
    #: Objects of rival's table: the keys of a document, a list, a manifest and a part.
    rivals: tuple[str, ...]

    def token(self, who: str = "ACMEKEY1") -> str:
        return bearer(self.acme if who == "ACMEKEY1" else self.rival)["authorization"].removeprefix("Bearer ")


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    lake = tmp_path_factory.mktemp("hidden-lake")
    table = Table.create(str(lake / "shared"), partition_by=["u"], sort_by=["n"])
    table.insert([{"u": u, "n": n} for u in (1, 2) for n in range(10)])
    with ProxyProcess(CONFIG.format(lake=lake, expires="30m")) as proxy:
        acme, rival = (Access(proxy.endpoint, id_, secret) for id_, secret in SECRETS.items())
        loaded = load(rival, "private").json
        [snapshot] = loaded["metadata"]["snapshots"]
        store = boto3_client(rival)
        addresses = [loaded["metadata-location"], snapshot["manifest-list"]]
        keys = [a.removeprefix("s3://private/") for a in addresses]
        listed = store.get_object(Bucket="private", Key=keys[1])["Body"].read()
        [record] = list(fastavro.reader(io.BytesIO(listed)))
        keys.append(record["manifest_path"].removeprefix("s3://private/"))
        keys.append(store.list_objects_v2(Bucket="private")["Contents"][0]["Key"])
        yield Attacked(proxy, acme, rival, lake, tuple(keys))


Request = tuple[str, str, Mapping[str, str], bytes]


def with_token(token: str, path: str = f"{TABLES}/events", method: str = "GET", body: bytes = b"") -> Request:
    return method, path, {"authorization": f"Bearer {token}"}, body


def forged(key_id: str, secret: str, ends: int, *, purpose: bytes = b"icedb") -> str:
    key = hmac.digest(secret.encode(), purpose, "sha256")
    return f"{key_id}.{ends}.{hmac.digest(key, f'{key_id}.{ends}'.encode(), 'sha256').hex()}"


def later() -> int:
    return int(time.time()) + 3600


def changed(token: str, place: int, text: str) -> str:
    fields = token.split(".")
    fields[place] = text
    return ".".join(fields)


def encoded(document: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")


def signed_request(
    a: Attacked, path: str, *, service: str = "execute-api", secret: str = "", method: str = "GET", age: int = 0
) -> Request:
    at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() - age))
    digest = hashlib.sha256(b"").hexdigest()
    headers = (("host", a.acme.host), ("x-amz-content-sha256", digest), ("x-amz-date", at))
    request = signed(
        S3Request(method, path, "", headers), at=at, key_id="ACMEKEY1", secret=secret or SECRET,
        scope=f"{at[:8]}/us-east-1/{service}/aws4_request", payload=digest,
    )  # fmt: skip
    return method, path, dict(request.headers), b""


def presigned_request(a: Attacked) -> Request:
    at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    request = S3Request("GET", f"{TABLES}/events", "", (("host", a.acme.host),))
    request = presigned(request, at=at, key_id="ACMEKEY1", secret=SECRET)
    return "GET", f"{request.path}?{request.query}", {"host": a.acme.host}, b""


def form(headers: Mapping[str, str] | None = None, **fields: str) -> Request:
    body = urlencode({"grant_type": "client_credentials", **fields}).encode()
    return "POST", TOKENS, {**FORM, **(headers or {})}, body


def basic(text: str | bytes) -> dict[str, str]:
    return {"authorization": f"Basic {base64.b64encode(text.encode() if isinstance(text, str) else text).decode()}"}


DENIED = (401, "NotAuthorizedException")
READ_ONLY = (405, "UnsupportedOperationException")
NO_TABLE = (404, "NoSuchTableException")
NO_NAMESPACE = (404, "NoSuchNamespaceException")
BAD = (400, "BadRequestException")

Cell = tuple[Callable[[Attacked], Request], tuple[int, str]]
CELLS: dict[str, Cell] = {
    # Tokens
    "no token": (lambda a: ("GET", f"{TABLES}/events", {}, b""), DENIED),
    "empty token": (lambda a: with_token(""), DENIED),
    "garbage": (lambda a: with_token("x" * 200), DENIED),
    "huge token": (lambda a: with_token("a" * 20_000), DENIED),
    "secret as token": (lambda a: with_token(SECRET), DENIED),
    "key as token": (lambda a: with_token("ACMEKEY1"), DENIED),
    "forged with no secret": (lambda a: with_token(forged("ACMEKEY1", "", later())), DENIED),
    "forged with the wrong purpose": (lambda a: with_token(forged("ACMEKEY1", SECRET, later())), DENIED),
    "forged for an unknown key": (lambda a: with_token(forged("NOKEY", "secret", later())), DENIED),
    "longer life": (lambda a: with_token(changed(a.token(), 1, str(later()))), DENIED),
    "another key in a token": (lambda a: with_token(changed(a.token(), 0, "RIVALKEY1")), DENIED),
    "a key in lower case": (lambda a: with_token(changed(a.token(), 0, "acmekey1")), DENIED),
    "no signature": (lambda a: with_token(changed(a.token(), 2, "")), DENIED),
    "signature of zeros": (lambda a: with_token(changed(a.token(), 2, "0" * 64)), DENIED),
    "signature in upper case": (lambda a: with_token(changed(a.token(), 2, a.token().split(".")[2].upper())), DENIED),
    "signature of another token": (
        lambda a: with_token(changed(a.token(), 2, a.token("RIVALKEY1").split(".")[2])),
        DENIED,
    ),
    "a fourth field": (lambda a: with_token(a.token() + ".x"), DENIED),
    "a negative end": (lambda a: with_token(changed(a.token(), 1, "-1")), DENIED),
    "an end of Unicode digits": (lambda a: with_token(changed(a.token(), 1, quote("१२३४५६७८९०"))), DENIED),
    "an end with a sign": (lambda a: with_token(changed(a.token(), 1, f"+{later()}")), DENIED),
    "alg none": (lambda a: with_token(f"{encoded({'alg': 'none'})}.{encoded({'sub': 'ACMEKEY1'})}."), DENIED),
    "alg HS256": (
        lambda a: with_token(f"{encoded({'alg': 'HS256'})}.{encoded({'sub': 'ACMEKEY1'})}.{'0' * 43}"),
        DENIED,
    ),
    "Basic for a table": (lambda a: ("GET", f"{TABLES}/events", basic(f"ACMEKEY1:{SECRETS['ACMEKEY1']}"), b""), DENIED),
    "a token in the query": (lambda a: ("GET", f"{TABLES}/events?token={a.token()}", {}, b""), DENIED),
    # Signatures
    "a signature with a wrong secret": (lambda a: signed_request(a, f"{TABLES}/events", secret="wrong-secret"), DENIED),
    "a signature for another service": (lambda a: signed_request(a, f"{TABLES}/events", service="sts"), DENIED),
    "an old signature": (lambda a: signed_request(a, f"{TABLES}/events", age=3600), DENIED),
    "a presigned address": (presigned_request, DENIED),
    # Tables of others, and names
    "a table of another tenant": (lambda a: with_token(a.token(), f"{TABLES}/private"), NO_TABLE),
    "the same with a time": (lambda a: with_token(a.token(), f"{TABLES}/private--1795219200000"), NO_TABLE),
    "a table that does not exist": (lambda a: with_token(a.token(), f"{TABLES}/nothing"), NO_TABLE),
    "traversal": (lambda a: with_token(a.token(), f"{TABLES}/../tables/private"), READ_ONLY),
    "encoded traversal": (lambda a: with_token(a.token(), f"{TABLES}/..%2Fprivate"), READ_ONLY),
    "encoded twice": (lambda a: with_token(a.token(), f"{TABLES}/%252e%252e"), NO_TABLE),
    "two dots": (lambda a: with_token(a.token(), f"{TABLES}/.."), NO_TABLE),
    "an address": (lambda a: with_token(a.token(), f"{TABLES}/{quote('s3://lake/shared', safe='')}"), READ_ONLY),
    "a zero byte": (lambda a: with_token(a.token(), f"{TABLES}/events%00"), NO_TABLE),
    "a line break": (lambda a: with_token(a.token(), f"{TABLES}/events%0d%0ax:%20y"), NO_TABLE),
    "no UTF-8": (lambda a: with_token(a.token(), f"{TABLES}/%ff%fe"), BAD),
    "upper case": (lambda a: with_token(a.token(), f"{TABLES}/EVENTS"), NO_TABLE),
    "a huge name": (lambda a: with_token(a.token(), f"{TABLES}/{'x' * 5_000}"), NO_TABLE),
    "a quote": (lambda a: with_token(a.token(), f"{TABLES}/events%27%22;--"), NO_TABLE),
    "an impossible time": (lambda a: with_token(a.token(), f"{TABLES}/events--20269999t999999z"), BAD),
    "the future": (lambda a: with_token(a.token(), f"{TABLES}/events--{9_999_999_999_999}"), BAD),
    "before the table": (lambda a: with_token(a.token(), f"{TABLES}/events--1000000000000"), BAD),
    "another namespace": (lambda a: with_token(a.token(), "/iceberg/v1/namespaces/rival/tables"), NO_NAMESPACE),
    "a nested namespace": (lambda a: with_token(a.token(), "/iceberg/v1/namespaces/tables%1Fx/tables"), NO_NAMESPACE),
    "an empty namespace": (lambda a: with_token(a.token(), "/iceberg/v1/namespaces//tables"), READ_ONLY),
    # Requests for tokens
    "a wrong secret": (lambda a: form(client_id="ACMEKEY1", client_secret="wrong"), DENIED),
    "the secret of another key": (lambda a: form(client_id="ACMEKEY1", client_secret=SECRETS["RIVALKEY1"]), DENIED),
    "an unknown key": (lambda a: form(client_id="NOKEY", client_secret="x"), DENIED),
    "no credentials": (lambda a: form(), DENIED),
    "an empty secret": (lambda a: form(client_id="ACMEKEY1", client_secret=""), DENIED),
    "a secret that is no ASCII": (lambda a: form(client_id="ACMEKEY1", client_secret="ü😀"), DENIED),
    "a zero byte in the secret": (lambda a: form(client_id="ACMEKEY1", client_secret="acme\0"), DENIED),
    "another grant": (lambda a: form(grant_type="password", client_id="ACMEKEY1", client_secret=SECRET), BAD),
    "token exchange": (lambda a: form(grant_type="urn:ietf:params:oauth:grant-type:token-exchange"), BAD),
    "no grant": (lambda a: ("POST", TOKENS, FORM, b"client_id=ACMEKEY1"), BAD),
    "no form": (lambda a: ("POST", TOKENS, FORM, b"\xff\xfe"), BAD),
    "JSON": (lambda a: ("POST", TOKENS, {"content-type": "application/json"}, b"{}"), BAD),
    "no content type": (lambda a: ("POST", TOKENS, {}, b"grant_type=client_credentials"), BAD),
    "broken encoding": (lambda a: ("POST", TOKENS, FORM, b"grant_type=client_credentials&client_id=%ff%fe"), BAD),
    "repeated fields": (
        lambda a: ("POST", TOKENS, FORM, b"grant_type=client_credentials&client_id=a&client_id=b"),
        BAD,
    ),
    "many fields": (lambda a: ("POST", TOKENS, FORM, b"&".join(b"a%d=1" % n for n in range(5_000))), BAD),
    "no fields": (lambda a: ("POST", TOKENS, FORM, b""), BAD),
    "a huge form": (lambda a: ("POST", TOKENS, FORM, b"a=" + b"x" * HUGE), BAD),
    "Basic with a wrong secret": (lambda a: form(basic("ACMEKEY1:wrong")), DENIED),
    "Basic without a colon": (lambda a: form(basic("ACMEKEY1")), DENIED),
    "Basic with no text": (lambda a: form({"authorization": "Basic"}), DENIED),
    "Basic that is not base64": (lambda a: form({"authorization": "Basic !!!!"}), BAD),
    "Basic that is no text": (lambda a: form(basic(b"\xff\xfe:\x00")), BAD),
    "Basic with a wrong secret and a right form": (
        lambda a: form(basic("ACMEKEY1:wrong"), client_id="ACMEKEY1", client_secret=SECRET),
        DENIED,
    ),
    "a token and a huge body": (
        lambda a: with_token(a.token(), "/iceberg/v1/config", body=b"x" * HUGE),
        BAD,
    ),
}

NOT_THERE = (
    ("POST", TABLES),
    ("POST", ""),
    ("DELETE", ""),
    ("PUT", ""),
    ("PATCH", ""),
    ("OPTIONS", ""),
    ("POST", "/iceberg/v1/namespaces"),
    ("DELETE", "/iceberg/v1/namespaces/tables"),
    ("POST", "/iceberg/v1/namespaces/tables/properties"),
    ("POST", "/iceberg/v1/tables/rename"),
    ("POST", "/iceberg/v1/transactions/commit"),
    ("POST", f"{TABLES}/events/metrics"),
    ("POST", "/iceberg/v1/namespaces/tables/register"),
    ("POST", "/iceberg/v1/config"),
    ("GET", "/iceberg"),
    ("GET", "/iceberg/"),
    ("GET", "/iceberg/v2/config"),
    ("GET", "/iceberg/v1"),
    ("GET", "/iceberg/v1/namespaces/tables/views"),
    ("GET", f"{TABLES}/events/credentials"),
    ("GET", "/iceberg/v1/config/"),
    ("GET", TOKENS),
    ("GET", "/iceberg/events"),
)


def cell_of(method: str, path: str) -> Cell:
    return lambda a: with_token(a.token(), path or f"{TABLES}/events", method, b"{}"), READ_ONLY


CELLS |= {f"{method} {path or 'a table'}": cell_of(method, path) for method, path in NOT_THERE}


def hidden(a: Attacked) -> list[str]:
    return [*SECRETS.values(), *map(quote, SECRETS.values()), str(a.lake), "hidden-lake", "private", "rival", "u=2",
            "_data", "Traceback"]  # fmt: skip


def check_discloses_nothing(a: Attacked, answer: CatalogAnswer, path: str) -> None:
    text = answer.body.decode() + "".join(f"{n}: {v}\n" for n, v in answer.headers.items())
    assert not [h for h in hidden(a) if h in text and h not in path]


@pytest.mark.parametrize("name", CELLS)
def test_each_attack_gets_its_error(attacked: Attacked, name: str) -> None:
    request, expected = CELLS[name]
    method, path, headers, body = request(attacked)
    answer = send(attacked.acme, method, path, headers, body)
    assert answer.error == expected, answer.body
    assert answer.headers["content-type"] == "application/json"
    check_discloses_nothing(attacked, answer, path)
    assert load(attacked.acme, "events").status == 200  # the proxy serves on


def test_an_expired_token_is_rejected(attacked: Attacked) -> None:
    with ProxyProcess(CONFIG.format(lake=attacked.lake, expires="2s")) as proxy:
        acme = replace(attacked.acme, endpoint=proxy.endpoint)
        request = "GET", f"{TABLES}/events", bearer(acme)
        wait_until(lambda: send(acme, *request).status != 200, "the token expires")
        assert send(acme, *request).error == DENIED


def test_a_token_of_another_tenant_sees_that_tenant_only(attacked: Attacked) -> None:
    headers = {"authorization": f"Bearer {attacked.token('RIVALKEY1')}"}
    answer = send(attacked.acme, "GET", TABLES, headers)
    assert {i["name"] for i in answer.json["identifiers"]} == {"private", "events"}
    assert load(attacked.acme, "events").json["config"]["s3.secret-access-key"] == SECRET


def test_a_token_is_no_key_of_s3(attacked: Attacked) -> None:
    answer = send(attacked.acme, "GET", "/events?list-type=2", bearer(attacked.acme))
    assert answer.status == 400
    assert b"<Code>InvalidRequest</Code>" in answer.body


def test_metadata_of_another_tenant_does_not_exist(attacked: Attacked) -> None:
    """Both tenants have a bucket `events` of the same table."""
    store = boto3_client(attacked.acme)
    for key in attacked.rivals:
        for name in ("events", "private"):
            with pytest.raises(store.exceptions.ClientError) as raised:
                store.get_object(Bucket=name, Key=key)
            assert raised.value.response["Error"]["Code"] == {"events": "NoSuchKey", "private": "NoSuchBucket"}[name]
    listed = {o["Key"] for o in store.list_objects_v2(Bucket="events")["Contents"]}
    assert not [key for key in listed if key.startswith("metadata/")]


def test_metadata_objects_support_ranges_and_conditions_of_s3(attacked: Attacked) -> None:
    store, key = boto3_client(attacked.rival), attacked.rivals[1]
    whole = store.get_object(Bucket="private", Key=key)
    body = whole["Body"].read()
    assert store.head_object(Bucket="private", Key=key)["ContentLength"] == len(body)
    assert store.get_object(Bucket="private", Key=key, Range="bytes=4-9")["Body"].read() == body[4:10]
    assert store.get_object(Bucket="private", Key=key, Range="bytes=-5")["Body"].read() == body[-5:]
    with pytest.raises(store.exceptions.ClientError, match="304"):
        store.get_object(Bucket="private", Key=key, IfNoneMatch=whole["ETag"])
    with pytest.raises(store.exceptions.ClientError, match="InvalidRange"):
        store.get_object(Bucket="private", Key=key, Range=f"bytes={len(body)}-")


def test_the_host_of_a_bucket_is_not_the_catalog(attacked: Attacked) -> None:
    answer = send(attacked.acme, "GET", f"{TABLES}/events", {**bearer(attacked.acme), "host": "events.s3.test"})
    assert b"<Code>" in answer.body


def test_an_invalid_host_is_no_endpoint(attacked: Attacked) -> None:
    answer = send(attacked.acme, "GET", f"{TABLES}/events", {**bearer(attacked.acme), "host": 'x"/@y'})
    assert answer.error == BAD


def test_logs_have_no_secret(attacked: Attacked) -> None:
    ask_token(attacked.acme)
    send(attacked.acme, "GET", f"/iceberg/v1/config?client_secret={quote(SECRETS['ACMEKEY1'], safe='')}", {})
    token = attacked.token()
    send(attacked.acme, *with_token(token)[:3])
    text = attacked.proxy.access_text() + attacked.proxy.errors()
    assert not [s for s in SECRETS.values() if s in text or quote(s) in text or quote(s, safe="") in text]
    assert token not in text


def test_objects_have_no_secret_in_their_repr(tmp_path: Path) -> None:
    (tmp_path / "proxy.toml").write_text(CONFIG.format(lake=tmp_path, expires="30m"))
    assert not [s for s in SECRETS.values() if s in repr(load_config(tmp_path / "proxy.toml"))]


@pytest.mark.parametrize("now_ms", [0, 999, 10_999, 11_000, 10**13])
def test_a_token_ends_at_its_time_and_with_its_key(now_ms: int) -> None:
    key = AccessKey("KEY", "the-secret")
    token = create_token(key, now_ms=1_000, expires_ms=10_000)
    directory = OneTenant()
    directory.tenant = type(directory.tenant)("acme", (key,), {})

    def owner() -> KeyOwner | None:
        return asyncio.run(token_owner(token, directory, now_ms=now_ms))

    owned = owner()
    assert (owned is not None) == (now_ms < 11_000)
    directory.tenant = type(directory.tenant)("acme", (AccessKey("KEY", "another-secret"),), {})
    assert owner() is None
    directory.tenant = type(directory.tenant)("acme", (), {})
    assert owner() is None
