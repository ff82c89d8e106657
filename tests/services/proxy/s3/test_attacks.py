"""Attacks on the proxy: each part of a request with each class of attack, on a real proxy and a real store.

Each cell of the matrix has a request and the expected outcome: status and S3 code, or the end of the connection for
malformed HTTP. No response reveals anything of the store, the machine or another tenant. Each response is in the access
log without secrets that allow a repetition. After each attack, the proxy serves a valid request.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import pytest

from icedb.services.proxy.s3.request import S3Request
from icedb.util.clock import SystemClock
from tests.support.object_stores.stores import BUCKET, S3Server
from tests.support.proxy.proxy_attacks import (
    ACME,
    RIVAL,
    AttackedProxy,
    Key,
    Lake,
    RawReply,
    exchange,
    lake,
    replies,
    wire,
    with_header,
    with_parameter,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.s3

#: Memory beyond that of the process and a few tables.
RSS_BYTES_MAX = 600 * 2**20
NOBODY = Key("NOBODYKEY", "nobody/Secret+3=")
#: More than the proxy reads from a socket at a time.
HUGE = 2**20
ALL = ["1", "10", "2"]


@pytest.fixture(scope="module")
def attacked_lake(s3_server: S3Server) -> Lake:
    return lake(s3_server)


@pytest.fixture(scope="module")
def world(attacked_lake: Lake) -> Iterator[AttackedProxy]:
    """A proxy whose hold time for replaced parts is over."""
    with attacked_lake.started("1s") as proxy:
        world = AttackedProxy(proxy, attacked_lake)
        path = f"/events/{attacked_lake.dead['1']}"
        wait_until(lambda: world.send(world.ask(path)).status == 404, "the replaced parts are not held any more")
        yield world


@pytest.fixture(scope="module")
def holding(attacked_lake: Lake) -> Iterator[AttackedProxy]:
    """A proxy that holds replaced parts for longer than the test."""
    with attacked_lake.started("7d") as proxy:
        yield AttackedProxy(proxy, attacked_lake)


# ------------------------------------------------------------------------------------------------ what comes back

Sent = S3Request | bytes
Check = Callable[[AttackedProxy, RawReply], None]


@dataclass(frozen=True)
class Cell:
    """An attack and the expected outcomes in order; none if the connection only ends."""

    send: Callable[[AttackedProxy], Sent]
    outcomes: tuple[str, ...]
    #: Of the last answer.
    check: Check | None = None
    #: Whether the connection may close while the client still sends, so that the response may be lost.
    cut: bool = False


def cell(send: Callable[[AttackedProxy], Sent], *outcomes: str, check: Check | None = None, cut: bool = False) -> Cell:
    return Cell(send, outcomes, check, cut)


def shows(*users: str) -> Check:
    """Check that the response lists one live part of each user."""

    def check(world: AttackedProxy, reply: RawReply) -> None:
        assert reply.keys == [world.lake.live[u] for u in users]

    return check


def is_live(user: str) -> Check:
    """A part's bytes."""

    def check(world: AttackedProxy, reply: RawReply) -> None:
        assert reply.body == world.lake.content(world.lake.live[user])

    return check


def is_dead(user: str) -> Check:
    """The bytes of a part that was merged away."""

    def check(world: AttackedProxy, reply: RawReply) -> None:
        assert reply.body == world.lake.content(world.lake.dead[user])

    return check


def says(text: str) -> Check:
    def check(_: AttackedProxy, reply: RawReply) -> None:
        assert text in reply.body.decode()

    return check


def has_no(text: str) -> Check:
    """Check that neither the headers nor the body have a text."""

    def check(_: AttackedProxy, reply: RawReply) -> None:
        assert text not in str(reply.headers) + reply.body.decode()

    return check


def live(world: AttackedProxy, user: str = "1", bucket: str = "events") -> str:
    """Return the path of a live part."""
    return f"/{bucket}/{world.lake.live[user]}"


def dead(world: AttackedProxy, user: str = "1", bucket: str = "events") -> str:
    """Return the path of a part that was replaced by a merge."""
    return f"/{bucket}/{world.lake.dead[user]}"


def changed(name: str, change: str | Callable[[str], str] | None) -> Callable[[AttackedProxy], S3Request]:
    """Sign a request, then change a header, or set it to a text, or (None) remove it."""
    return lambda w: with_header(w.ask("/events"), name, change if callable(change) else lambda _: change)


def plus(*more: tuple[str, str], path: Callable[[AttackedProxy], str] = live) -> Callable[[AttackedProxy], S3Request]:
    """Add unsigned headers to a valid request."""
    return lambda w: (r := w.ask(path(w))) and replace(r, headers=(*r.headers, *more))


def events(_: AttackedProxy) -> str:
    return "/events"


def chunked(body: bytes, sent: bytes = b"") -> Callable[[AttackedProxy], bytes]:
    """Send a signed request, of a body or of none, with a chunked encoding, followed by any bytes."""
    return lambda w: wire(w.ask("/events", body=sent, more=[("transfer-encoding", "chunked")])) + body


def name_of(key: str) -> str:
    return key.rpartition("/")[2]


# ------------------------------------------------------------------------------------------------ methods

METHODS = {
    "put": cell(lambda w: wire(w.ask("/events/new", method="PUT", body=b"abc"), b"abc"), "405 MethodNotAllowed"),
    "put-over-a-part": cell(lambda w: wire(w.ask(live(w), method="PUT", body=b"a"), b"a"), "405 MethodNotAllowed"),
    "put-unsigned": cell(lambda w: wire(w.plain("/events/new", method="PUT"), b"abc"), "403 AccessDenied"),
    "put-presigned": cell(lambda w: wire(w.link("/events/new", method="PUT"), b"abc"), "405 MethodNotAllowed"),
    "create-bucket": cell(lambda w: w.ask("/new", method="PUT"), "405 MethodNotAllowed"),
    "copy-of-another-tenants": cell(
        lambda w: w.ask("/events/new", method="PUT", more=[("x-amz-copy-source", quote(f"/private/{w.lake.rivals}"))]),
        "405 MethodNotAllowed",
    ),
    "upload-part": cell(
        lambda w: w.ask("/events/new", "partNumber=1&uploadId=x", method="PUT"), "405 MethodNotAllowed"
    ),
    "begin-upload": cell(lambda w: w.ask("/events/new", "uploads=", method="POST"), "405 MethodNotAllowed"),
    "delete": cell(lambda w: w.ask(live(w), method="DELETE"), "405 MethodNotAllowed"),
    "delete-presigned": cell(lambda w: w.link(live(w), method="DELETE"), "405 MethodNotAllowed"),
    "delete-bucket": cell(lambda w: w.ask("/events", method="DELETE"), "405 MethodNotAllowed"),
    "delete-many": cell(
        lambda w: wire(w.ask("/events", "delete=", method="POST", body=b"<Delete/>"), b"<Delete/>"),
        "405 MethodNotAllowed",
    ),
    "post-form": cell(
        lambda w: wire(w.plain("/events", method="POST", more=[("content-type", "multipart/form-data")]), b"--x"),
        "403 AccessDenied",
    ),
    "select": cell(lambda w: w.ask(live(w), "select=", method="POST"), "405 MethodNotAllowed"),
    "patch": cell(lambda w: w.ask(live(w), method="PATCH"), "405 MethodNotAllowed"),
    "propfind": cell(lambda w: w.ask("/events", method="PROPFIND"), "405 MethodNotAllowed"),
    "made-up": cell(lambda w: w.ask("/events", method="FROBNICATE"), "405 MethodNotAllowed"),
    "lower-case": cell(lambda w: w.ask("/events", method="get"), "403 SignatureDoesNotMatch"),
    "lower-case-signed-as-usual": cell(lambda w: replace(w.ask("/events"), method="get"), "405 MethodNotAllowed"),
    "huge": cell(lambda w: w.ask("/events", method="G" * 20_000), "405 MethodNotAllowed"),
    "control-character": cell(lambda w: w.ask("/events", method="G\x01T"), "400"),
    "options": cell(lambda w: w.ask("/events", method="OPTIONS"), "405 MethodNotAllowed"),
    "options-of-a-browser": cell(
        lambda w: w.plain("/events", method="OPTIONS", more=[("origin", "https://evil.example")]),
        "403 AccessDenied",
        check=has_no("access-control"),
    ),
    "options-of-all": cell(lambda w: w.ask("*", method="OPTIONS"), "400 InvalidURI"),
    "trace": cell(
        lambda w: w.ask("/events", method="TRACE", more=[("x-mirror", "see-me")]),
        "405 MethodNotAllowed",
        check=has_no("see-me"),
    ),
    "connect": cell(
        lambda w: w.ask(w.lake.server.endpoint.removeprefix("http://"), method="CONNECT"), "400 InvalidURI"
    ),
    "connect-unsigned": cell(lambda w: w.plain("localhost:443", method="CONNECT"), "403 AccessDenied"),
    "override-by-header": cell(
        lambda w: w.ask(live(w), more=[("x-http-method-override", "DELETE")]), "200", check=is_live("1")
    ),
    "replayed-get-as-head": cell(lambda w: replace(w.ask(live(w)), method="HEAD"), "403"),
    "replayed-head-as-get": cell(
        lambda w: replace(w.ask(live(w), method="HEAD"), method="GET"), "403 SignatureDoesNotMatch"
    ),
    "replayed-get-as-delete": cell(lambda w: replace(w.ask(live(w)), method="DELETE"), "403 SignatureDoesNotMatch"),
}

