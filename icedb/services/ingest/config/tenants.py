"""Authentication of tenants by keys, and by signatures of webhooks.

Keys are looked up by a digest with a secret of this process, so that the time of a lookup reveals nothing of a key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Sequence

from icedb.services.ingest.config.settings import TenantSettings

__all__ = ["Tenants", "key_from_header"]

_HEADER_CHARS_MAX = 1_000


class Tenants:
    """The tenants of a configuration."""

    def __init__(self, tenants: Sequence[TenantSettings]) -> None:
        self._secret = secrets.token_bytes(32)
        self._by_key = {self._digest(key): tenant for tenant in tenants for key in tenant.keys}
        self._by_name = {tenant.name: tenant for tenant in tenants}
        self._writers = Counter(table for tenant in tenants for table in tenant.tables)

    @property
    def count(self) -> int:
        """The number of tenants."""
        return len(self._by_name)

    def is_shared(self, table: str) -> bool:
        """Return whether several tenants may write the table."""
        return self._writers[table] > 1

    def find_by_key(self, key: str) -> TenantSettings | None:
        """Return the tenant that has the key, or None."""
        return self._by_key.get(self._digest(key))

    def find_by_signature(self, name: str, signature: str, body: bytes) -> TenantSettings | None:
        """Return the tenant of that name if one of its secrets signed the body, else None.

        A signature is the HMAC-SHA1 of the body in hexadecimal digits, as in Segment's header `X-Signature`.
        """
        tenant = self._by_name.get(name)
        matches = False
        # An unknown tenant costs the same time: one secret is tried.
        for secret in tenant.webhook_secrets if tenant else (self._secret.hex(),):
            expected = hmac.new(secret.encode(), body, hashlib.sha1).hexdigest()
            matches |= hmac.compare_digest(expected.encode(), signature.strip().lower().encode())
        return tenant if matches else None

    def _digest(self, key: str) -> bytes:
        return hmac.digest(self._secret, key.encode(errors="surrogateescape"), "sha256")


def key_from_header(authorization: str) -> str | None:
    """Return the key in an `Authorization` header: a bearer token, or the user of Basic, whose password is ignored."""
    scheme, _, rest = authorization[:_HEADER_CHARS_MAX].strip().partition(" ")
    rest = rest.strip()
    match scheme.lower():
        case "bearer":
            return rest or None
        case "basic":
            try:
                credentials = base64.b64decode(rest, validate=True).decode("latin-1")
            except (binascii.Error, ValueError):
                return None
            return credentials.partition(":")[0] or None
    return None
