"""Authentication with AWS Signature Version 4, in the Authorization header or in the query of a presigned URL.

To verify a request, botocore signs it again with the secret of its key, and the signatures are compared. This module
only decides *what* is signed. It signs the decoded path and query, `S3Request.decoded_path` and `.parameters`, with
which the request is also processed. So no request is verified as one thing and processed as another. Any region is
accepted. A reverse proxy in front must keep the Host header, which is always signed.

No error and no log line contains a secret, an expected signature, or an intermediate text of the signing.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPMessage
from urllib.parse import quote

from botocore.auth import UNSIGNED_PAYLOAD, S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.compat import HTTPHeaders
from botocore.credentials import ReadOnlyCredentials

from icedb.services.proxy.config.tenants import KeyOwner, Tenant, TenantDirectory, secret_of
from icedb.services.proxy.s3.request import S3Request
from icedb.services.proxy.s3.s3_errors import S3Error

__all__ = ["SKEW_MS_MAX", "AuthenticatedCaller", "authenticate"]

#: Maximum difference of the clocks of client and proxy, as in S3.
SKEW_MS_MAX = 15 * 60_000
#: Seven days, as in S3.
EXPIRES_SECONDS_MAX = 604_800

#: Clients sign about ten headers. The work grows with the square of their number.
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
# No two adjacent elements of these patterns match the same character, so matching never backtracks. The bounds only
# limit the sizes. DuckDB signs with an empty region unless one is configured.
_AUTHORIZATION = re.compile(r"Credential=([^ ,]{1,512}), *SignedHeaders=([^ ,]{1,4096}), *Signature=([^ ,]{1,128})")
_CREDENTIAL = re.compile(r"([A-Za-z0-9_.-]{1,128})/([0-9]{8})/([A-Za-z0-9_.-]{0,64})/([a-z0-9-]{1,32})/aws4_request")
_HEADER_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,256}")
_SIGNATURE = re.compile(r"[0-9a-f]{64}")
_TIMESTAMP = re.compile(r"[0-9]{8}T[0-9]{6}Z")
_HTTP_DATE = "%a, %d %b %Y %H:%M:%S GMT"
_SHA256 = re.compile(r"[0-9A-Fa-f]{64}")
_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
#: The service of requests for S3, whose paths are signed as they are.
_S3 = ("s3",)
_STREAMING = re.compile(r"STREAMING-[A-Z0-9-]{1,64}")


@dataclass(frozen=True, slots=True)
class AuthenticatedCaller:
    """The owner of the key with which a request was authenticated."""

    owner: KeyOwner
    #: The signed SHA-256 of the body in lower-case hex. None: the body was not signed.
    payload_sha256: str | None = None

    @property
    def tenant(self) -> Tenant:
        """The tenant."""
        return self.owner.tenant

    @property
    def access_key_id(self) -> str:
        """The id of the key."""
        return self.owner.key.id


@dataclass(frozen=True, slots=True)
class _SignatureClaim:
    """The fields of a request's signature. They are well-formed, but not verified."""

    access_key_id: str
    region: str
    service: str
    #: The time as it was signed, `20261121T100000Z`, independent of the form in the request.
    timestamp: str
    signed_headers: tuple[str, ...]
    #: The payload as it was signed: a hash or a constant of S3 for an unsigned payload.
    payload: str
    signature: str


async def authenticate(
    request: S3Request,
    directory: TenantDirectory,
    *,
    now_ms: int,
    max_skew_ms: int = SKEW_MS_MAX,
    services: Sequence[str] = _S3,
) -> AuthenticatedCaller:
    """Return the tenant that signed a request. `directory` is the lookup of tenants by access key.

    `services` are the services for which a request may be signed. By default it is S3. For others, the path is encoded
    once more, and the hash of the body may be missing if the body is empty.

    Raises S3Error: AccessDenied without a signature, with an expired one, or if a required header is not signed.
    InvalidAccessKeyId for an unknown key, SignatureDoesNotMatch for a wrong signature. RequestTimeTooSkewed if the
    clocks differ too much. Other codes for malformed signatures, and errors of the directory.
    """
    claim = _claim(request, now_ms, max_skew_ms, services)
    _check_signed(request, claim.signed_headers)
    owner = await directory.find(claim.access_key_id)
    signer = _Signer if services == _S3 else _GeneralSigner
    expected = _signature(request, claim, secret_of(owner), signer)
    matches = hmac.compare_digest(expected.encode(), claim.signature.encode())
    if owner is None:
        raise S3Error("InvalidAccessKeyId")
    if not matches:
        raise S3Error("SignatureDoesNotMatch")
    hashed = claim.payload.lower() if _SHA256.fullmatch(claim.payload) else None
    return AuthenticatedCaller(owner, hashed)