# ------------------------------------------------------------------------------------------------ buckets

BUCKETS = {
    "another-tenants": cell(lambda w: w.ask("/private"), "404 NoSuchBucket"),
    "another-tenants-object": cell(lambda w: w.ask(f"/private/{w.lake.rivals}"), "404 NoSuchBucket"),
    "another-tenants-scope": cell(lambda w: w.ask("/twos"), "404 NoSuchBucket"),
    "another-tenants-head": cell(lambda w: w.ask("/private", method="HEAD"), "404"),
    "same-name-is-ones-own": cell(
        lambda w: w.ask("/events", who=RIVAL), "200", check=lambda w, r: same(r.keys, [w.lake.rivals])
    ),
    "real": cell(lambda w: w.ask(f"/{BUCKET}"), "404 NoSuchBucket"),
    "real-with-key": cell(lambda w: w.ask(f"/{BUCKET}/{w.lake.stored('_data')}"), "404 NoSuchBucket"),
    "upper-case": cell(lambda w: w.ask("/EVENTS"), "404 NoSuchBucket"),
    "homoglyph": cell(lambda w: w.ask("/%D0%B5vents"), "404 NoSuchBucket"),
    "full-width": cell(lambda w: w.ask("/%EF%BD%85vents"), "404 NoSuchBucket"),
    "traversal": cell(lambda w: w.ask(f"/events/../private/{w.lake.rivals}"), "404 NoSuchKey"),
    "traversal-first": cell(lambda w: w.ask("/../private"), "404 NoSuchBucket"),
    "traversal-to-itself": cell(lambda w: w.ask("/private/../events"), "404 NoSuchBucket"),
    "traversal-encoded": cell(lambda w: w.ask("/%2e%2e/private"), "404 NoSuchBucket"),
    "traversal-twice-encoded": cell(lambda w: w.ask("/%252e%252e/private"), "404 NoSuchBucket"),
    "traversal-encoded-slash": cell(lambda w: w.ask("/..%2fprivate"), "404 NoSuchBucket"),
    "traversal-overlong": cell(lambda w: w.ask("/%c0%ae%c0%ae/private"), "400 InvalidURI"),
    "dot": cell(lambda w: w.ask("/./events"), "404 NoSuchBucket"),
    "backslash": cell(lambda w: w.ask("/events\\..\\private"), "404 NoSuchBucket"),
    "backslash-first": cell(lambda w: w.ask("\\private"), "400 InvalidURI"),
    "encoded-slash-is-a-slash": cell(lambda w: w.ask(f"/events%2F{w.lake.live['1']}"), "200", check=is_live("1")),
    "encoded-slash-to-another": cell(lambda w: w.ask(f"/private%2F{w.lake.rivals}"), "404 NoSuchBucket"),
    "double-slash": cell(lambda w: w.ask("//events"), "400 InvalidURI"),
    "double-slash-host": cell(lambda w: w.ask("//private.s3.test/events"), "400 InvalidURI"),
    "absolute-form": cell(lambda w: w.ask(f"http://{w.host}/events"), "400 InvalidURI"),
    "absolute-form-of-the-store": cell(lambda w: w.ask(f"{w.lake.server.endpoint}/{BUCKET}"), "400 InvalidURI"),
    "empty-target": cell(lambda w: w.ask("?list-type=2"), "400 InvalidURI"),
    "nul": cell(lambda w: w.ask("/events%00"), "404 NoSuchBucket"),
    "newline": cell(
        lambda w: w.ask("/events%0d%0aset-cookie:%20a=b"), "404 NoSuchBucket", check=has_no("\nset-cookie")
    ),
    "control-character": cell(lambda w: w.ask("/ev\x02ents"), "400"),
    "raw-high-byte": cell(lambda w: w.ask("/ev\xff"), "400"),
    "invalid-utf8": cell(lambda w: w.ask("/%ff%fe"), "400 InvalidURI"),
    "invalid-escape": cell(lambda w: w.ask("/%zz%"), "404 NoSuchBucket"),
    "markup": cell(lambda w: w.ask("/%3Cscript%3E"), "404 NoSuchBucket", check=has_no("<script")),
    "raw-markup": cell(lambda w: w.ask("/<script>&amp;]]>"), "404 NoSuchBucket", check=has_no("<script")),
    "huge": cell(lambda w: w.ask(f"/{'b' * 20_000}"), "404 NoSuchBucket"),
    "health-below": cell(lambda w: w.plain("/-/health/../../private"), "403 AccessDenied"),
    "health-signed-list": cell(lambda w: w.ask("/-/health", "list-type=2"), "200", check=says("ok")),
    "broken-table": cell(lambda w: w.ask("/broken"), "500 InternalError"),
    "broken-table-object": cell(lambda w: w.ask("/broken/x"), "500 InternalError"),
    "all-are-the-tenants": cell(
        lambda w: w.ask("/"),
        "200",
        check=lambda _, r: same(r.texts("Name"), ["broken", "events", "fixed", "old", "ones", "since"]),
    ),
    "replayed": cell(lambda w: replace(w.ask("/events"), path="/old"), "403 SignatureDoesNotMatch"),
}


def same(value: object, expected: object) -> None:
    assert value == expected


# ------------------------------------------------------------------------------------------------ times of buckets

TIMES = {
    "forbidden": cell(lambda w: w.ask(f"/fixed@{w.lake.before_ms}"), "403 AccessDenied"),
    "forbidden-plain": cell(lambda w: w.ask(f"/fixed--{w.lake.before_ms}"), "403 AccessDenied"),
    "forbidden-object": cell(lambda w: w.ask(dead(w, bucket=f"fixed@{w.lake.before_ms}")), "403 AccessDenied"),
    "before-the-earliest": cell(lambda w: w.ask(f"/since@{w.lake.before_ms}"), "403 AccessDenied"),
    "the-earliest": cell(lambda w: w.ask(f"/since@{w.lake.after_ms}"), "200", check=shows(*ALL)),
    "another-than-pinned": cell(lambda w: w.ask(f"/old@{w.lake.after_ms}"), "403 AccessDenied"),
    "live-part-is-not-in-pinned": cell(lambda w: w.ask(live(w, bucket="old")), "404 NoSuchKey"),
    "pinned-part-is-not-in-latest": cell(lambda w: w.ask(dead(w)), "404 NoSuchKey"),
    "allowed-shows-its-parts": cell(
        lambda w: w.ask(dead(w, bucket=f"events@{w.lake.before_ms}")), "200", check=is_dead("1")
    ),
    "scope-holds": cell(lambda w: w.ask(dead(w, "2", f"ones@{w.lake.before_ms}")), "404 NoSuchKey"),
    "scope-holds-for-a-prefix-of-it": cell(lambda w: w.ask(dead(w, "10", f"ones@{w.lake.before_ms}")), "404 NoSuchKey"),
    "another-tenants": cell(lambda w: w.ask(f"/private@{w.lake.before_ms}"), "404 NoSuchBucket"),
    "zero": cell(lambda w: w.ask("/events@0"), "400 InvalidArgument"),
    "seconds": cell(lambda w: w.ask(f"/events@{w.lake.before_ms // 1000}"), "400 InvalidArgument"),
    "before-the-table": cell(lambda w: w.ask("/events@2001-01-01T00:00:00Z"), "400 InvalidArgument"),
    "future": cell(lambda w: w.ask("/events@9999999999999999"), "400 InvalidArgument"),
    "future-plain": cell(lambda w: w.ask("/events--9999999999999"), "400 InvalidArgument"),
    "huge": cell(lambda w: w.ask(f"/events@{'9' * 15_000}"), "400 InvalidArgument"),
    "negative": cell(lambda w: w.ask("/events@-1"), "400 InvalidArgument"),
    "float": cell(lambda w: w.ask("/events@1e400"), "400 InvalidArgument"),
    "unicode-digits": cell(lambda w: w.ask(f"/events@{quote('١٧٩٥٣٤٨٣٦٠٣١٢')}"), "400 InvalidArgument"),
    "without-zone": cell(lambda w: w.ask("/events@2026-11-21T00:00:00"), "400 InvalidArgument"),
    "beyond-the-calendar": cell(lambda w: w.ask("/events@0001-01-01T00:00:00%2B23:59"), "400 InvalidArgument"),
    "empty": cell(lambda w: w.ask("/events@"), "400 InvalidArgument"),
    "twice": cell(lambda w: w.ask(f"/events@{w.lake.before_ms}@{w.lake.before_ms}"), "400 InvalidArgument"),
    "nul": cell(lambda w: w.ask(f"/events@{w.lake.before_ms}%00"), "400 InvalidArgument"),
    "without-bucket": cell(lambda w: w.ask(f"/@{w.lake.before_ms}"), "404 NoSuchBucket"),
    "without-bucket-object": cell(lambda w: w.ask(dead(w, bucket=f"@{w.lake.before_ms}")), "404 NoSuchBucket"),
}

