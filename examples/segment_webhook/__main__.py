"""`python -m examples.segment_webhook`: a shop's day through Segment's endpoints, some calls twice, and its funnel."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import icedb
from examples.segment_webhook.funnel import STEPS, funnel
from examples.segment_webhook.sending import Call, send_as_library, send_as_webhook
from examples.shared.alone import Stage, run_alone
from examples.shared.numbers import agree
from examples.shared.service import IngestService

WRITE_KEY, SECRET = "shop-write-key-0123", "shop-webhook-secret"
PEOPLE = range(400)
START = datetime(2026, 11, 21, 8, tzinfo=UTC)


def calls_of(person: int) -> list[Call]:
    """Return a person's calls: some of the funnel's steps. Every tenth person takes two hours for the order."""
    done = STEPS[: 1 + sum(person % n == 0 for n in (1, 2, 4))] if person % 3 else STEPS[:1]
    begun = START + timedelta(minutes=person)
    calls: list[Call] = [
        {
            "type": "track",
            "messageId": f"{person}-{n}",
            "userId": f"user-{person}",
            "event": event,
            "timestamp": _text(begun + timedelta(minutes=7 * n, hours=2 * (n == 3 and person % 10 == 0))),
            "properties": {"product": f"P{person % 5}", "price": 10 + person % 5},
        }
        for n, event in enumerate(done)
    ]
    return [*calls, {"type": "page", "messageId": f"{person}-page", "userId": f"user-{person}", "name": "Home",
                     "timestamp": _text(begun)}]  # fmt: skip


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")


def story(stage: Stage) -> None:
    """Send calls both ways, then query."""
    every = {person: calls_of(person) for person in PEOPLE}
    os.environ |= {"SEGMENT_WRITE_KEY": WRITE_KEY, "SEGMENT_WEBHOOK_SECRET": SECRET}
    uri = stage.uri("calls")
    config = (Path(__file__).parent / "ingest.toml").read_text()
    config = config.replace("127.0.0.1:8080", "127.0.0.1:0").replace("lake/calls", uri)
    with IngestService(config) as service:
        accepted = repeated = 0
        for first in range(0, len(PEOPLE), 50):
            batch = [call for person in PEOPLE[first : first + 50] for call in every[person]]
            accepted += send_as_library(service.endpoint, WRITE_KEY, batch, _text(START))["accepted"]
        # A webhook repeats some people's calls: a known messageId is not committed again.
        for call in (call for person in PEOPLE[:8] for call in every[person]):
            repeated += send_as_webhook(service.endpoint, "shop", SECRET, call)["repeated"]
    agree("accepted calls", accepted, sum(map(len, every.values())), source="the calls")
    agree("repeated calls", repeated, sum(len(every[person]) for person in PEOPLE[:8]), source="the calls")
    stage.say(f"{accepted:,} calls arrived in library batches; {repeated} arrived again, signed, and were recognized.")

    answer = funnel(icedb.Table.open(uri), "2026-11-21")
    stage.show("From product view to order, within an hour", answer)
    agree("people by step", [row[1] for row in answer.fetchall()], _people_by_step(every), source="the calls")


def _people_by_step(every: dict[int, list[Call]]) -> list[int]:
    reached = [0] * len(STEPS)
    for calls in every.values():
        times = {call["event"]: datetime.fromisoformat(call["timestamp"]) for call in calls if call["type"] == "track"}
        for n, step in enumerate(STEPS):
            if step not in times or times[step] > times[STEPS[0]] + timedelta(hours=1):
                break
            reached[n] += 1
    return reached


if __name__ == "__main__":
    sys.exit(run_alone(story))
