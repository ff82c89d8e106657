"""Who sends: tenants by their keys, and by the secrets with which webhooks are signed.

Keys are looked for by a digest under a secret of this process: how long that takes says nothing about a key.
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
        """How many tenants there are."""
        return len(self._by_name)

    def is_shared(self, table: str) -> bool:
        """Return whether several tenants may write the table."""
        return self._writers[table] > 1

    def find_by_key(self, key: str) -> TenantSettings | None:
        """Whose key it is; None: nobody's."""
        return self._by_key.get(self._digest(key))

    def find_by_signature(self, name: str, signature: str, body: bytes) -> TenantSettings | None:
        """The tenant of that name, if one of its secrets signed the body; None: no, or there is none.

        A signature is the HMAC-SHA1 of the body in hexadecimal digits, as Segment's header `X-Signature` has it.
        """
        tenant = self._by_name.get(name)
        found = False
        # Of nobody, one secret is tried as well: it takes as long.
        for secret in tenant.webhook_secrets if tenant else (self._secret.hex(),):
            own = hmac.new(secret.encode(), body, hashlib.sha1).hexdigest()
            found |= hmac.compare_digest(own.encode(), signature.strip().lower().encode())
        return tenant if found else None

    def _digest(self, key: str) -> bytes:
        return hmac.digest(self._secret, key.encode(errors="surrogateescape"), "sha256")


def key_from_header(authorization: str) -> str | None:
    """The key in a header `Authorization`: a bearer token, or the user of Basic, whose password is not looked at."""
    scheme, _, rest = authorization[:_HEADER_CHARS_MAX].strip().partition(" ")
    rest = rest.strip()
    match scheme.lower():
        case "bearer":
            return rest or None
        case "basic":
            try:
                said = base64.b64decode(rest, validate=True).decode("latin-1")
            except (binascii.Error, ValueError):
                return None
            return said.partition(":")[0] or None
    return None