# ------------------------------------------------------------------------------------------------ keys

KEYS = {
    "dead": cell(lambda w: w.ask(dead(w)), "404 NoSuchKey"),
    "dead-head": cell(lambda w: w.ask(dead(w), method="HEAD"), "404"),
    "dead-presigned": cell(lambda w: w.link(dead(w)), "404 NoSuchKey"),
    "dead-part-number": cell(lambda w: w.ask(dead(w), "partNumber=1"), "404 NoSuchKey"),
    "dead-version": cell(lambda w: w.ask(dead(w), "versionId=null"), "404 NoSuchKey"),
    "outside-the-scope": cell(lambda w: w.ask(live(w, "2", "ones")), "404 NoSuchKey"),
    "beside-the-scope": cell(lambda w: w.ask(live(w, "10", "ones")), "404 NoSuchKey"),
    "outside-the-scope-head": cell(lambda w: w.ask(live(w, "2", "ones"), method="HEAD"), "404"),
    "outside-the-scope-by-traversal": cell(
        lambda w: w.ask(f"/ones/d=2026-11-21/u=1/../u=2/{name_of(w.lake.live['2'])}"), "404 NoSuchKey"
    ),
    "outside-the-scope-by-double-slash": cell(
        lambda w: w.ask(f"/ones/d=2026-11-21/u=1//u=2/{name_of(w.lake.live['2'])}"), "404 NoSuchKey"
    ),
    "another-partition-of-the-same-id": cell(
        lambda w: w.ask(f"/ones/d=2026-11-21/u=1/{name_of(w.lake.live['2'])}"), "404 NoSuchKey"
    ),
    "another-tenants": cell(lambda w: w.ask(f"/events/{w.lake.rivals}"), "404 NoSuchKey"),
    "another-tenants-by-traversal": cell(
        lambda w: w.ask(f"/events/../../private/_data/{w.lake.rivals}"), "404 NoSuchKey"
    ),
    "log": cell(lambda w: w.ask(f"/events/_log/{name_of(w.lake.stored('_log'))}"), "404 NoSuchKey"),
    "log-by-traversal": cell(lambda w: w.ask(f"/events/../_log/{name_of(w.lake.stored('_log'))}"), "404 NoSuchKey"),
    "log-by-encoded-traversal": cell(
        lambda w: w.ask(f"/events/%2e%2e%2f_log%2f{name_of(w.lake.stored('_log'))}"), "404 NoSuchKey"
    ),
    "log-by-twice-encoded-traversal": cell(
        lambda w: w.ask(f"/events/%252e%252e%252f_log%252f{name_of(w.lake.stored('_log'))}"), "404 NoSuchKey"
    ),
    "log-by-backslash": cell(lambda w: w.ask(f"/events/..\\_log\\{name_of(w.lake.stored('_log'))}"), "404 NoSuchKey"),
    "spec": cell(lambda w: w.ask("/events/_table.json"), "404 NoSuchKey"),
    "spec-by-traversal": cell(lambda w: w.ask("/events/../_table.json"), "404 NoSuchKey"),
    "claim": cell(lambda w: w.ask("/events/_claims/epoch-1.json"), "404 NoSuchKey"),
    "claim-by-traversal": cell(lambda w: w.ask("/events/../_claims/epoch-1.json"), "404 NoSuchKey"),
    "real": cell(lambda w: w.ask(f"/events/{w.lake.prefix}/events/_data/{w.lake.live['1']}"), "404 NoSuchKey"),
    "data-prefix": cell(lambda w: w.ask(f"/events/_data/{w.lake.live['1']}"), "404 NoSuchKey"),
    "leading-slash": cell(lambda w: w.ask(f"/events//{w.lake.live['1']}"), "404 NoSuchKey"),
    "trailing-slash": cell(lambda w: w.ask(f"{live(w)}/"), "404 NoSuchKey"),
    "trailing-dot": cell(lambda w: w.ask(f"{live(w)}."), "404 NoSuchKey"),
    "folder": cell(lambda w: w.ask("/events/d=2026-11-21/"), "404 NoSuchKey"),
    "upper-case": cell(lambda w: w.ask(f"/events/{w.lake.live['1'].upper()}"), "404 NoSuchKey"),
    "escaped-letters-are-the-same": cell(
        lambda w: w.ask(f"/events/{w.lake.live['1'].replace('d=', '%64%3d')}"), "200", check=is_live("1")
    ),
    "escaped-twice": cell(lambda w: w.ask(f"/events/{quote(quote(w.lake.live['1']))}"), "404 NoSuchKey"),
    "nul": cell(lambda w: w.ask(f"{live(w)}%00"), "404 NoSuchKey"),
    "nul-before-suffix": cell(lambda w: w.ask(f"{dead(w)}%00.parquet"), "404 NoSuchKey"),
    "newline": cell(lambda w: w.ask(f"{live(w)}%0d%0ax-evil:%201"), "404 NoSuchKey", check=has_no("\nx-evil")),
    "raw-control-character": cell(lambda w: w.ask(f"{live(w)}\x0b"), "400"),
    "invalid-utf8": cell(lambda w: w.ask(f"{live(w)}%ff"), "400 InvalidURI"),
    "surrogate": cell(lambda w: w.ask(f"{live(w)}%ed%a0%80"), "400 InvalidURI"),
    "invalid-escape": cell(lambda w: w.ask(f"{live(w)}%"), "404 NoSuchKey"),
    "noncharacter": cell(lambda w: w.ask(f"/events/{quote(chr(0xFFFF))}"), "404 NoSuchKey"),
    "wildcard": cell(lambda w: w.ask("/events/d=2026-11-21/u=1/*.parquet"), "404 NoSuchKey"),
    "huge": cell(lambda w: w.ask(f"/events/{'k' * 25_000}"), "404 NoSuchKey"),
    "many-slashes": cell(lambda w: w.ask(f"/events{'/' * 20_000}"), "404 NoSuchKey"),
    "fragment": cell(lambda w: w.ask(f"{live(w)}#x"), "404 NoSuchKey"),
    "replayed": cell(lambda w: replace(w.ask(live(w)), path=live(w, "2")), "403 SignatureDoesNotMatch"),
}

# ------------------------------------------------------------------------------------------------ parameters


def listed(query: str, bucket: str = "events", who: Key = ACME) -> Callable[[AttackedProxy], S3Request]:
    return lambda w: w.ask(f"/{bucket}", f"list-type=2&{query}", who)


def token(*fields: object) -> str:
    return quote(base64.urlsafe_b64encode(json.dumps(fields).encode()))


def token_of(w: AttackedProxy, bucket: str, who: Key = ACME) -> list[object]:
    """Return the decoded continuation token of a page of one key."""
    [text] = w.send(w.ask(f"/{bucket}", "list-type=2&max-keys=1", who)).texts("NextContinuationToken")
    fields: list[object] = json.loads(base64.urlsafe_b64decode(text))
    return fields


def with_token(
    bucket: str, *, of: str, who: Key = ACME, change: Callable[[list[object]], list[object]] = list
) -> Callable[[AttackedProxy], S3Request]:
    """Request a page of a bucket with the token of another listing, changed or not."""
    return lambda w: listed(f"continuation-token={token(*change(token_of(w, of, who)))}", bucket)(w)


def subresource(name: str) -> Callable[[AttackedProxy], S3Request]:
    return lambda w: w.ask("/events", f"{name}=")


