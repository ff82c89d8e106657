"""Bearer tokens of the catalog: `<access key id>.<end in unix seconds>.<signature>`.

The signature is an HMAC with a key derived from the secret of the access key. So any proxy can check a token without
shared state, and a token ends with its key. A token is no S3 credential, and reveals nothing of the secret.
"""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass

from icedb.services.proxy.config.tenants import AccessKey, KeyOwner, TenantDirectory, secret_of

__all__ = ["create_token", "token_owner"]

# No two adjacent elements match the same character.
_TOKEN = re.compile(r"([A-Za-z0-9_-]{3,128})\.([0-9]{1,12})\.([0-9a-f]{64})", re.ASCII)
_PURPOSE = b"icedb proxy: bearer token of the Iceberg catalog, version 1"


@dataclass(frozen=True, slots=True)
class _TokenClaim:
    key_id: str
    ends: str

    def signature(self, secret: str) -> str:
        key = hmac.digest(secret.encode(), _PURPOSE, "sha256")
        return hmac.digest(key, f"{self.key_id}.{self.ends}".encode(), "sha256").hex()


def create_token(key: AccessKey, *, now_ms: int, expires_ms: int) -> str:
    """Return a token of an access key that is valid for `expires_ms`."""
    claim = _TokenClaim(key.id, str((now_ms + expires_ms) // 1000))
    return f"{claim.key_id}.{claim.ends}.{claim.signature(key.secret)}"


async def token_owner(token: str, directory: TenantDirectory, *, now_ms: int) -> KeyOwner | None:
    """Return the tenant and the key of a token; None if it is malformed, forged or expired. Raises S3Error."""
    fields = _TOKEN.fullmatch(token)
    if fields is None:
        return None
    claim = _TokenClaim(fields[1], fields[2])
    owner = await directory.find(claim.key_id)
    expected = claim.signature(secret_of(owner))
    matches = hmac.compare_digest(expected.encode(), fields[3].encode())
    return owner if matches and now_ms < 1000 * int(claim.ends) else None
