"""Makes a container in Azure's emulator: what object stores' clients leave to others. One signed request."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
import urllib.error
import urllib.request
from email.utils import formatdate
from urllib.parse import urlsplit

VERSION = "2021-12-02"


def create_container(endpoint: str, account: str, key: str, name: str, *, seconds_max: float) -> bool:
    """Repeat the request until the server answers or the time is over. Returns whether the container exists."""
    deadline = time.monotonic() + seconds_max
    while time.monotonic() < deadline:
        date = formatdate(usegmt=True)
        resource = f"/{account}{urlsplit(endpoint).path}/{name}\nrestype:container"
        text = f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:{VERSION}\n{resource}"
        signature = base64.b64encode(hmac.digest(base64.b64decode(key), text.encode(), hashlib.sha256)).decode()
        headers = {"x-ms-date": date, "x-ms-version": VERSION, "Authorization": f"SharedKey {account}:{signature}"}
        request = urllib.request.Request(f"{endpoint}/{name}?restype=container", method="PUT", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return bool(answer.status == 201)
        except urllib.error.HTTPError as error:
            return error.code == 409  # it exists
        except OSError:
            time.sleep(0.1)
    return False