SUBRESOURCES = ("acl", "versions", "uploads", "policy", "tagging", "delete", "replication", "website")
PARAMETERS = {
    "token-is-good": cell(with_token("old", of="old"), "200", check=lambda w, r: same(len(r.keys), 5)),
    "token-of-another-time": cell(with_token("events", of="old"), "400 InvalidArgument"),
    "token-of-another-time-made-new": cell(
        with_token("fixed", of="old", change=lambda f: [SystemClock().now_ms(), *f[1:]]), "400 InvalidArgument"
    ),
    "token-of-the-latest-for-pinned": cell(with_token("old", of="events"), "400 InvalidArgument"),
    "token-of-another-bucket": cell(with_token("ones", of="old"), "400 InvalidArgument"),
    "token-of-another-tenant": cell(
        lambda w: listed(f"continuation-token={token(w.lake.before_ms, '0' * 16, w.lake.rivals)}")(w),
        "400 InvalidArgument",
    ),
    "token-with-another-snapshot": cell(
        with_token("old", of="old", change=lambda f: [f[0], "0" * 16, f[2]]), "400 InvalidArgument"
    ),
    "token-from-the-beginning": cell(
        with_token("old", of="old", change=lambda f: [*f[:2], ""]), "200", check=lambda w, r: same(len(r.keys), 6)
    ),
    "token-after-a-traversal": cell(
        with_token("old", of="old", change=lambda f: [*f[:2], "../../private"]),
        "200",
        check=lambda w, r: same(len(r.keys), 6),
    ),
    "token-negative-time": cell(listed(f"continuation-token={token(-1, 'x', '')}"), "400 InvalidArgument"),
    "token-huge-time": cell(listed(f"continuation-token={token(10**4000, 'x', '')}"), "400 InvalidArgument"),
    "token-other-types": cell(listed(f"continuation-token={token('0', 0, None)}"), "400 InvalidArgument"),
    "token-too-long": cell(listed(f"continuation-token={token(0, '', '', '')}"), "400 InvalidArgument"),
    "token-deep": cell(listed(f"continuation-token={quote(base64.b64encode(b'[' * 15_000))}"), "400 InvalidArgument"),
    "token-garbage": cell(listed("continuation-token=%3Cx%3E"), "400 InvalidArgument", check=has_no("<x>")),
    "token-empty": cell(listed("continuation-token="), "400 InvalidArgument"),
    "token-unicode": cell(listed(f"continuation-token={quote('ⅷ')}"), "400 InvalidArgument"),
    "token-twice": cell(listed("continuation-token=a&continuation-token=b"), "400 InvalidArgument"),
    "prefix-of-the-log": cell(listed("prefix=_log/"), "200", check=shows()),
    "prefix-traversal": cell(listed("prefix=../"), "200", check=shows()),
    "prefix-outside-the-scope": cell(listed("prefix=d%3D2026-11-21/u%3D2", "ones"), "200", check=shows()),
    "prefix-beside-the-scope": cell(listed("prefix=d%3D2026-11-21/u%3D1", "ones"), "200", check=shows("1")),
    "start-after-outside-the-scope": cell(listed("start-after=d%3D2026-11-21/u%3D10", "ones"), "200", check=shows()),
    "delimiter-outside-the-scope": cell(
        listed("delimiter=/&prefix=d%3D2026-11-21/", "ones"),
        "200",
        check=lambda _, r: same(r.texts("Prefix"), ["d=2026-11-21/", "d=2026-11-21/u=1/"]),
    ),
    "marker-of-another-listing": cell(
        lambda w: w.ask("/ones", f"marker={quote(w.lake.dead['1'])}"),
        "200",
        check=lambda w, r: same(set(r.keys) - {w.lake.live["1"]}, set()),
    ),
    "prefix-markup": cell(
        listed("prefix=%3C/Prefix%3E%3CKey%3Ex%3C/Key%3E%5D%5D%3E%26lol;"),
        "200",
        check=lambda _, r: same((r.texts("Prefix"), r.keys), (["</Prefix><Key>x</Key>]]>&lol;"], [])),
    ),
    "prefix-control-characters": cell(listed("prefix=%00%01%0d%0a%1b%7f%c2%85"), "200", check=shows()),
    "prefix-noncharacter": cell(listed(f"prefix={quote(chr(0xFFFF) + chr(0xFFFE))}"), "200", check=shows()),
    "prefix-last-character": cell(listed(f"prefix={quote(chr(0x10FFFF))}"), "200", check=shows()),
    "prefix-before-surrogates": cell(listed(f"prefix={quote(chr(0xD7FF))}&encoding-type=url"), "200", check=shows()),
    "prefix-surrogate": cell(listed("prefix=%ed%a0%80"), "400 InvalidURI"),
    "prefix-invalid-utf8": cell(listed("prefix=%ff"), "400 InvalidURI"),
    "prefix-huge": cell(listed(f"prefix={'p' * 20_000}"), "200", check=shows()),
    "prefix-twice": cell(listed("prefix=a&prefix=b"), "400 InvalidArgument"),
    "delimiter-control-characters": cell(listed("delimiter=%00%1f"), "200", check=shows(*ALL)),
    "delimiter-huge": cell(listed(f"delimiter={'/' * 20_000}"), "200", check=shows(*ALL)),
    "marker-noncharacter": cell(lambda w: w.ask("/events", f"marker={quote(chr(0xFFFE))}"), "200", check=shows()),
    "max-keys-negative": cell(listed("max-keys=-1"), "400 InvalidArgument"),
    "max-keys-huge": cell(listed(f"max-keys={'9' * 5_000}"), "400 InvalidArgument"),
    "max-keys-large-is-cut": cell(
        listed("max-keys=2147483647"), "200", check=lambda _, r: same(r.texts("MaxKeys"), ["1000"])
    ),
    "max-keys-unicode-digits": cell(listed(f"max-keys={quote('１٢')}"), "400 InvalidArgument"),
    "max-keys-superscript-digit": cell(listed("max-keys=%C2%B2"), "400 InvalidArgument"),
    "max-keys-float": cell(listed("max-keys=1e1"), "400 InvalidArgument"),
    "max-keys-zero-ends": cell(listed("max-keys=0"), "200", check=lambda _, r: same(r.texts("IsTruncated"), ["false"])),
    "max-keys-twice": cell(listed("max-keys=1&max-keys=1000"), "400 InvalidArgument"),
    "list-type-unknown": cell(lambda w: w.ask("/events", "list-type=3"), "400 InvalidArgument"),
    "list-type-twice": cell(lambda w: w.ask("/events", "list-type=2&list-type=1"), "400 InvalidArgument"),
    "encoding-unknown": cell(listed("encoding-type=xml"), "400 InvalidArgument"),
    "version": cell(lambda w: w.ask(live(w), "versionId=1"), "404 NoSuchVersion"),
    "part-number-zero": cell(lambda w: w.ask(live(w), "partNumber=0"), "400 InvalidArgument"),
    "part-number-second": cell(lambda w: w.ask(live(w), "partNumber=2"), "416 InvalidPartNumber"),
    "part-number-unicode": cell(lambda w: w.ask(live(w), "partNumber=%EF%BC%91"), "400 InvalidArgument"),
    "answers-headers": cell(lambda w: w.ask(live(w), "response-content-type=text/html"), "501 NotImplemented"),
    **{f"subresource-{n}": cell(subresource(n), "501 NotImplemented") for n in SUBRESOURCES},
    "encryption-of-the-clients": cell(
        lambda w: w.ask(live(w), more=[("x-amz-server-side-encryption-customer-key", "x")]), "501 NotImplemented"
    ),
    "larger-than-a-head": cell(listed(f"a={'b' * 40_000}"), "400 RequestHeaderSectionTooLarge"),
    "hundred": cell(listed("&".join(["a"] * 99)), "200", check=shows(*ALL)),
    "hundred-and-one": cell(listed("&".join(["a"] * 100)), "400 InvalidArgument"),
    "ten-thousand": cell(listed("&".join(["a"] * 10_000)), "400 InvalidArgument"),
    "ten-thousand-unsigned": cell(lambda w: w.plain("/events", "&".join(["a"] * 10_000)), "400 InvalidArgument"),
    "only-separators": cell(listed("&" * 20_000), "400 InvalidArgument"),
    "huge": cell(listed(f"a={'b' * HUGE}"), "400", cut=True),
    "nul-in-name": cell(listed("prefix%00=x"), "200", check=shows(*ALL)),
    "raw-control-character": cell(listed("prefix=\x01"), "400"),
    "second-question-mark": cell(lambda w: w.ask("/events", "list-type=2&prefix=?x"), "200", check=shows()),
    "unsigned-more": cell(
        lambda w: (r := w.ask("/events", "list-type=2")) and replace(r, query=f"{r.query}&prefix=u"),
        "403 SignatureDoesNotMatch",
    ),
    "unsigned-less": cell(
        lambda w: replace(w.ask("/events", "list-type=2&prefix=u"), query="list-type=2"), "403 SignatureDoesNotMatch"
    ),
}

# ------------------------------------------------------------------------------------------------ who asks


