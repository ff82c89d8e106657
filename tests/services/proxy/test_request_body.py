"""Bodies of clients that have not authenticated: a client that sends no body does not keep others from being read."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from icedb.services.proxy import request_body
from icedb.services.proxy.request_body import UnauthenticatedBodies
from icedb.services.proxy.s3.request import S3Request
from icedb.services.proxy.s3.s3_errors import S3Error

REQUEST = S3Request("POST", "/iceberg/v1/oauth/tokens", "", (("content-length", "3"),))


async def nothing() -> Message:
    await asyncio.Event().wait()
    raise AssertionError("the event is never set")


async def whole() -> Message:
    return {"type": "http.request", "body": b"abc", "more_body": False}


def test_beyond_the_limit_the_oldest_read_ends_and_the_newest_is_served() -> None:
    async def run() -> None:
        bodies = UnauthenticatedBodies(2)
        silent = []
        for _ in range(5):
            silent.append(asyncio.create_task(bodies.read(REQUEST, nothing)))
            await asyncio.sleep(0)
        ended, waiting = await asyncio.wait(silent, timeout=1)
        assert ended == set(silent[:3])
        assert {str(task.exception()) for task in ended} == {"The body of the request did not arrive in time."}
        assert await bodies.read(REQUEST, whole) == b"abc"
        for task in waiting:
            task.cancel()

    asyncio.run(run())


def test_a_body_that_does_not_arrive_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_body, "UNAUTHENTICATED_BODY_SECONDS", 0.05)
    with pytest.raises(S3Error) as caught:
        asyncio.run(UnauthenticatedBodies(2).read(REQUEST, nothing))
    assert caught.value.code == "RequestTimeout"
