"""A sink for events: sends batches of JSON lines over HTTP until they are committed. Needs only Python."""

from __future__ import annotations

import gzip
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence

__all__ = ["HTTPSink", "EventsRejected"]


class EventsRejected(Exception):
    """The service rejects these events permanently. The message has the reason."""


class HTTPSink:
    """Sends to one table. Each event needs an id from its origin, which makes retries safe."""

    def __init__(self, service: str, table: str, key: str, *, give_up_after_seconds: float = 300) -> None:
        self._address = f"{service}/v1/tables/{table}/events"
        self._headers = {
            "Authorization": f"Bearer {key}",
            "Content-Type": "application/x-ndjson",
            "Content-Encoding": "gzip",
        }
        self._give_up_after = give_up_after_seconds
        #: The number of retries.
        self.retries = 0

    def send(self, events: Sequence[Mapping[str, object]]) -> dict[str, int | str]:
        """Send a batch, and wait until it is committed. Return the counts of new (`accepted`) and known events
        (`repeated`).

        Raises EventsRejected if the events or the key are invalid, and TimeoutError if the batch was not committed in
        time.
        """
        body = gzip.compress("\n".join(json.dumps(event) for event in events).encode())
        deadline = time.monotonic() + self._give_up_after
        pause = 0.1
        while True:
            retry_after = 0.0
            try:
                request = urllib.request.Request(self._address, body, self._headers)
                with urllib.request.urlopen(request, timeout=60) as response:
                    counts: dict[str, int | str] = json.load(response)
                    return counts
            except urllib.error.HTTPError as error:
                if error.code != 429 and error.code < 500:
                    raise EventsRejected(json.load(error)["message"]) from None
                retry_after = float(error.headers.get("Retry-After") or 0)
            except (OSError, http.client.HTTPException):
                pass  # no response: the batch may be committed. With ids, a retry is safe.
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{self._address}: not committed within {self._give_up_after:g} s. Keep the events and send them "
                    "later."
                )
            time.sleep(max(pause, retry_after))
            pause = min(2 * pause, 10.0)
            self.retries += 1