def authorization(text: str) -> Callable[[AttackedProxy], S3Request]:
    """Send any text as the Authorization header."""
    return lambda w: with_header(w.ask("/events"), "authorization", lambda _: text)


def in_authorization(old: str, new: str) -> Callable[[AttackedProxy], S3Request]:
    """Replace a part of the correct header, by a pattern."""
    return changed("authorization", lambda v: re.sub(old, new, v, count=1))


def other_digit(text: str) -> str:
    return ("0" if text[-1] != "0" else "1").join([text[:-1], ""])


AUTHORIZATIONS = {
    "missing": cell(lambda w: w.plain("/events"), "403 AccessDenied"),
    "missing-for-an-object": cell(lambda w: w.plain(live(w)), "403 AccessDenied"),
    "missing-for-what-is-not-there": cell(lambda w: w.plain("/nobody-has-this"), "403 AccessDenied"),
    "missing-for-all-buckets": cell(lambda w: w.plain("/"), "403 AccessDenied"),
    "empty": cell(authorization(""), "400 InvalidRequest"),
    "unknown-key": cell(lambda w: w.ask("/events", who=NOBODY), "403 InvalidAccessKeyId"),
    "wrong-secret": cell(lambda w: w.ask("/events", who=Key(ACME.id, "wrong")), "403 SignatureDoesNotMatch"),
    "empty-secret": cell(lambda w: w.ask("/events", who=Key(ACME.id, "")), "403 SignatureDoesNotMatch"),
    "another-tenants-secret": cell(
        lambda w: w.ask("/events", who=Key(ACME.id, RIVAL.secret)), "403 SignatureDoesNotMatch"
    ),
    "another-tenants-id": cell(in_authorization(ACME.id, RIVAL.id), "403 SignatureDoesNotMatch"),
    "lower-case-id": cell(lambda w: w.ask("/events", who=Key(ACME.id.lower(), ACME.secret)), "403 InvalidAccessKeyId"),
    "key-of-the-store": cell(
        lambda w: w.ask("/events", who=Key(w.lake.server.access_key_id, w.lake.server.secret_access_key)),
        "403 InvalidAccessKeyId",
    ),
    "tampered": cell(in_authorization(r"[0-9a-f]{8}$", "00000000"), "403 SignatureDoesNotMatch"),
    "zeros": cell(in_authorization(r"[0-9a-f]{64}$", "0" * 64), "403 SignatureDoesNotMatch"),
    "upper-case-signature": cell(
        changed("authorization", lambda v: v[:-64] + v[-64:].upper()), "400 AuthorizationHeaderMalformed"
    ),
    "short-signature": cell(in_authorization(r"[0-9a-f]$", ""), "400 AuthorizationHeaderMalformed"),
    "empty-signature": cell(in_authorization(r"Signature=.*", "Signature="), "400 AuthorizationHeaderMalformed"),
    "other-region": cell(in_authorization("/eu-central-1/", "/us-east-1/"), "403 SignatureDoesNotMatch"),
    "other-service": cell(in_authorization("/s3/", "/iam/"), "400 AuthorizationHeaderMalformed"),
    "other-day": cell(in_authorization(r"/20\d{6}/", "/20010101/"), "400 AuthorizationHeaderMalformed"),
    "fewer-signed-headers": cell(in_authorization("SignedHeaders=host;", "SignedHeaders="), "403 AccessDenied"),
    "more-signed-headers": cell(in_authorization("SignedHeaders=", "SignedHeaders=a;"), "403 SignatureDoesNotMatch"),
    "many-signed-headers": cell(
        in_authorization("SignedHeaders=", f"SignedHeaders={'a;' * 1_000}"), "400 AuthorizationHeaderMalformed"
    ),
    "other-order": cell(in_authorization("host;x-amz", "x-amz;host"), "400 AuthorizationHeaderMalformed"),
    "other-algorithm": cell(in_authorization("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256"), "400 InvalidRequest"),
    "version-2": cell(authorization(f"AWS {ACME.id}:c2lnbmF0dXJl"), "400 InvalidRequest"),
    "basic": cell(
        authorization(f"Basic {base64.b64encode(f'{ACME.id}:{ACME.secret}'.encode()).decode()}"), "400 InvalidRequest"
    ),
    "bearer": cell(authorization("Bearer eyJhbGciOiJub25lIn0.e30."), "400 InvalidRequest"),
    "duplicated": cell(
        lambda w: (r := w.ask("/events")) and replace(r, headers=(*r.headers, r.headers[-1])), "400 InvalidRequest"
    ),
    "both-ways": cell(
        lambda w: w.sign(replace(w.link("/events"), headers=w.plain("/").headers)), "400 InvalidArgument"
    ),
    "huge": cell(authorization("AWS4-HMAC-SHA256 " + "C" * 25_000), "400 AuthorizationHeaderMalformed"),
    "commas": cell(authorization("AWS4-HMAC-SHA256 " + "," * 25_000), "400 AuthorizationHeaderMalformed"),
    "id-traversal": cell(in_authorization(ACME.id, "../../etc/passwd"), "400 AuthorizationHeaderMalformed"),
    "id-statement": cell(in_authorization(ACME.id, "'OR'1'='1"), "400 AuthorizationHeaderMalformed"),
    "id-markup": cell(in_authorization(ACME.id, "<x>"), "400 AuthorizationHeaderMalformed", check=has_no("<x>")),
    "invalid-utf8": cell(authorization("AWS4-HMAC-SHA256 \xff\xfe"), "400 AuthorizationHeaderMalformed"),
    "nul": cell(authorization("AWS4-HMAC-SHA256 \0"), "400"),
}

DATES = {
    "missing": cell(lambda w: w.sign(replace(p := w.plain("/events"), headers=p.headers[:2])), "403 AccessDenied"),
    "expired": cell(lambda w: w.ask("/events", at=w.at(-1_000)), "403 RequestTimeTooSkewed"),
    "future": cell(lambda w: w.ask("/events", at=w.at(1_000)), "403 RequestTimeTooSkewed"),
    "replayed-later": cell(
        lambda w: with_header(w.ask("/events", at=w.at(-1_000)), "x-amz-date", lambda _: w.at()),
        "403 SignatureDoesNotMatch",
    ),
    "tampered": cell(
        lambda w: with_header(w.ask("/events"), "x-amz-date", lambda _: w.at(-1)), "403 SignatureDoesNotMatch"
    ),
    "duplicated": cell(
        lambda w: (r := w.ask("/events")) and replace(r, headers=(*r.headers, ("x-amz-date", w.at()))),
        "400 InvalidRequest",
    ),
    "malformed": cell(changed("x-amz-date", "now"), "403 AccessDenied"),
    "no-such-day": cell(changed("x-amz-date", "20260230T000000Z"), "403 AccessDenied"),
    "year-zero": cell(changed("x-amz-date", "00000101T000000Z"), "403 AccessDenied"),
    "unicode-digits": cell(changed("x-amz-date", lambda v: v.replace("2", "\xd9\xa2")), "403 AccessDenied"),
    "huge": cell(changed("x-amz-date", lambda v: v * 1_000), "403 AccessDenied"),
}

PAYLOADS = {
    "missing": cell(
        lambda w: w.sign(replace(p := w.plain("/events"), headers=(p.headers[0], p.headers[2]))), "400 InvalidRequest"
    ),
    "tampered": cell(changed("x-amz-content-sha256", other_digit), "403 SignatureDoesNotMatch"),
    "duplicated": cell(
        lambda w: (r := w.ask("/events")) and replace(r, headers=(*r.headers, r.headers[1])), "400 InvalidRequest"
    ),
    "malformed": cell(changed("x-amz-content-sha256", "none"), "400 InvalidArgument"),
    "of-another-body": cell(lambda w: w.ask("/events", body=b"abc"), "400 XAmzContentSHA256Mismatch"),
    "body-not-signed": cell(lambda w: wire(w.ask("/events"), b"abc"), "400 XAmzContentSHA256Mismatch"),
    "huge": cell(changed("x-amz-content-sha256", lambda v: v * 300), "400 InvalidArgument"),
}

TOKENS = {
    "signed": cell(lambda w: w.ask("/events", more=[("x-amz-security-token", "x")]), "400 InvalidToken"),
    "unsigned": cell(plus(("x-amz-security-token", "x"), path=events), "400 InvalidToken"),
    "empty": cell(lambda w: w.ask("/events", more=[("x-amz-security-token", "")]), "400 InvalidToken"),
    "in-query": cell(lambda w: w.link("/events", "X-Amz-Security-Token=x"), "400 InvalidToken"),
    "huge": cell(lambda w: w.ask("/events", more=[("x-amz-security-token", "x" * 20_000)]), "400 InvalidToken"),
}

# ------------------------------------------------------------------------------------------------ presigned addresses


