"""Authentication: requests of real clients are verified, changed ones are rejected, and each rule has its code.

The clients send their requests to a server that records them, so the clients alone decide what they sign.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

import boto3
import chdb
import duckdb
import obstore
import polars as pl
import pyarrow.fs as pafs
import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import ReadOnlyCredentials
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from obstore.store import S3Store

from icedb.services.proxy.config.tenants import AccessKey, KeyOwner, Tenant
from icedb.services.proxy.s3.request import S3Request
from icedb.services.proxy.s3.s3_errors import S3Error
from icedb.services.proxy.signing import AuthenticatedCaller, authenticate
from icedb.sql.connections import load_httpfs
from icedb.util.clock import SystemClock
from tests.support.proxy.proxy_signatures import (
    ACME,
    BUCKET,
    EMPTY_SHA256,
    KEY_ID,
    SECRET,
    OneTenant,
    Recorder,
    presigned,
    signed,
    unix_ms,
)

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

#: The time of signatures and of the proxy's clock.
AT = "20261121T100000Z"
NOW_MS = unix_ms(AT)

KEYS = ["d=2026-11-21/u=42/abc.parquet", "d=2026-11-21/u=a%20b/x.parquet", "a b+c/ü=1.parquet", "日本/😀.parquet"]
PUNCTUATION = "~'()*!$&,:;=@[]^|`{}#?\"<>\\.parquet"
SLASHES_AND_DOTS = ["100%/a//b///c.parquet", "/x.parquet", "a/../b/./c.parquet", "../x.parquet", "a/.."]
PREFIXES = ["", "d=2026-11-21/u=42/", "a b+c", "ü/%2F%", "~*'\"()!", "+", "=&?#", "/", "日本😀"]


def verify(request: S3Request, *, now_ms: int = NOW_MS, directory: OneTenant | None = None) -> AuthenticatedCaller:
    return asyncio.run(authenticate(request, directory or OneTenant(), now_ms=now_ms))


def refusal(request: S3Request, *, now_ms: int = NOW_MS, directory: OneTenant | None = None) -> S3Error:
    with pytest.raises(S3Error) as caught:
        verify(request, now_ms=now_ms, directory=directory)
    return caught.value


# What real clients send


def _boto3(address: str) -> S3Client:
    return boto3.client(
        "s3",
        endpoint_url=f"http://{address}",
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
        region_name="eu-west-1",
        config=Config(
            signature_version="s3v4",
            s3={"addressing_style": "path"},
            retries={"total_max_attempts": 1, "mode": "standard"},
        ),
    )


def ask(*calls: Callable[[], object]) -> None:
    """Send requests and ignore the errors of the client: the server has no data."""
    for call in calls:
        with suppress(Exception):
            call()


def with_boto3(address: str) -> None:
    s3 = _boto3(address)
    ask(s3.list_buckets, lambda: s3.put_object(Bucket=BUCKET, Key="a", Body=b"abc", Metadata={"two": "spaces  here"}))
    for prefix in PREFIXES:
        ask(
            partial(s3.list_objects, Bucket=BUCKET, Prefix=prefix, Delimiter="/"),
            partial(s3.list_objects_v2, Bucket=BUCKET, Prefix=prefix, StartAfter=prefix),
        )
    for key in [*KEYS, PUNCTUATION, *SLASHES_AND_DOTS]:
        ask(
            partial(s3.get_object, Bucket=BUCKET, Key=key, Range="bytes=0-9"),
            partial(s3.head_object, Bucket=BUCKET, Key=key),
        )


def with_presigned_addresses_of_boto3(address: str) -> None:
    s3 = _boto3(address)
    gets = [{"Bucket": BUCKET, "Key": key} for key in [*KEYS, PUNCTUATION, *SLASHES_AND_DOTS]]
    lists = [{"Bucket": BUCKET, "Prefix": prefix} for prefix in PREFIXES]
    addresses = [s3.generate_presigned_url("get_object", Params=p) for p in gets]
    addresses += [s3.generate_presigned_url("list_objects_v2", Params=p) for p in lists]
    ask(*(partial(urllib.request.urlopen, a) for a in addresses))


def with_the_aws_cli(address: str) -> None:
    access = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": "us-east-1"}
    aws = [sys.executable, "-m", "awscli", "--endpoint-url", f"http://{address}", "s3"]
    subprocess.run([*aws, "ls", f"s3://{BUCKET}/a b+ü=1/"], env=os.environ | access, capture_output=True, timeout=120)


def with_duckdb(address: str) -> None:
    con = duckdb.connect()
    load_httpfs(con)
    secret = f"KEY_ID '{KEY_ID}', SECRET '{SECRET}', ENDPOINT '{address}', URL_STYLE 'path', USE_SSL false"
    con.execute(f"SET http_retries = 0; CREATE SECRET (TYPE s3, {secret})")
    for key in [*KEYS, SLASHES_AND_DOTS[0], "d=*/u=42/*.parquet", "d=2026-11-21/**"]:
        ask(partial(con.execute, f"FROM read_parquet('s3://{BUCKET}/{key}')"))
    con.close()


def with_obstore(address: str) -> None:
    store = S3Store(
        BUCKET,
        endpoint=f"http://{address}",
        access_key_id=KEY_ID,
        secret_access_key=SECRET,
        region="us-east-1",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    for key in [*KEYS, PUNCTUATION]:
        url = obstore.sign(store, "GET", key, timedelta(hours=1))
        ask(partial(store.get, key), partial(store.head, key), partial(urllib.request.urlopen, url))
    for prefix in PREFIXES:
        ask(store.list(prefix).collect, partial(store.list_with_delimiter, prefix))


def with_pyarrow(address: str) -> None:
    s3 = pafs.S3FileSystem(
        access_key=KEY_ID,
        secret_key=SECRET,
        region="us-east-1",
        endpoint_override=address,
        scheme="http",
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=1),
    )
    ask(*(partial(s3.open_input_file, f"{BUCKET}/{k}") for k in [*KEYS, PUNCTUATION]))
    ask(lambda: s3.get_file_info(pafs.FileSelector(f"{BUCKET}/a b+c/ü=1", recursive=True)))


def with_polars(address: str) -> None:
    options = {
        "aws_endpoint_url": f"http://{address}",
        "aws_access_key_id": KEY_ID,
        "aws_secret_access_key": SECRET,
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
        "max_retries": 0,
    }
    for key in [KEYS[0], KEYS[2], "d=*/u=42/*.parquet"]:
        ask(pl.scan_parquet(f"s3://{BUCKET}/{key}", storage_options=options).collect)


def with_chdb(address: str) -> None:
    once = "SETTINGS s3_retry_attempts = 0, s3_max_single_read_retries = 1"
    for path in ["d=2026-11-21/u=a%2520b/x.parquet", "a%20b+c.parquet", "d=*/u=42/*.parquet"]:
        table = f"s3('http://{address}/{BUCKET}/{path}', '{KEY_ID}', '{SECRET}', 'Parquet', 'a Int32')"
        ask(partial(chdb.query, f"SELECT * FROM {table} {once}"))


#: Clients with their minimum number of requests, so that a client without requests fails the test.
CLIENTS = {
    with_boto3: 40,
    with_presigned_addresses_of_boto3: 19,
    with_the_aws_cli: 1,
    with_duckdb: 7,
    with_obstore: 31,
    with_pyarrow: 6,
    with_polars: 3,
    with_chdb: 3,
}


@pytest.fixture(scope="module", params=CLIENTS, ids=lambda client: client.__name__.removeprefix("with_"))
def recorded(request: pytest.FixtureRequest) -> list[S3Request]:
    """The distinct requests that a client sent."""
    with Recorder().running() as recorder:
        request.param(recorder.address)
    requests = {(r.method, r.path, r.query): r for r in recorder.requests}
    assert len(requests) >= CLIENTS[request.param]
    return list(requests.values())


def signed_at_ms(request: S3Request) -> int:
    return unix_ms(request.header("x-amz-date") or request.parameter("X-Amz-Date") or "")


@pytest.mark.sampled(cases=4, days=3)
@pytest.mark.process
def test_requests_of_real_clients_are_verified(recorded: list[S3Request]) -> None:
    for request in recorded:
        caller = verify(request, now_ms=SystemClock().now_ms())
        assert (caller.tenant, caller.access_key_id) == (ACME, KEY_ID)
        payload = request.header("x-amz-content-sha256")
        assert caller.payload_sha256 == (None if payload == "UNSIGNED-PAYLOAD" else payload)


def other(character: str) -> str:
    """Return another character of the same kind, because malformed texts are rejected before wrong ones."""
    if character.isdigit():
        return str((int(character) + 1) % 10)
    return "x" if character != "x" else "y"


def changed_once(text: str) -> Iterator[str]:
    """Yield the text with each character changed, and with one more at its end."""
    for i, character in enumerate(text):
        yield text[:i] + other(character) + text[i + 1 :]
    yield text + "x"


def signed_names(request: S3Request) -> list[str]:
    text = request.header("authorization") or ""
    listed = text.partition("SignedHeaders=")[2].partition(",")[0] or request.parameter("X-Amz-SignedHeaders") or ""
    return listed.split(";")


def mutants(request: S3Request) -> Iterator[S3Request]:
    yield from (replace(request, method=m) for m in ("GET", "HEAD", "PUT", "DELETE") if m != request.method)
    yield from (replace(request, path=p) for p in changed_once(request.path) if p.startswith("/"))
    yield from (replace(request, query=q) for q in changed_once(request.query))
    pieces = request.query.split("&") if request.query else []
    yield from (replace(request, query="&".join(pieces[:i] + pieces[i + 1 :])) for i in range(len(pieces)))
    for i, (name, value) in enumerate(request.headers):
        before, after = request.headers[:i], request.headers[i + 1 :]
        if name in [*signed_names(request), "authorization"]:
            yield replace(request, headers=before + after)
            yield replace(request, headers=(*request.headers, (name, "x")))
            yield from (replace(request, headers=(*before, (name, v), *after)) for v in changed_once(value))


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_one_byte_changed_is_refused(recorded: list[S3Request]) -> None:
    async def refuse_all() -> int:
        refused = 0
        # All requests of a client are signed alike, so some of them are enough.
        for request in recorded[:: max(1, len(recorded) // 8)]:
            for mutant in mutants(request):
                with pytest.raises(S3Error):
                    await authenticate(mutant, OneTenant(), now_ms=signed_at_ms(request))
                refused += 1
        return refused

    assert asyncio.run(refuse_all()) > 300


@pytest.mark.process
def test_another_secret_is_refused(recorded: list[S3Request]) -> None:
    for secret in [SECRET[:-1], SECRET + "x", ""]:
        directory = OneTenant(Tenant("acme", (AccessKey(KEY_ID, secret),), {}))
        for request in recorded:
            assert refusal(request, now_ms=signed_at_ms(request), directory=directory).code == "SignatureDoesNotMatch"


# AWS's own examples

AWS_HOST = "examplebucket.s3.amazonaws.com"
AWS_AT = "20130524T000000Z"
AWS_SCOPE = "20130524/us-east-1/s3/aws4_request"
AWS_KEY_ID = "AKIAIOSFODNN7EXAMPLE"
AWS = OneTenant(Tenant("aws", (AccessKey(AWS_KEY_ID, "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),), {}))
PUT_SHA256 = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"


@pytest.mark.parametrize(
    ("method", "path", "query", "more", "payload", "signature"),
    [
        pytest.param(
            "GET",
            "/test.txt",
            "",
            {"range": "bytes=0-9"},
            EMPTY_SHA256,
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            id="get object",
        ),
        pytest.param(
            "PUT",
            "/test$file.text",
            "",
            {"date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"},
            PUT_SHA256,
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
            id="put object",
        ),
        pytest.param(
            "GET",
            "/",
            "lifecycle",
            {},
            EMPTY_SHA256,
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
            id="get bucket lifecycle",
        ),
        pytest.param(
            "GET",
            "/",
            "max-keys=2&prefix=J",
            {},
            EMPTY_SHA256,
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            id="list objects",
        ),
    ],
)
def test_aws_examples(method: str, path: str, query: str, more: dict[str, str], payload: str, signature: str) -> None:
    """The examples of "Authenticating Requests: Using the Authorization Header" in S3's API reference."""
    headers = {"host": AWS_HOST, "x-amz-content-sha256": payload, "x-amz-date": AWS_AT} | more
    value = f"Credential={AWS_KEY_ID}/{AWS_SCOPE},SignedHeaders={';'.join(sorted(headers))},Signature={signature}"
    request = S3Request(method, path, query, (*headers.items(), ("authorization", f"AWS4-HMAC-SHA256 {value}")))
    caller = verify(request, now_ms=unix_ms(AWS_AT), directory=AWS)
    assert (caller.tenant, caller.access_key_id, caller.payload_sha256) == (AWS.tenant, AWS_KEY_ID, payload)


