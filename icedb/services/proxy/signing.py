"""Who asks: AWS Signature Version 4, in the Authorization header or in the query of a presigned address.

A request is signed once more, by botocore and with the secret of the key that it names, and the two signatures are
compared: the signer is one that many clients use, only *what* it signs is said here. Path and query are signed as they
are understood, `S3Request.decoded_path` and `.parameters`, so that nothing is verified as one thing and answered as
another. Any region will do. A reverse proxy in front must keep the Host header, which is always signed.

No error and no log line holds a secret, a signature that would have been right, or the texts in between.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPMessage
from urllib.parse import quote

from botocore.auth import UNSIGNED_PAYLOAD, S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.compat import HTTPHeaders
from botocore.credentials import ReadOnlyCredentials

from icedb.services.proxy.config.tenants import Tenant, TenantDirectory
from icedb.services.proxy.s3.request import S3Request
from icedb.services.proxy.s3.s3_errors import S3Error

__all__ = ["SKEW_MS_MAX", "AuthenticatedCaller", "authenticate"]

#: S3's own: how far a client's clock may be from ours.
SKEW_MS_MAX = 15 * 60_000
#: S3's own: seven days.
EXPIRES_SECONDS_MAX = 604_800

#: Clients sign about ten. What is done with them grows by the square of their number.
SIGNED_HEADERS_MAX = 64

_ALGORITHM = "AWS4-HMAC-SHA256"
_IN_QUERY = (
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-SignedHeaders",
    "X-Amz-Signature",
)
# No two neighbours of these patterns can match the same character: none goes back. The bounds only keep nonsense out.
# DuckDB signs for an empty region unless it is told one.
_AUTHORIZATION = re.compile(r"Credential=([^ ,]{1,512}), *SignedHeaders=([^ ,]{1,4096}), *Signature=([^ ,]{1,128})")
_CREDENTIAL = re.compile(r"([A-Za-z0-9_.-]{1,128})/([0-9]{8})/([A-Za-z0-9_.-]{0,64})/s3/aws4_request")
_HEADER_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,256}")
_SIGNATURE = re.compile(r"[0-9a-f]{64}")
_TIMESTAMP = re.compile(r"[0-9]{8}T[0-9]{6}Z")
_HTTP_DATE = "%a, %d %b %Y %H:%M:%S GMT"
_SHA256 = re.compile(r"[0-9A-Fa-f]{64}")
_STREAMING = re.compile(r"STREAMING-[A-Z0-9-]{1,64}")

# What a key that nobody has is checked with: to find no owner takes as long as to find a wrong signature.
_NOBODYS_SECRET = secrets.token_hex(20)


@dataclass(frozen=True, slots=True)
class AuthenticatedCaller:
    """Who signed a request."""

    tenant: Tenant
    access_key_id: str
    #: Lower-case hex that the SHA-256 of the body must be. None: the body was not signed.
    payload_sha256: str | None


@dataclass(frozen=True, slots=True)
class _SignatureClaim:
    """What a request says of its signature. Well-formed; nothing of it is believed yet."""

    access_key_id: str
    region: str
    #: As it was signed, `20261121T100000Z`, whatever form it came in.
    timestamp: str
    signed_headers: tuple[str, ...]
    #: As it was signed: a hash or one of S3's words for none.
    payload: str
    signature: str


async def authenticate(
    request: S3Request, directory: TenantDirectory, *, now_ms: int, max_skew_ms: int = SKEW_MS_MAX
) -> AuthenticatedCaller:
    """Find out who signed a request, at `now_ms` (unix milliseconds).

    Raises S3Error: AccessDenied without a signature, with one that has expired, or when something of the request had to
    be signed and is not; InvalidAccessKeyId and SignatureDoesNotMatch for what they say; RequestTimeTooSkewed when it
    was signed more than `max_skew_ms` before or after; and what the directory raises. Others say what is malformed.
    """
    claim = _claim(request, now_ms, max_skew_ms)
    _check_signed(request, claim.signed_headers)
    found = await directory.find(claim.access_key_id)
    right = _signature(request, claim, found.key.secret if found else _NOBODYS_SECRET)
    matches = hmac.compare_digest(right.encode(), claim.signature.encode())
    if found is None:
        raise S3Error("InvalidAccessKeyId")
    if not matches:
        raise S3Error("SignatureDoesNotMatch")
    hashed = claim.payload.lower() if _SHA256.fullmatch(claim.payload) else None
    return AuthenticatedCaller(found.tenant, claim.access_key_id, hashed)


def _claim(request: S3Request, now_ms: int, max_skew_ms: int) -> _SignatureClaim:
    """Raises S3Error when there is no claim, or one that is malformed, out of date, or of another kind."""
    authorization = request.header("authorization")
    names = {n for n, _ in request.parameters}
    presigned = not names.isdisjoint(_IN_QUERY)
    if "AWSAccessKeyId" in names:
        raise _another_kind()
    if authorization is not None and presigned:
        raise S3Error("InvalidArgument", "Only one auth mechanism allowed")
    if authorization is None and not presigned:
        raise S3Error("AccessDenied")
    if "X-Amz-Security-Token" in names or any(n == "x-amz-security-token" for n, _ in request.headers):
        raise S3Error("InvalidToken", "This endpoint gives no temporary keys: a session token is never valid here.")
    if authorization is None:
        return _claim_in_query(request, now_ms, max_skew_ms)
    return _claim_in_header(request, authorization, now_ms, max_skew_ms)


def _claim_in_header(request: S3Request, authorization: str, now_ms: int, max_skew_ms: int) -> _SignatureClaim:
    algorithm, _, rest = authorization.partition(" ")
    if algorithm != _ALGORITHM:
        raise _another_kind()
    malformed = "AuthorizationHeaderMalformed"
    fields = _AUTHORIZATION.fullmatch(rest)
    if not fields:
        raise S3Error(malformed)
    credential, signed_headers, signature = fields.groups()
    access_key_id, day, region = _credential(credential, malformed)
    names = _signed_headers(signed_headers, malformed)
    _check_signature(signature, malformed)
    signed_at = _time_in_headers(request)
    if abs(now_ms - _unix_ms(signed_at)) > max_skew_ms:
        raise S3Error("RequestTimeTooSkewed")
    timestamp = _as_timestamp(signed_at)
    _check_day(day, timestamp, malformed)
    payload = request.header("x-amz-content-sha256")
    if payload is None:
        raise S3Error("InvalidRequest", "Missing required header for this request: x-amz-content-sha256")
    _check_payload(payload)
    return _SignatureClaim(access_key_id, region, timestamp, names, payload, signature)


def _claim_in_query(request: S3Request, now_ms: int, max_skew_ms: int) -> _SignatureClaim:
    malformed = "AuthorizationQueryParametersError"
    given = {name: [v for n, v in request.parameters if n == name] for name in _IN_QUERY}
    for name, values in given.items():
        if len(values) != 1:
            raise S3Error(malformed, f"A presigned address has the parameter {name} exactly once.")
    algorithm, credential, timestamp, expires, signed_headers, signature = (given[name][0] for name in _IN_QUERY)
    if algorithm != _ALGORITHM:
        raise _another_kind()
    access_key_id, day, region = _credential(credential, malformed)
    names = _signed_headers(signed_headers, malformed)
    _check_signature(signature, malformed)
    seconds = int(expires) if re.fullmatch(r"[0-9]{1,6}", expires) else 0
    if not 1 <= seconds <= EXPIRES_SECONDS_MAX:
        raise S3Error(malformed, f"X-Amz-Expires is a number of seconds from 1 to {EXPIRES_SECONDS_MAX}.")
    signed_at = _from_timestamp(timestamp)
    if signed_at is None:
        raise S3Error(malformed, "X-Amz-Date is a time such as 20261121T100000Z.")
    _check_day(day, timestamp, malformed)
    if _unix_ms(signed_at) - now_ms > max_skew_ms:
        raise S3Error("AccessDenied", "Request is not valid yet")
    if _unix_ms(signed_at) + 1000 * seconds < now_ms:
        raise S3Error("AccessDenied", "Request has expired")
    payload = _payload_of_presigned(request)
    return _SignatureClaim(access_key_id, region, timestamp, names, payload, signature)


def _payload_of_presigned(request: S3Request) -> str:
    """Who makes an address rarely knows the body; who does may say its hash, in the query or as a signed header."""
    given = {request.parameter("X-Amz-Content-Sha256"), request.header("x-amz-content-sha256")} - {None}
    if len(given) > 1:
        raise S3Error("InvalidRequest", "x-amz-content-sha256 is one thing in the query and another as a header.")
    payload = given.pop() if given else None
    if payload is None:
        return UNSIGNED_PAYLOAD
    _check_payload(payload)
    return payload


def _another_kind() -> S3Error:
    return S3Error(
        "InvalidRequest", f"The authorization mechanism you have provided is not supported. Please use {_ALGORITHM}."
    )


def _credential(text: str, malformed: str) -> tuple[str, str, str]:
    """Access key id, day and region."""
    fields = _CREDENTIAL.fullmatch(text)
    if not fields:
        raise S3Error(
            malformed, "The credential is not of the form <access key id>/<yyyymmdd>/<region>/s3/aws4_request."
        )
    access_key_id, day, region = fields.groups()
    return access_key_id, day, region


def _signed_headers(text: str, malformed: str) -> tuple[str, ...]:
    names = text.split(";")
    if len(names) > SIGNED_HEADERS_MAX or not all(map(_HEADER_NAME.fullmatch, names)) or names != sorted(set(names)):
        raise S3Error(
            malformed, "The signed headers are not lower-case names, each once, sorted, with semicolons between."
        )
    return tuple(names)


def _check_signature(text: str, malformed: str) -> None:
    if not _SIGNATURE.fullmatch(text):
        raise S3Error(malformed, "The signature is not 64 lower-case hexadecimal digits.")


def _check_day(day: str, timestamp: str, malformed: str) -> None:
    if not timestamp.startswith(day):
        raise S3Error(malformed, "The credential's date is not that of the request.")


def _check_payload(payload: str) -> None:
    if payload != UNSIGNED_PAYLOAD and not _SHA256.fullmatch(payload) and not _STREAMING.fullmatch(payload):
        raise S3Error(
            "InvalidArgument", "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-... or a valid sha256 value."
        )


def _time_in_headers(request: S3Request) -> datetime:
    text = request.header("x-amz-date")
    date = request.header("date")
    found = _from_timestamp(text) if text is not None else _from_http_date(date or "")
    if found is None:
        raise S3Error("AccessDenied", "AWS authentication requires a valid Date or x-amz-date header")
    return found


def _from_timestamp(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if _TIMESTAMP.fullmatch(text) else None
    except ValueError:
        return None


def _from_http_date(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, _HTTP_DATE).replace(tzinfo=UTC)
    except ValueError:
        return None


def _as_timestamp(time: datetime) -> str:
    # Not strftime, whose years before 1000 have fewer digits on some systems.
    return time.isoformat().translate({ord("-"): None, ord(":"): None}).replace("+0000", "Z")


def _unix_ms(time: datetime) -> int:
    return int(time.timestamp()) * 1000  # there are whole seconds only


def _check_signed(request: S3Request, signed: Sequence[str]) -> None:
    present = {n for n, _ in request.headers}
    needed = {"host"} | {n for n in present if n.startswith("x-amz-")}
    if not needed.issubset(signed):
        missing = ", ".join(sorted(needed.difference(signed)))
        raise S3Error("AccessDenied", f"There were headers present in the request which were not signed: {missing}")
    if not present.issuperset(signed):
        raise S3Error("SignatureDoesNotMatch")
    request.header("host")  # once


class _Signer(S3SigV4Auth):
    """Signs what the client says that it signed, where botocore leaves out what proxies on the way may change."""

    def __init__(self, claim: _SignatureClaim, secret: str, headers: HTTPMessage) -> None:
        super().__init__(ReadOnlyCredentials(claim.access_key_id, secret, None), "s3", claim.region)
        self._claim, self._headers = claim, headers

    def headers_to_sign(self, request: AWSRequest) -> HTTPMessage:
        return self._headers

    def payload(self, request: AWSRequest) -> str:
        return self._claim.payload


def _signature(request: S3Request, claim: _SignatureClaim, secret: str) -> str:
    """In lower-case hex. Raises S3Error when the request cannot have been signed."""
    signer = _Signer(claim, secret, _canonical_headers(request, claim.signed_headers))
    again = AWSRequest(method=request.method, url=_canonical_url(request))
    again.context["timestamp"] = claim.timestamp
    # Step by step: `add_auth` would write the texts in between to the log.
    return signer.signature(signer.string_to_sign(again, signer.canonical_request(again)), again)


def _canonical_headers(request: S3Request, names: Sequence[str]) -> HTTPMessage:
    headers = HTTPHeaders()
    for name, value in request.headers:
        if name in names:
            try:
                # On the wire a header is bytes, which servers hand on as Latin-1; clients sign text.
                headers[name] = value.encode("latin-1").decode()
            except UnicodeError:
                raise S3Error("InvalidRequest", f"The header {name} is not UTF-8.") from None
    return headers


def _canonical_url(request: S3Request) -> str:
    """The path as it is, slashes and dots too; the query with everything that S3 encodes encoded, and sorted later."""
    if not request.path.startswith("/"):
        raise S3Error("InvalidURI")
    pairs = (f"{quote(n, safe='')}={quote(v, safe='')}" for n, v in request.parameters if n != "X-Amz-Signature")
    return f"http://host{quote(request.decoded_path, safe='/')}?{'&'.join(pairs)}"