def tampered(name: str, change: Callable[[str], str | None]) -> Callable[[AttackedProxy], S3Request]:
    """Change or remove a parameter of a valid presigned URL."""
    return lambda w: with_parameter(w.link(live(w)), name, change)


def doubled(name: str) -> Callable[[AttackedProxy], S3Request]:
    def send(w: AttackedProxy) -> S3Request:
        link = w.link(live(w))
        value = link.parameter(name) or ""
        return replace(link, query=f"{link.query}&{name}={quote(value, safe='')}")

    return send


IN_ADDRESS = ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature")
MALFORMED = "400 AuthorizationQueryParametersError"
MISMATCH = "403 SignatureDoesNotMatch"
ADDRESSES = {
    "good": cell(lambda w: w.link(live(w)), "200", check=is_live("1")),
    **{f"without-{n}": cell(tampered(f"X-Amz-{n}", lambda _: None), MALFORMED) for n in IN_ADDRESS},
    **{f"twice-{n}": cell(doubled(f"X-Amz-{n}"), MALFORMED) for n in IN_ADDRESS},
    "tampered-Algorithm": cell(tampered("X-Amz-Algorithm", lambda _: "AWS4-HMAC-SHA1"), "400 InvalidRequest"),
    "tampered-Credential": cell(tampered("X-Amz-Credential", lambda v: v.replace(ACME.id, RIVAL.id)), MISMATCH),
    "tampered-Credential-region": cell(tampered("X-Amz-Credential", lambda v: v.replace("eu-", "us-")), MISMATCH),
    "tampered-Date": cell(lambda w: with_parameter(w.link(live(w)), "X-Amz-Date", lambda _: w.at(-1)), MISMATCH),
    "tampered-Expires": cell(tampered("X-Amz-Expires", lambda _: "601"), MISMATCH),
    "tampered-SignedHeaders": cell(tampered("X-Amz-SignedHeaders", lambda _: "connection%3Bhost"), MISMATCH),
    "tampered-SignedHeaders-none": cell(tampered("X-Amz-SignedHeaders", lambda _: "connection"), "403 AccessDenied"),
    "tampered-Signature": cell(tampered("X-Amz-Signature", other_digit), MISMATCH),
    "lower-case-names": cell(
        lambda w: replace(r := w.link(live(w)), query=r.query.replace("X-Amz-", "x-amz-")), "403 AccessDenied"
    ),
    "expired": cell(lambda w: w.link(live(w), at=w.at(-700)), "403 AccessDenied", check=says("expired")),
    "expired-made-longer": cell(
        lambda w: with_parameter(w.link(live(w), at=w.at(-700)), "X-Amz-Expires", lambda _: "6000"), MISMATCH
    ),
    "future": cell(lambda w: w.link(live(w), at=w.at(1_000)), "403 AccessDenied", check=says("not valid yet")),
    "longer-than-a-week": cell(lambda w: w.link(live(w), expires="604801"), MALFORMED),
    "huge-expires": cell(lambda w: w.link(live(w), expires="9" * 5_000), MALFORMED),
    "negative-expires": cell(lambda w: w.link(live(w), expires="-1"), MALFORMED),
    "replayed-to-another-bucket": cell(lambda w: replace(w.link(live(w)), path=live(w, bucket="old")), MISMATCH),
    "replayed-to-another-key": cell(lambda w: replace(w.link(live(w)), path=live(w, "2")), MISMATCH),
    "replayed-to-the-bucket": cell(lambda w: replace(w.link(live(w)), path="/events"), MISMATCH),
    "replayed-as-head": cell(lambda w: replace(w.link(live(w)), method="HEAD"), "403"),
    "replayed-with-more": cell(
        lambda w: (r := w.link("/events", "prefix=x")) and replace(r, query=f"{r.query}&delimiter=x"), MISMATCH
    ),
    "replayed-with-another-prefix": cell(
        lambda w: replace(r := w.link("/events", "prefix=x"), query=r.query.replace("prefix=x", "prefix=")), MISMATCH
    ),
    "replayed-on-another-host": cell(
        lambda w: with_header(w.link("/", host="events.s3.test"), "host", lambda _: "old.s3.test"), MISMATCH
    ),
    "with-unsigned-header": cell(
        lambda w: (r := w.link(live(w))) and replace(r, headers=(*r.headers, ("x-amz-meta-a", "b"))), "403 AccessDenied"
    ),
    "another-tenants-key": cell(lambda w: w.link("/old", who=RIVAL), "404 NoSuchBucket"),
    "unknown-key": cell(lambda w: w.link("/events", who=NOBODY), "403 InvalidAccessKeyId"),
    "version-2": cell(
        lambda w: S3Request(
            "GET", live(w), f"AWSAccessKeyId={ACME.id}&Signature=x&Expires=9999999999", (("host", w.host),)
        ),
        "400 InvalidRequest",
    ),
}

# ------------------------------------------------------------------------------------------------ other headers


HOSTS = {
    "tampered": cell(changed("host", "s3.test"), MISMATCH),
    "missing": cell(changed("host", None), "400"),
    "unsigned": cell(
        lambda w: w.sign(w.plain("/events"), names=["x-amz-content-sha256", "x-amz-date"]), "403 AccessDenied"
    ),
    "duplicated": cell(plus(("host", "old.s3.test")), "400"),
    "empty": cell(changed("host", ""), MISMATCH),
    "of-ones-own-bucket": cell(lambda w: w.ask("/", host="events.s3.test"), "200", check=shows(*ALL)),
    "of-another-tenants-bucket": cell(lambda w: w.ask(f"/{w.lake.rivals}", host="private.s3.test"), "404 NoSuchBucket"),
    "and-bucket-in-the-path": cell(lambda w: w.ask(live(w), host="private.s3.test"), "404 NoSuchBucket"),
    "dots": cell(lambda w: w.ask("/", host="..s3.test"), "404 NoSuchBucket"),
    "traversal": cell(lambda w: w.ask("/", host="events/../private.s3.test"), "404 NoSuchBucket"),
    "time": cell(lambda w: w.ask("/", host=f"fixed--{w.lake.before_ms}.s3.test"), "403 AccessDenied"),
    "of-the-store": cell(
        lambda w: w.ask("/events", host=w.lake.server.endpoint.removeprefix("http://")), "200", check=shows(*ALL)
    ),
    "huge": cell(lambda w: w.ask("/", host=f"{'h' * 20_000}.s3.test"), "404 NoSuchBucket"),
    "invalid-utf8": cell(changed("host", "\xff"), "400 InvalidRequest"),
}

RANGES = {
    "many": cell(plus(("range", "bytes=" + ",".join(["0-"] * 5_000))), "200", check=is_live("1")),
    "overlapping": cell(plus(("range", "bytes=0-9,5-14,0-")), "200", check=is_live("1")),
    "duplicated": cell(plus(("range", "bytes=0-1"), ("range", "bytes=0-2")), "400 InvalidRequest"),
    "beyond": cell(plus(("range", "bytes=999999999-")), "416 InvalidRange"),
    "beyond-the-end-is-cut": cell(plus(("range", "bytes=0-999999999999999999")), "206", check=is_live("1")),
    "suffix-of-nothing": cell(plus(("range", "bytes=-0")), "416 InvalidRange"),
    "suffix-of-more-than-all": cell(plus(("range", "bytes=-999999999")), "206", check=is_live("1")),
    "reversed": cell(plus(("range", "bytes=9-1")), "200", check=is_live("1")),
    "negative": cell(plus(("range", "bytes=--5")), "200", check=is_live("1")),
    "huge-number": cell(plus(("range", f"bytes=0-{'9' * 20_000}")), "200", check=is_live("1")),
    "other-unit": cell(plus(("range", "rows=0-5")), "200", check=is_live("1")),
    "unicode-digits": cell(plus(("range", "bytes=\xd9\xa1-\xd9\xa2")), "200", check=is_live("1")),
    "invalid-utf8": cell(plus(("range", "bytes=\xff-")), "200", check=is_live("1")),
    "tampered-when-signed": cell(
        lambda w: with_header(w.ask(live(w), more=[("range", "bytes=0-1")]), "range", lambda _: "bytes=0-9"), MISMATCH
    ),
    "of-a-dead-part": cell(plus(("range", "bytes=0-1"), path=dead), "404 NoSuchKey"),
    "with-part-number": cell(
        lambda w: w.ask(live(w), "partNumber=1", more=[("range", "bytes=0-1")]), "400 InvalidRequest"
    ),
}

