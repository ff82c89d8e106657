"""Calls as Segment sends them: by its libraries in batches, by its webhooks one by one and signed.

You need none of this: give the library `host="https://your-service"`, or Segment the webhook's address. It is what goes
over the wire, for programs that have no library.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Call", "send_as_library", "send_as_webhook"]

Call = Mapping[str, Any]


def send_as_library(service: str, write_key: str, calls: Sequence[Call], sent_at: str) -> dict[str, Any]:
    """A batch, as a library sends it: the write key as the user of HTTP's basic authentication, without a password."""
    user = base64.b64encode(f"{write_key}:".encode()).decode()
    document = {"batch": calls, "sentAt": sent_at, "context": {"library": {"name": "example", "version": "1"}}}
    return _post(f"{service}/v1/batch", json.dumps(document).encode(), {"Authorization": f"Basic {user}"})


def send_as_webhook(service: str, tenant: str, secret: str, call: Call) -> dict[str, Any]:
    """A call, as a webhook of Segment sends it: signed, so that it needs no key."""
    body = json.dumps(call).encode()
    signature = hmac.new(secret.encode(), body, hashlib.sha1).hexdigest()
    return _post(f"{service}/v1/webhooks/{tenant}", body, {"X-Signature": signature})


def _post(address: str, body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    request = urllib.request.Request(address, body, {"Content-Type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=60) as answer:
        said: dict[str, Any] = json.load(answer)
        return said