def test_the_aws_example_of_a_presigned_url() -> None:
    query = (
        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"
        "&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
        "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    )
    request = S3Request("GET", "/test.txt", query, (("host", AWS_HOST),))
    caller = verify(request, now_ms=unix_ms(AWS_AT), directory=AWS)
    assert (caller.tenant, caller.access_key_id, caller.payload_sha256) == (AWS.tenant, AWS_KEY_ID, None)


# The rules, one by one

HEADERS = (("host", "proxy.example"), ("x-amz-content-sha256", EMPTY_SHA256), ("x-amz-date", AT))
PLAIN = S3Request("GET", "/events", "list-type=2&prefix=d%3D2026", HEADERS)
BARE = replace(PLAIN, headers=HEADERS[:1])
SIGNED = signed(PLAIN, at=AT)
PRESIGNED = presigned(BARE, at=AT)


def with_header(request: S3Request, name: str, value: str | None) -> S3Request:
    """Return the request with a header added, replaced, or (None) removed."""
    headers = tuple((n, v) for n, v in request.headers if n != name)
    return replace(request, headers=headers if value is None else (*headers, (name, value)))


def authorized(value: str) -> S3Request:
    return with_header(PLAIN, "authorization", value)


def edited(old: str, new: str) -> S3Request:
    """Return SIGNED with a changed Authorization header."""
    value = SIGNED.header("authorization") or ""
    assert old in value
    return with_header(SIGNED, "authorization", value.replace(old, new))


def requery(old: str, new: str) -> S3Request:
    """Return PRESIGNED with a changed query."""
    assert old in PRESIGNED.query
    return replace(PRESIGNED, query=PRESIGNED.query.replace(old, new))


def dated(at: str) -> S3Request:
    return signed(with_header(PLAIN, "x-amz-date", at), at=at, scope="20261121/r/s3/aws4_request")


def hashed(payload: str) -> S3Request:
    return signed(with_header(PLAIN, "x-amz-content-sha256", payload), at=AT)


MALFORMED = "AuthorizationHeaderMalformed"
MALFORMED_QUERY = "AuthorizationQueryParametersError"
SIGNATURE = (SIGNED.header("authorization") or "")[-64:]

REFUSED = {
    "nobody": (PLAIN, "AccessDenied"),
    "both ways": (with_header(PRESIGNED, "authorization", SIGNED.header("authorization")), "InvalidArgument"),
    "version 2": (authorized("AWS ACMEKEY1:c2lnbmF0dXJl"), "InvalidRequest"),
    "version 2 in the query": (replace(BARE, query="AWSAccessKeyId=A&Signature=b&Expires=1"), "InvalidRequest"),
    "version 4a": (edited("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256"), "InvalidRequest"),
    "version 4a in the query": (requery("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256"), "InvalidRequest"),
    "basic": (authorized("Basic dXNlcjpwYXNz"), "InvalidRequest"),
    "an empty header": (authorized(""), "InvalidRequest"),
    "two authorizations": (replace(SIGNED, headers=(*SIGNED.headers, SIGNED.headers[-1])), "InvalidRequest"),
    "two hosts": (replace(SIGNED, headers=(*SIGNED.headers, ("host", "b"))), "InvalidRequest"),
    "two dates": (replace(SIGNED, headers=(*SIGNED.headers, ("x-amz-date", AT))), "InvalidRequest"),
    "two hashes": (replace(SIGNED, headers=(*SIGNED.headers, HEADERS[1])), "InvalidRequest"),
    "a session token": (with_header(SIGNED, "x-amz-security-token", "t"), "InvalidToken"),
    "a session token in the query": (presigned(replace(BARE, query="X-Amz-Security-Token=t"), at=AT), "InvalidToken"),
    "nothing after the algorithm": (authorized("AWS4-HMAC-SHA256"), MALFORMED),
    "no signed headers": (edited("SignedHeaders=host;x-amz-content-sha256;x-amz-date, ", ""), MALFORMED),
    "empty signed headers": (edited("host;x-amz-content-sha256;x-amz-date", ""), MALFORMED),
    "another order": (edited("Signature=", "Signed="), MALFORMED),
    "more at the end": (edited(SIGNATURE, SIGNATURE + ", More=1"), MALFORMED),
    "a short signature": (edited(SIGNATURE, SIGNATURE[:-1]), MALFORMED),
    "a long signature": (edited(SIGNATURE, SIGNATURE + "0"), MALFORMED),
    "an upper-case signature": (edited(SIGNATURE, "A" * 64), MALFORMED),
    "a signature that is no ASCII": (edited(SIGNATURE, "é" * 64), MALFORMED),
    "a key id with other characters": (edited("ACMEKEY1/", "ACME$/"), MALFORMED),
    "a key id too long": (edited("ACMEKEY1/", "A" * 129 + "/"), MALFORMED),
    "no key id": (edited("ACMEKEY1/", "/"), MALFORMED),
    "a slash too many": (edited("ACMEKEY1/", "A/B/"), MALFORMED),
    "another service": (signed(PLAIN, at=AT, scope="20261121/r/ec2/aws4_request"), MALFORMED),
    "another end": (signed(PLAIN, at=AT, scope="20261121/r/s3/aws2_request"), MALFORMED),
    "another day": (signed(PLAIN, at=AT, scope="20261120/r/s3/aws4_request"), MALFORMED),
    "upper-case names": (signed(PLAIN, at=AT, names=["Host", "x-amz-content-sha256", "x-amz-date"]), MALFORMED),
    "unsorted names": (signed(PLAIN, at=AT, names=["x-amz-date", "x-amz-content-sha256", "host"]), MALFORMED),
    "a name twice": (signed(PLAIN, at=AT, names=["host", "host", "x-amz-content-sha256", "x-amz-date"]), MALFORMED),
    "an empty name": (edited("=host;", "=;host;"), MALFORMED),
    "too many names": (edited("=host;", f"={';'.join(f'a{i:02}' for i in range(62))};host;"), MALFORMED),
    "no time": (signed(with_header(PLAIN, "x-amz-date", None), at=AT), "AccessDenied"),
    "a time of another form": (dated("2026-11-21T10:00:00Z"), "AccessDenied"),
    "a time that never was": (dated("20261121T106100Z"), "AccessDenied"),
    "a date of another form": (
        signed(with_header(with_header(PLAIN, "x-amz-date", None), "date", "21 Nov 2026"), at=AT),
        "AccessDenied",
    ),
    "sixteen minutes ago": (dated("20261121T094400Z"), "RequestTimeTooSkewed"),
    "in sixteen minutes": (dated("20261121T101600Z"), "RequestTimeTooSkewed"),
    "no hash": (signed(with_header(PLAIN, "x-amz-content-sha256", None), at=AT), "InvalidRequest"),
    "a hash too short": (hashed("abc"), "InvalidArgument"),
    "an empty hash": (hashed(""), "InvalidArgument"),
    "another word for none": (hashed("UNSIGNED"), "InvalidArgument"),
    "host not signed": (signed(PLAIN, at=AT, names=["x-amz-content-sha256", "x-amz-date"]), "AccessDenied"),
    "x-amz-date not signed": (signed(PLAIN, at=AT, names=["host", "x-amz-content-sha256"]), "AccessDenied"),
    "one more x-amz-": (with_header(SIGNED, "x-amz-meta-more", "1"), "AccessDenied"),
    "one more x-amz- for a presigned address": (with_header(PRESIGNED, "x-amz-meta-more", "1"), "AccessDenied"),
    "host not signed by an address": (presigned(BARE, at=AT, names=["range"]), "AccessDenied"),
    "a signed header that is missing": (
        with_header(signed(with_header(PLAIN, "range", "bytes=0-1"), at=AT), "range", None),
        "SignatureDoesNotMatch",
    ),
    "a header that never was": (edited("=host;", "=host;range;"), "SignatureDoesNotMatch"),
    "a signed header that is no text": (signed(with_header(PLAIN, "if-match", "\xff"), at=AT), "InvalidRequest"),
    "nobody's key": (signed(PLAIN, at=AT, key_id="ACMEKEY2"), "InvalidAccessKeyId"),
    "nobody's key in an address": (presigned(BARE, at=AT, key_id="ACMEKEY2"), "InvalidAccessKeyId"),
    "a wrong secret": (signed(PLAIN, at=AT, secret="wrong"), "SignatureDoesNotMatch"),
    "a wrong secret for an address": (presigned(BARE, at=AT, secret="wrong"), "SignatureDoesNotMatch"),
    "no algorithm": (requery("X-Amz-Algorithm", "X-Amz-Other"), MALFORMED_QUERY),
    "no credential": (requery("X-Amz-Credential", "X-Amz-Other"), MALFORMED_QUERY),
    "no date": (requery("X-Amz-Date", "X-Amz-Other"), MALFORMED_QUERY),
    "no expiry": (requery("X-Amz-Expires", "X-Amz-Other"), MALFORMED_QUERY),
    "no names": (requery("X-Amz-SignedHeaders", "X-Amz-Other"), MALFORMED_QUERY),
    "no signature": (requery("X-Amz-Signature", "X-Amz-Other"), MALFORMED_QUERY),
    "two signatures": (requery("X-Amz-Signature=", "X-Amz-Signature=a&X-Amz-Signature="), MALFORMED_QUERY),
    "two expiries": (requery("X-Amz-Expires=600", "X-Amz-Expires=600&X-Amz-Expires=6000"), MALFORMED_QUERY),
    "a credential of another form": (requery("ACMEKEY1%2F", "ACMEKEY1-"), MALFORMED_QUERY),
    "names of another form": (requery("SignedHeaders=host", "SignedHeaders=host%3Bhost"), MALFORMED_QUERY),
    "a signature of another form": (requery("X-Amz-Signature=", "X-Amz-Signature=%C3%A9"), MALFORMED_QUERY),
    "a date of another form in an address": (requery(f"X-Amz-Date={AT}", "X-Amz-Date=2026-11-21"), MALFORMED_QUERY),
    "another day in an address": (presigned(BARE, at=AT, scope="20261120/r/s3/aws4_request"), MALFORMED_QUERY),
    "another service in an address": (presigned(BARE, at=AT, scope="20261121/r/ec2/aws4_request"), MALFORMED_QUERY),
    "expires at once": (presigned(BARE, at=AT, expires="0"), MALFORMED_QUERY),
    "expires before": (presigned(BARE, at=AT, expires="-1"), MALFORMED_QUERY),
    "expires in other digits": (presigned(BARE, at=AT, expires="\u0666"), MALFORMED_QUERY),
    "expires in more than a week": (presigned(BARE, at=AT, expires="604801"), MALFORMED_QUERY),
    "expires never": (presigned(BARE, at=AT, expires="9" * 5000), MALFORMED_QUERY),
    "expired": (presigned(BARE, at="20261121T095000Z", expires="599"), "AccessDenied"),
    "not valid yet": (presigned(BARE, at="20261121T101501Z"), "AccessDenied"),
    "a hash of another form in an address": (
        presigned(replace(BARE, query="X-Amz-Content-Sha256=abc"), at=AT, payload="abc"),
        "InvalidArgument",
    ),
    "two hashes in an address": (
        with_header(
            presigned(replace(BARE, query=f"X-Amz-Content-Sha256={EMPTY_SHA256}"), at=AT),
            "x-amz-content-sha256",
            "UNSIGNED-PAYLOAD",
        ),
        "InvalidRequest",
    ),
    "an unsigned payload that was signed for another": (
        presigned(replace(BARE, query=f"X-Amz-Content-Sha256={EMPTY_SHA256}"), at=AT),
        "SignatureDoesNotMatch",
    ),
    "a path that is no UTF-8": (replace(SIGNED, path="/events/%FF"), "InvalidURI"),
    "a query that is no UTF-8": (replace(SIGNED, query="prefix=%FF"), "InvalidURI"),
    "a path without a slash": (replace(SIGNED, path="@elsewhere/events"), "InvalidURI"),
}


@pytest.mark.parametrize("rule", REFUSED)
def test_a_refused_request_has_its_code(rule: str) -> None:
    request, code = REFUSED[rule]
    assert refusal(request).code == code


def test_messages_have_the_words_of_s3() -> None:
    says = {
        "both ways": "Only one auth mechanism allowed",
        "version 2": "AWS4-HMAC-SHA256",
        "one more x-amz-": "There were headers present in the request which were not signed",
        "expired": "Request has expired",
        "not valid yet": "Request is not valid yet",
    }
    for rule, text in says.items():
        assert text in refusal(REFUSED[rule][0]).message


def test_malformed_requests_cause_no_lookup() -> None:
    owner_matters = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidURI"}
    for rule, (request, code) in REFUSED.items():
        directory = OneTenant()
        refusal(request, directory=directory)
        if code not in owner_matters and rule != "a signed header that is no text":
            assert directory.looked_up == [], rule


ACCEPTED = {
    "a header": SIGNED,
    "an address": PRESIGNED,
    "no spaces after the commas": edited(", ", ","),
    "fifteen minutes ago": dated("20261121T094500Z"),
    "in fifteen minutes": dated("20261121T101500Z"),
    "no region": signed(PLAIN, at=AT, scope="20261121//s3/aws4_request"),
    "Date in the place of x-amz-date": signed(
        with_header(with_header(PLAIN, "x-amz-date", None), "date", "Sat, 21 Nov 2026 10:00:00 GMT"), at=AT
    ),
    "x-amz-date beside another Date": signed(with_header(PLAIN, "date", "Sat, 21 Nov 2026 09:00:00 GMT"), at=AT),
    "headers that botocore leaves out": signed(
        replace(PLAIN, headers=(*HEADERS, ("user-agent", "a  b"), ("expect", "x"), ("x-amzn-trace-id", "1"))), at=AT
    ),
    "headers that are not signed": replace(SIGNED, headers=(*SIGNED.headers, ("range", "bytes=0-1"), ("a", "\xff"))),
    "a signed header that came twice": signed(
        replace(PLAIN, headers=(*HEADERS, ("if-match", "a"), ("if-match", "b"))),
        at=AT,
        names=["host", "if-match", "x-amz-content-sha256", "x-amz-date"],
    ),
    "signed text that is no ASCII": signed(with_header(PLAIN, "x-amz-meta-name", "\xc3\xbc"), at=AT),
    "names and values in another order": replace(SIGNED, query="prefix=d%3D2026&list-type=2"),
    "other spelling of the same": replace(SIGNED, query="list%2Dtype=2&&prefix=%64%3d2026", path="/%65vents"),
    "a week": presigned(BARE, at=AT, expires="604800"),
    "an address in its last second": presigned(BARE, at="20261121T095000Z", expires="600"),
    "an address of fifteen minutes ahead": presigned(BARE, at="20261121T101500Z"),
    "an address that signs more": presigned(
        with_header(with_header(BARE, "range", "bytes=0-9"), "x-amz-meta-more", "1"),
        at=AT,
        names=["host", "range", "x-amz-meta-more"],
    ),
}


@pytest.mark.parametrize("rule", ACCEPTED)
def test_an_accepted_request_is_the_tenants(rule: str) -> None:
    directory = OneTenant()
    caller = verify(ACCEPTED[rule], directory=directory)
    assert (caller.tenant, caller.access_key_id, directory.looked_up) == (ACME, KEY_ID, [KEY_ID])


@pytest.mark.parametrize(
    ("request_", "payload_sha256"),
    [
        (SIGNED, EMPTY_SHA256),
        (hashed(EMPTY_SHA256.upper()), EMPTY_SHA256),
        (hashed("UNSIGNED-PAYLOAD"), None),
        (hashed("STREAMING-AWS4-HMAC-SHA256-PAYLOAD"), None),
        (hashed("STREAMING-UNSIGNED-PAYLOAD-TRAILER"), None),
        (PRESIGNED, None),
        (presigned(replace(BARE, query="X-Amz-Content-Sha256=UNSIGNED-PAYLOAD"), at=AT), None),
        (
            presigned(replace(BARE, query=f"X-Amz-Content-Sha256={EMPTY_SHA256}"), at=AT, payload=EMPTY_SHA256),
            EMPTY_SHA256,
        ),
        (
            presigned(replace(BARE, headers=HEADERS[:2]), at=AT, names=["host", HEADERS[1][0]], payload=EMPTY_SHA256),
            EMPTY_SHA256,
        ),
    ],
)
def test_the_caller_has_the_signed_hash_of_the_body(request_: S3Request, payload_sha256: str | None) -> None:
    assert verify(request_).payload_sha256 == payload_sha256


def test_the_directory_decides_the_owner_of_a_key() -> None:
    class Unreachable:
        async def find(self, access_key_id: str) -> KeyOwner | None:
            raise S3Error("ServiceUnavailable")

    with pytest.raises(S3Error) as caught:
        asyncio.run(authenticate(SIGNED, Unreachable(), now_ms=NOW_MS))
    assert caught.value.code == "ServiceUnavailable"


def test_the_skew_is_a_parameter() -> None:
    late = NOW_MS + 60_000
    asyncio.run(authenticate(SIGNED, OneTenant(), now_ms=late, max_skew_ms=60_000))
    with pytest.raises(S3Error) as caught:
        asyncio.run(authenticate(SIGNED, OneTenant(), now_ms=late, max_skew_ms=59_999))
    assert caught.value.code == "RequestTimeTooSkewed"


def test_neither_errors_nor_the_log_have_expected_signatures(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = [signed(PLAIN, at=AT, secret="wrong"), presigned(BARE, at=AT, secret="wrong")]
    errors = [refusal(request) for request in [*wrong, *(r for r, _ in REFUSED.values())]]
    verify(SIGNED)
    output = caplog.text + "".join(f"{e}{e!r}{e.__context__!r}{vars(e)}" for e in errors)
    rights = [SIGNATURE, PRESIGNED.query[-64:]]
    assert not [text for text in [SECRET, "CanonicalRequest", "AWS4-HMAC-SHA256\n", *rights] if text in output]


# Random requests

text_of_bytes = st.binary(max_size=60).map(lambda b: b.decode("latin-1"))
fragments = st.sampled_from(
    [
        "AWS4-HMAC-SHA256 ",
        "Credential=",
        f"{KEY_ID}/20261121/r/s3/aws4_request",
        ", SignedHeaders=",
        "host;x-amz-date",
        ", Signature=",
        "0" * 64,
        AT,
        EMPTY_SHA256,
        "X-Amz-Signature=",
        *(f"X-Amz-{name}=" for name in ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders")),
        "&",
        "%",
        ";",
        "Sat, 21 Nov 2026 10:00:00 GMT",
    ]
)
anything = st.lists(text_of_bytes | fragments, max_size=8).map("".join)
names = st.sampled_from(["authorization", "host", "x-amz-date", "date", "x-amz-content-sha256", "range"])
somewhere = st.one_of(anything, anything.map(lambda text: f"/{text}"))


@pytest.mark.sampled(days=3)
@pytest.mark.long
@settings(max_examples=300)
@given(path=somewhere, query=anything, headers=st.lists(st.tuples(names | text_of_bytes, anything), max_size=6))
def test_random_requests_are_rejected_with_codes_of_s3(path: str, query: str, headers: list[tuple[str, str]]) -> None:
    refusal(S3Request("GET", path, query, tuple(headers)))


@pytest.mark.sampled(days=3)
@pytest.mark.long
@settings(max_examples=200)
@given(pieces=st.lists(st.sampled_from(["header", "query"]), min_size=1, max_size=3), data=st.data())
def test_an_edited_request_is_rejected_or_equivalent(pieces: list[str], data: st.DataObject) -> None:
    request = SIGNED
    for piece in pieces:
        if piece == "query":
            at = data.draw(st.integers(0, len(request.query)))
            request = replace(request, query=request.query[:at] + data.draw(anything) + request.query[at:])
        else:
            i = data.draw(st.integers(0, len(request.headers) - 1))
            name, value = request.headers[i]
            at = data.draw(st.integers(0, len(value)))
            value = value[:at] + data.draw(anything) + value[at:]
            request = replace(request, headers=(*request.headers[:i], (name, value), *request.headers[i + 1 :]))
    with suppress(S3Error):
        verify(request)
        assert sorted(request.parameters) == sorted(SIGNED.parameters)
        signed_values = [[" ".join(v.split()) for _, v in r.headers[:3]] for r in (request, SIGNED)]
        assert signed_values[0] == signed_values[1]


some_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@pytest.mark.sampled(days=3)
@pytest.mark.long
@settings(max_examples=150)
@given(
    key=some_text,
    parameters=st.dictionaries(some_text.filter(lambda n: n and not n.startswith("X-Amz-")), some_text, max_size=4),
    in_query=st.booleans(),
)
def test_all_requests_that_botocore_signs_are_verified(key: str, parameters: dict[str, str], in_query: bool) -> None:
    assume("AWSAccessKeyId" not in parameters)
    quoted = quote(key, safe="/~")
    request = AWSRequest("GET", f"http://proxy.example/events/{quoted}", {"host": "proxy.example"}, params=parameters)
    access = ReadOnlyCredentials(KEY_ID, SECRET, None)
    (S3SigV4QueryAuth if in_query else S3SigV4Auth)(access, "s3", "eu-1").add_auth(request)
    prepared = request.prepare()
    path, _, query = prepared.url.removeprefix("http://proxy.example").partition("?")
    headers = tuple((n.lower(), v) for n, v in prepared.headers.items())
    assert verify(S3Request("GET", path, query, headers), now_ms=SystemClock().now_ms()).access_key_id == KEY_ID
