"""A sink for events: batches of JSON lines over HTTP, sent until they are committed. It needs nothing but Python."""

from __future__ import annotations

import gzip
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence

__all__ = ["HTTPSink", "Refused"]


class Refused(Exception):
    """The service will not take these events, however often they are sent. The message says why."""


class HTTPSink:
    """Sends to one table. Every event has to have an id, made where the event happened: then trying again is free."""

    def __init__(self, service: str, table: str, key: str, *, give_up_after_seconds: float = 300) -> None:
        self._address = f"{service}/v1/tables/{table}/events"
        self._headers = {
            "Authorization": f"Bearer {key}",
            "Content-Type": "application/x-ndjson",
            "Content-Encoding": "gzip",
        }
        self._give_up_after = give_up_after_seconds
        #: How often something was sent again.
        self.retries = 0

    def send(self, events: Sequence[Mapping[str, object]]) -> dict[str, int | str]:
        """Send a batch, and wait until it is committed: how many were new (`accepted`), how many were there already.

        Raises Refused for what is at fault with the events, or the key, and TimeoutError when it had to give up.
        """
        body = gzip.compress("\n".join(json.dumps(event) for event in events).encode())
        deadline = time.monotonic() + self._give_up_after
        pause = 0.1
        while True:
            asked_for = 0.0
            try:
                request = urllib.request.Request(self._address, body, self._headers)
                with urllib.request.urlopen(request, timeout=60) as answer:
                    said: dict[str, int | str] = json.load(answer)
                    return said
            except urllib.error.HTTPError as error:
                if error.code != 429 and error.code < 500:
                    raise Refused(json.load(error)["message"]) from None
                asked_for = float(error.headers.get("Retry-After") or 0)  # it knows better than we do
            except (OSError, http.client.HTTPException):
                pass  # no answer: committed or not, nobody knows. With ids that does not matter.
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._address}: not committed within {self._give_up_after:g} s. Keep the events.")
            time.sleep(max(pause, asked_for))
            pause = min(2 * pause, 10.0)
            self.retries += 1