CONDITIONS = {
    "other-etag": cell(plus(("if-match", '"0"')), "412 PreconditionFailed"),
    "huge-list": cell(plus(("if-none-match", ",".join(['"x"'] * 5_000))), "200", check=is_live("1")),
    "any": cell(plus(("if-none-match", "*")), "304"),
    "duplicated": cell(plus(("if-match", "*"), ("if-match", '"0"')), "400 InvalidRequest"),
    "of-a-dead-part": cell(plus(("if-none-match", "*"), path=dead), "404 NoSuchKey"),
    "of-another-tenants": cell(
        plus(("if-none-match", "*"), path=lambda w: f"/private/{w.lake.rivals}"), "404 NoSuchBucket"
    ),
    "no-date": cell(plus(("if-modified-since", "Mon, 99 Foo 99999999999 99:99:99 +999999")), "200"),
    "before-the-calendar": cell(
        plus(("if-unmodified-since", "Mon, 01 Jan 0001 00:00:00 +2359")), "412 PreconditionFailed"
    ),
    "huge-date": cell(plus(("if-modified-since", "9" * 20_000)), "200"),
    "invalid-utf8": cell(plus(("if-match", "\xff\xfe")), "412 PreconditionFailed"),
    "range-of-another": cell(plus(("if-range", '"0"'), ("range", "bytes=0-1")), "200", check=is_live("1")),
}

FORWARDED = {
    "for": cell(plus(("x-forwarded-for", "10.0.0.1"), ("forwarded", "for=10.0.0.1")), "200"),
    "host": cell(plus(("x-forwarded-host", "private.s3.test")), "200", check=is_live("1")),
    "path": cell(
        plus(("x-original-url", "/private"), ("x-rewrite-url", "/private"), ("x-forwarded-prefix", "/private")),
        "200",
        check=is_live("1"),
    ),
    "proto": cell(plus(("x-forwarded-proto", "file")), "200", check=is_live("1")),
    "upgrade": cell(plus(("upgrade", "websocket"), ("sec-websocket-key", "eA==")), "200", check=is_live("1")),
    "upgrade-http2": cell(plus(("upgrade", "h2c"), ("http2-settings", "AAMAAABk")), "200", check=is_live("1")),
    "encoding": cell(plus(("accept-encoding", "gzip, br, zstd")), "200", check=is_live("1")),
    "unsigned-amz": cell(plus(("x-amz-request-payer", "requester")), "403 AccessDenied"),
    "unsigned-amz-markup": cell(plus(("x-amz-!#$&'*+-.^_`|~", "x")), "403 AccessDenied"),
    "ninety": cell(plus(*((f"x-{n}", "y") for n in range(90))), "200", check=is_live("1")),
    "a-hundred-more": cell(plus(*((f"x-{n}", "y") for n in range(100))), "400 RequestHeaderSectionTooLarge"),
    "a-thousand": cell(plus(*((f"x-{n}", "y") for n in range(1_000))), "400 RequestHeaderSectionTooLarge"),
    "a-thousand-unsigned": cell(
        lambda w: w.plain("/events", more=[("x", "y")] * 1_000), "400 RequestHeaderSectionTooLarge"
    ),
    "expect": cell(plus(("expect", "100-continue")), "200", check=is_live("1")),
    "expect-unsigned": cell(
        lambda w: w.plain("/events", more=[("expect", "100-continue"), ("content-length", "5")]), "403 AccessDenied"
    ),
    "expect-made-up": cell(plus(("expect", "200-ok")), "200", check=is_live("1")),
}

# ------------------------------------------------------------------------------------------------ framing

HIDDEN = b"GET /private HTTP/1.1\r\nhost: x\r\n\r\n"


def framed(*more: tuple[str, str], body: bytes = b"") -> Callable[[AttackedProxy], bytes]:
    """Send a request with chosen headers for the framing of its body."""
    return lambda w: wire(S3Request("GET", "/events", "", (("host", w.host), *more))) + body


def line(first: str) -> Callable[[AttackedProxy], bytes]:
    """Send a request with a chosen request line."""
    return lambda w: f"{first}\r\nhost: {w.host}\r\nconnection: close\r\n\r\n".encode("latin-1")


def raw(text: bytes) -> Callable[[AttackedProxy], bytes]:
    return lambda _: text


BODIES = {
    "length-and-chunked": cell(
        framed(("content-length", "5"), ("transfer-encoding", "chunked"), body=b"0\r\n\r\n" + HIDDEN),
        "400 InvalidRequest",
    ),
    "chunked-and-length": cell(
        framed(("transfer-encoding", "chunked"), ("content-length", "0"), body=b"0\r\n\r\n" + HIDDEN),
        "400 InvalidRequest",
    ),
    "signed-length-and-chunked": cell(
        lambda w: (
            wire(w.ask("/events", more=[("content-length", "5"), ("transfer-encoding", "chunked")]))
            + b"0\r\n\r\n"
            + HIDDEN
        ),
        "400 InvalidRequest",
    ),
    "two-lengths": cell(framed(("content-length", "0"), ("content-length", str(len(HIDDEN))), body=HIDDEN), "400"),
    "length-list": cell(framed(("content-length", f"0, {len(HIDDEN)}"), body=HIDDEN), "400"),
    "length-negative": cell(framed(("content-length", "-1")), "400"),
    "length-plus": cell(framed(("content-length", "+5"), body=b"abcde"), "400"),
    "length-hexadecimal": cell(framed(("content-length", "0x5"), body=b"abcde"), "400"),
    "length-unicode": cell(framed(("content-length", "\xd9\xa5"), body=b"abcde"), "400"),
    "length-huge": cell(framed(("content-length", "9" * 30)), "400"),
    "chunked-twice": cell(
        framed(("transfer-encoding", "chunked"), ("transfer-encoding", "chunked"), body=b"0\r\n\r\n"), "400"
    ),
    "chunked-not-last": cell(framed(("transfer-encoding", "chunked, identity"), body=b"0\r\n\r\n"), "400"),
    "chunked-misspelt": cell(framed(("transfer-encoding", "xchunked"), body=b"0\r\n\r\n"), "400"),
    "chunked-after-tab": cell(
        lambda w: wire(w.ask("/events", more=[("transfer-encoding", "\tchunked")])) + b"0\r\n\r\n",
        "200",
        check=shows(*ALL),
    ),
    "chunk-size-malformed": cell(chunked(b"-5\r\nabcde\r\n"), "400 InvalidRequest"),
    "chunk-size-huge": cell(chunked(b"f" * 40 + b"\r\n"), "400 InvalidRequest"),
    "chunk-extension-huge": cell(chunked(b"1;" + b"x" * 50_000), "400 InvalidRequest"),
    "chunk-ends-by-newline": cell(chunked(b"3\nabc\n0\n\n" + HIDDEN), "400 InvalidRequest"),
    "request-in-a-body": cell(lambda w: wire(w.ask("/events", body=HIDDEN), HIDDEN), "200", check=shows(*ALL)),
    "request-in-an-unsigned-body": cell(lambda w: wire(w.plain("/events"), HIDDEN), "403 AccessDenied"),
    "request-in-a-body-kept-open": cell(lambda w: wire(w.plain("/events"), HIDDEN, close=False), "403 AccessDenied"),
    "request-in-a-chunk": cell(
        chunked(f"{len(HIDDEN):x}\r\n".encode() + HIDDEN + b"\r\n0\r\n\r\n", HIDDEN), "200", check=shows(*ALL)
    ),
    "larger-than-taken": cell(
        lambda w: wire(w.ask("/events", body=b"x" * 70_000), b"x" * 70_000), "400 EntityTooLarge", cut=True
    ),
    "larger-than-taken-presigned": cell(
        lambda w: wire(w.link("/events"), b"x" * 70_000), "400 EntityTooLarge", cut=True
    ),
    "never-sent": cell(lambda w: wire(w.ask("/events", more=[("content-length", "100")])) + b"half"),
    "compressed": cell(
        lambda w: wire(
            w.ask("/events", body=(bomb := gzip.compress(bytes(10_000_000))), more=[("content-encoding", "gzip")]), bomb
        ),
        "200",
        check=shows(*ALL),
    ),
}