def _claim(request: S3Request, now_ms: int, max_skew_ms: int, services: Sequence[str]) -> _SignatureClaim:
    """Return the signature's fields. Raises S3Error if it is missing, malformed, expired, or of another version."""
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
        raise S3Error("InvalidToken", "This endpoint has no temporary keys. Omit the session token.")
    if authorization is None:
        return _claim_in_query(request, now_ms, max_skew_ms, services)
    return _claim_in_header(request, authorization, now_ms, max_skew_ms, services)


def _claim_in_header(
    request: S3Request, authorization: str, now_ms: int, max_skew_ms: int, services: Sequence[str]
) -> _SignatureClaim:
    algorithm, _, rest = authorization.partition(" ")
    if algorithm != _ALGORITHM:
        raise _another_kind()
    malformed = "AuthorizationHeaderMalformed"
    fields = _AUTHORIZATION.fullmatch(rest)
    if not fields:
        raise S3Error(malformed)
    credential, signed_headers, signature = fields.groups()
    access_key_id, day, region, service = _credential(credential, malformed, services)
    names = _signed_headers(signed_headers, malformed)
    _check_signature(signature, malformed)
    signed_at = _time_in_headers(request)
    if abs(now_ms - _unix_ms(signed_at)) > max_skew_ms:
        raise S3Error("RequestTimeTooSkewed")
    timestamp = _as_timestamp(signed_at)
    _check_day(day, timestamp, malformed)
    payload = request.header("x-amz-content-sha256")
    if payload is None and services != _S3:
        payload = _EMPTY_SHA256
    if payload is None:
        raise S3Error("InvalidRequest", "Missing required header for this request: x-amz-content-sha256")
    _check_payload(payload)
    return _SignatureClaim(access_key_id, region, service, timestamp, names, payload, signature)


def _claim_in_query(request: S3Request, now_ms: int, max_skew_ms: int, services: Sequence[str]) -> _SignatureClaim:
    malformed = "AuthorizationQueryParametersError"
    fields = {name: [v for n, v in request.parameters if n == name] for name in _IN_QUERY}
    for name, values in fields.items():
        if len(values) != 1:
            raise S3Error(malformed, f"A presigned URL must have the parameter {name} exactly once.")
    algorithm, credential, timestamp, expires, signed_headers, signature = (fields[name][0] for name in _IN_QUERY)
    if algorithm != _ALGORITHM:
        raise _another_kind()
    access_key_id, day, region, service = _credential(credential, malformed, services)
    names = _signed_headers(signed_headers, malformed)
    _check_signature(signature, malformed)
    seconds = int(expires) if re.fullmatch(r"[0-9]{1,6}", expires) else 0
    if not 1 <= seconds <= EXPIRES_SECONDS_MAX:
        raise S3Error(malformed, f"X-Amz-Expires must be a number of seconds from 1 to {EXPIRES_SECONDS_MAX}.")
    signed_at = _from_timestamp(timestamp)
    if signed_at is None:
        raise S3Error(malformed, "X-Amz-Date must be a time such as 20261121T100000Z.")
    _check_day(day, timestamp, malformed)
    if _unix_ms(signed_at) - now_ms > max_skew_ms:
        raise S3Error("AccessDenied", "Request is not valid yet")
    if _unix_ms(signed_at) + 1000 * seconds < now_ms:
        raise S3Error("AccessDenied", "Request has expired")
    payload = _payload_of_presigned(request)
    return _SignatureClaim(access_key_id, region, service, timestamp, names, payload, signature)


def _payload_of_presigned(request: S3Request) -> str:
    """Return the payload of a presigned URL: its hash from the query or a signed header, if the client set one."""
    hashes = {request.parameter("X-Amz-Content-Sha256"), request.header("x-amz-content-sha256")} - {None}
    if len(hashes) > 1:
        raise S3Error("InvalidRequest", "x-amz-content-sha256 differs between the query and the header.")
    payload = hashes.pop() if hashes else None
    if payload is None:
        return UNSIGNED_PAYLOAD
    _check_payload(payload)
    return payload


