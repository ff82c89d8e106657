"""Calls as Segment sends them: in batches from its libraries, and one by one, signed, from its webhooks.

You need none of this code: give the library `host="https://your-service"`, or give Segment the webhook's address. It
shows the requests, for programs without a library.
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
    """Send a batch as a library does: the write key is the user of HTTP basic authentication, without a password."""
    user = base64.b64encode(f"{write_key}:".encode()).decode()
    document = {"batch": calls, "sentAt": sent_at, "context": {"library": {"name": "example", "version": "1"}}}
    return _post(f"{service}/v1/batch", json.dumps(document).encode(), {"Authorization": f"Basic {user}"})


def send_as_webhook(service: str, tenant: str, secret: str, call: Call) -> dict[str, Any]:
    """Send a call as a Segment webhook does: signed, so that it needs no key."""
    body = json.dumps(call).encode()
    signature = hmac.new(secret.encode(), body, hashlib.sha1).hexdigest()
    return _post(f"{service}/v1/webhooks/{tenant}", body, {"X-Signature": signature})


def _post(address: str, body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    request = urllib.request.Request(address, body, {"Content-Type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=60) as response:
        counts: dict[str, Any] = json.load(response)
        return counts