LINES = {
    "continued-header": cell(framed(("x-a", "b\r\n folded")), "403 AccessDenied"),
    "continued-signed-header": cell(changed("x-amz-date", lambda v: f"{v}\r\n "), "200", check=shows(*ALL)),
    "bare-newlines": cell(lambda w: wire(w.plain("/events")).replace(b"\r\n", b"\n"), "403 AccessDenied"),
    "newline-in-a-value": cell(plus(("x-a", "b\nx-amz-security-token: x")), "400 InvalidToken"),
    "return-in-a-value": cell(plus(("x-a", "b\rx-evil: 1")), "400"),
    "nul-in-a-value": cell(plus(("x-a", "b\0c")), "400"),
    "space-before-the-colon": cell(framed(("content-length ", "5")), "400"),
    "space-in-a-name": cell(framed(("x a", "5")), "400"),
    "no-colon": cell(lambda w: wire(w.plain("/events")).replace(b"x-amz-date: ", b"x-amz-date "), "400"),
    "no-name": cell(framed(("", "5")), "400"),
    "name-in-utf8": cell(framed(("x-\xc3\xa9", "5")), "400"),
    "first-is-continued": cell(lambda w: wire(w.plain("/events")).replace(b"\r\n", b"\r\n x: y\r\n", 1), "400"),
    "huge-header": cell(framed(("x-a", "b" * HUGE)), "400", cut=True),
    "huge-name": cell(framed(("x" * HUGE, "b")), "400", cut=True),
    "huge-target": cell(line(f"GET /{'a' * HUGE} HTTP/1.1"), "400", cut=True),
    "endless-headers": cell(framed(*((f"x-{n}", "y" * 50) for n in range(HUGE // 50))), "400", cut=True),
    "http-0.9": cell(raw(b"GET /events\r\n\r\n"), "400"),
    "http-1.0": cell(line("GET /events HTTP/1.0"), "403 AccessDenied"),
    "http-1.0-without-host": cell(raw(b"GET /events HTTP/1.0\r\n\r\n"), "403 AccessDenied"),
    "http-2": cell(raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "403 AccessDenied"),
    "http-9.9": cell(line("GET /events HTTP/9.9"), "403 AccessDenied"),
    "version-missing": cell(line("GET /events "), "400"),
    "version-in-lower-case": cell(line("GET /events http/1.1"), "400"),
    "two-spaces": cell(line("GET  /events HTTP/1.1"), "400"),
    "space-in-the-target": cell(line("GET /events /private HTTP/1.1"), "400"),
    "tab": cell(line("GET\t/events HTTP/1.1"), "400"),
    "tls": cell(raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200))), "400"),
    "ssh": cell(raw(b"SSH-2.0-OpenSSH_9.0\r\n")),
    "zeros": cell(raw(bytes(50_000)), "400"),
    "only-newlines": cell(raw(b"\r\n" * 3), "400"),
    "never-ended": cell(raw(b"GET /events HTTP/1.1\r\nhost: x\r\n")),
    "nothing": cell(raw(b"")),
}

CONNECTIONS = {
    "two-requests": cell(
        lambda w: wire(w.ask("/events"), close=False) + wire(w.ask("/ones")), "200", "200", check=shows("1")
    ),
    "second-unsigned": cell(
        lambda w: wire(w.ask("/events"), close=False) + wire(w.plain("/events")), "200", "403 AccessDenied"
    ),
    "second-of-another-tenant": cell(
        lambda w: wire(w.ask("/events"), close=False) + wire(w.ask("/ones", who=RIVAL)), "200", "404 NoSuchBucket"
    ),
    "second-after-a-refusal": cell(
        lambda w: wire(w.plain("/events"), close=False) + wire(w.ask("/ones")), "403 AccessDenied"
    ),
    "second-is-no-request": cell(lambda w: wire(w.ask("/ones"), close=False) + b"\0\0\r\n\r\n", "200", "400"),
    "second-after-a-refused-body": cell(
        lambda w: wire(w.plain("/events"), b"abc", close=False) + wire(w.ask("/ones")), "403 AccessDenied"
    ),
    "second-after-a-head": cell(
        lambda w: wire(w.ask("/events"), close=False) + wire(w.ask("/events", method="HEAD")), "200", "200"
    ),
    "fifty-requests": cell(
        lambda w: wire(w.ask("/ones"), close=False) * 49 + wire(w.ask("/ones")), *["200"] * 50, check=shows("1")
    ),
}

MATRIX = {
    "method": METHODS,
    "bucket": BUCKETS,
    "time": TIMES,
    "key": KEYS,
    "query": PARAMETERS,
    "authorization": AUTHORIZATIONS,
    "date": DATES,
    "payload": PAYLOADS,
    "token": TOKENS,
    "address": ADDRESSES,
    "host": HOSTS,
    "range": RANGES,
    "condition": CONDITIONS,
    "header": FORWARDED,
    "body": BODIES,
    "line": LINES,
    "connection": CONNECTIONS,
}
CELLS = {f"{part}-{attack}": c for part, attacks in MATRIX.items() for attack, c in attacks.items()}


@pytest.mark.sampled(cases=200)
@pytest.mark.parametrize("name", CELLS)
def test_an_attack_gets_its_expected_response_only(world: AttackedProxy, name: str) -> None:
    attack = CELLS[name]
    sent = attack.send(world)
    head = isinstance(sent, S3Request) and sent.method == "HEAD"
    as_sent = sent if isinstance(sent, bytes) else wire(sent)
    answers = replies(exchange(world.proxy.port, as_sent), head=head)
    assert tuple(a.outcome for a in answers) == attack.outcomes or (attack.cut and not answers)
    for answer in answers:
        assert world.leaks(as_sent, answer) == []
    if attack.check is not None:
        attack.check(world, answers[-1])
    assert_logged(world, as_sent, answers)
    assert world.send(world.ask("/events", method="HEAD")).status == 200
    assert "Traceback" not in world.proxy.errors()


def assert_logged(world: AttackedProxy, sent: bytes, answers: list[RawReply]) -> None:
    """Check that each response has a correct line in the access log, without a secret."""
    ids = {a.header("x-amz-request-id"): a for a in answers if a.header("x-amz-request-id")}

    def logged_lines() -> list[dict[str, Any]]:
        return [line for line in world.proxy.access_log() if line["request_id"] in ids]

    wait_until(lambda: len(logged_lines()) >= len(ids), "each response is in the access log")
    for logged in logged_lines():
        answer = ids[logged["request_id"]]
        assert (logged["status"], logged["client"]) == (answer.status, "127.0.0.1")
        assert (logged["tenant"] is None) == (logged["access_key_id"] is None)
    signatures = re.findall(rb"Signature=([0-9a-f]{64})", sent)
    text = world.proxy.access_text()
    assert not [s for s in (ACME.secret, RIVAL.secret, *(s.decode() for s in signatures)) if s in text]


# ------------------------------------------------------------------------------------------------ beside the matrix


def test_the_matrix_has_its_size() -> None:
    assert len(CELLS) >= 110


def test_the_same_request_may_come_again_while_its_signature_is_valid(world: AttackedProxy) -> None:
    """As in S3, a signature is valid for any number of requests."""
    for request in (world.ask(live(world)), world.link(live(world))):
        assert [world.send(request).status for _ in range(3)] == [200, 200, 200]


@pytest.mark.sampled(days=3)
def test_a_held_part_can_be_fetched_by_its_key_but_is_not_listed(holding: AttackedProxy) -> None:
    reply = holding.send(holding.ask(dead(holding)))
    assert (reply.status, reply.body) == (200, holding.lake.content(holding.lake.dead["1"]))
    assert holding.send(holding.ask("/events")).keys == [holding.lake.live[u] for u in ALL]


@pytest.mark.parametrize(
    ("path", "who", "outcome"),
    [
        pytest.param(lambda w: dead(w, "2", "ones"), ACME, "404 NoSuchKey", id="outside the scope"),
        pytest.param(lambda w: dead(w, "10", "ones"), ACME, "404 NoSuchKey", id="beside the scope"),
        pytest.param(lambda w: dead(w, "1", "twos"), RIVAL, "404 NoSuchKey", id="of another tenant's scope"),
        pytest.param(lambda w: dead(w, "1", "events"), RIVAL, "404 NoSuchKey", id="of another table"),
        pytest.param(lambda w: live(w, "1", "old"), ACME, "404 NoSuchKey", id="later than the pinned time"),
    ],
)
def test_scopes_get_only_held_parts_they_listed(
    holding: AttackedProxy, path: Callable[[AttackedProxy], str], who: Key, outcome: str
) -> None:
    assert holding.send(holding.ask(path(holding), who=who)).outcome == outcome


def test_the_store_is_unchanged(world: AttackedProxy) -> None:
    client = world.lake.server.client()
    listed = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{world.lake.prefix}/")["Contents"]
    assert sorted(o["Key"] for o in listed) == sorted(world.lake.objects)


@pytest.mark.sampled(days=3)
def test_the_process_is_the_same_and_its_memory_is_bounded(world: AttackedProxy) -> None:
    assert world.proxy.alive()
    displayed = subprocess.run(
        ["ps", "-o", "rss=", "-p", str(world.proxy.process.pid)], capture_output=True, check=True
    )
    assert int(displayed.stdout) * 1024 < RSS_BYTES_MAX
    assert "Traceback" not in world.proxy.errors()
    assert not [
        s for s in (ACME.secret, RIVAL.secret, world.lake.server.secret_access_key) if s in world.proxy.errors()
    ]