def _another_kind() -> S3Error:
    return S3Error(
        "InvalidRequest", f"The authorization mechanism you have provided is not supported. Please use {_ALGORITHM}."
    )


def _credential(text: str, malformed: str, services: Sequence[str]) -> tuple[str, str, str, str]:
    """Return access key id, day, region and service."""
    fields = _CREDENTIAL.fullmatch(text)
    if not fields or fields[4] not in services:
        raise S3Error(
            malformed,
            "The credential is not of the form <access key id>/<yyyymmdd>/<region>/"
            f"{' or '.join(services)}/aws4_request.",
        )
    access_key_id, day, region, service = fields.groups()
    return access_key_id, day, region, service


def _signed_headers(text: str, malformed: str) -> tuple[str, ...]:
    names = text.split(";")
    if len(names) > SIGNED_HEADERS_MAX or not all(map(_HEADER_NAME.fullmatch, names)) or names != sorted(set(names)):
        raise S3Error(malformed, "The signed headers must be sorted, unique lower-case names, separated by semicolons.")
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
    time = _from_timestamp(text) if text is not None else _from_http_date(date or "")
    if time is None:
        raise S3Error("AccessDenied", "AWS authentication requires a valid Date or x-amz-date header")
    return time


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
    # On some systems, strftime writes years before 1000 with fewer digits.
    return time.isoformat().translate({ord("-"): None, ord(":"): None}).replace("+0000", "Z")


def _unix_ms(time: datetime) -> int:
    return int(time.timestamp()) * 1000  # signatures have whole seconds


def _check_signed(request: S3Request, signed: Sequence[str]) -> None:
    present = {n for n, _ in request.headers}
    needed = {"host"} | {n for n in present if n.startswith("x-amz-")}
    if not needed.issubset(signed):
        missing = ", ".join(sorted(needed.difference(signed)))
        raise S3Error("AccessDenied", f"There were headers present in the request which were not signed: {missing}")
    if not present.issuperset(signed):
        raise S3Error("SignatureDoesNotMatch")
    request.header("host")  # raises S3Error if it repeats


class _GeneralSigner(SigV4Auth):
    """A signer of the headers that the client signed; botocore would omit some that proxies may change."""

    def __init__(self, claim: _SignatureClaim, secret: str, headers: HTTPMessage) -> None:
        super().__init__(ReadOnlyCredentials(claim.access_key_id, secret, None), claim.service, claim.region)
        self._claim, self._headers = claim, headers

    def headers_to_sign(self, request: AWSRequest) -> HTTPMessage:
        return self._headers

    def payload(self, request: AWSRequest) -> str:
        return self._claim.payload


class _Signer(_GeneralSigner, S3SigV4Auth):
    """A signer of requests for S3."""


def _signature(request: S3Request, claim: _SignatureClaim, secret: str, signer_class: type[_GeneralSigner]) -> str:
    """Return the signature in lower-case hex. Raises S3Error if no client can have signed the request."""
    signer = signer_class(claim, secret, _canonical_headers(request, claim.signed_headers))
    signed = AWSRequest(method=request.method, url=_canonical_url(request))
    signed.context["timestamp"] = claim.timestamp
    # Not `add_auth`, which logs the intermediate texts.
    return signer.signature(signer.string_to_sign(signed, signer.canonical_request(signed)), signed)


def _canonical_headers(request: S3Request, names: Sequence[str]) -> HTTPMessage:
    headers = HTTPHeaders()
    for name, value in request.headers:
        if name in names:
            try:
                # Headers are bytes, which servers decode as Latin-1. Clients sign UTF-8 text.
                headers[name] = value.encode("latin-1").decode()
            except UnicodeError:
                raise S3Error("InvalidRequest", f"The header {name} is not UTF-8.") from None
    return headers


def _canonical_url(request: S3Request) -> str:
    """Return the URL to sign: the path as it is, and the query in the encoding of S3, which botocore sorts."""
    if not request.path.startswith("/"):
        raise S3Error("InvalidURI")
    pairs = (f"{quote(n, safe='')}={quote(v, safe='')}" for n, v in request.parameters if n != "X-Amz-Signature")
    return f"http://host{quote(request.decoded_path, safe='/')}?{'&'.join(pairs)}"
