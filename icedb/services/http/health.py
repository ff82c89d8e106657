"""Health checks of the services: the paths, and the response.

Operators request them at `admin_listen`, with the reasons why a service is not ready. Clients and load balancers may
request them at `listen`, without reasons.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.responses import Response

__all__ = ["CLIENT_HEALTH_PATH", "CLIENT_READY_PATH", "HEALTH_PATH", "READY_PATH", "client_document", "health_response"]

#: At `admin_listen`. The process runs; the service should get requests.
HEALTH_PATH, READY_PATH = "/health", "/ready"
#: At `listen`. No valid name of a bucket, and no name of a table.
CLIENT_HEALTH_PATH, CLIENT_READY_PATH = "/-/health", "/-/ready"


def health_response(reasons: Sequence[str] = ()) -> Response:
    """Return the response to an operator: 503 if there are reasons why the service should get no requests."""
    document = {**client_document(not reasons), **({"reasons": reasons} if reasons else {})}
    return Response(msgspec.json.encode(document) + b"\n", 503 if reasons else 200, media_type="application/json")


def client_document(ok: bool) -> dict[str, str]:
    """Return the document for a client, which any client can read."""
    return {"status": "ok" if ok else "not ready"}
