"""`python -m examples.http_sink`: four programs send while the service is killed with -9; each event is there once."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import icedb
from examples.http_sink.sink import HTTPSink, Refused
from examples.shared.alone import Stage, run_alone
from examples.shared.numbers import NumbersDisagree, agree
from examples.shared.service import Service, free_port

KEY = "sensors-key-0123456789"
PROGRAMS, BATCHES, EVENTS = 4, 15, 40
START = datetime(2026, 11, 21, tzinfo=UTC)


def batch(program: int, number: int) -> list[dict[str, object]]:
    """What one program has measured."""
    return [
        {
            "id": f"{program}-{number}-{n}",
            "ts": (START + timedelta(minutes=number * EVENTS + n)).isoformat(),
            "device": program,
            "celsius": 18 + program + (n * 7 + number) % 40 / 10,
        }
        for n in range(EVENTS)
    ]


def config(port: int, uri: str) -> str:
    """The configuration beside this file, for another port and another place."""
    text = (Path(__file__).parent / "ingest.toml").read_text()
    return text.replace("127.0.0.1:8080", f"127.0.0.1:{port}").replace("lake/events", uri)


def story(stage: Stage) -> None:
    """Send, kill the service meanwhile, start it again, ask."""
    uri, port = stage.uri("events"), free_port()
    os.environ["SENSORS_KEY"] = KEY
    with Service(config(port, uri)) as service:
        half_is_sent = threading.Event()
        with ThreadPoolExecutor(PROGRAMS) as programs:
            running = [programs.submit(run, service.endpoint, program, half_is_sent) for program in range(PROGRAMS)]
            half_is_sent.wait(60)
            service.kill()
            service.start()
            answers = [answer for program in running for answer in program.result()]
        agree("events that were answered for", sum(n for n, _ in answers), PROGRAMS * BATCHES * EVENTS,
              source="the batches")  # fmt: skip
        if not (retries := sum(n for _, n in answers)):
            raise NumbersDisagree("nothing was sent again, though the service was killed")
        stage.say(f"The service was killed with -9 and started again; {retries} requests were sent once more.")

        try:
            HTTPSink(service.endpoint, "events", KEY).send([{"id": "bad", "celsius": "warm"}])
        except Refused as refused:
            stage.say(f"An event that is wrong is refused at once: {refused}")
        else:
            raise NumbersDisagree("a temperature that is no number was taken")

    table = icedb.Table.open(uri)
    [(rows, ids)] = table.query("SELECT count(*), count(DISTINCT id) FROM t").fetchall()
    agree("events in the table", rows, PROGRAMS * BATCHES * EVENTS, source="the batches")
    agree("ids in the table", ids, rows, source="the table's rows")
    answer = table.query("""
        SELECT device, count(*) AS events, avg(celsius) AS mean, max(celsius) AS greatest
        FROM t GROUP BY device ORDER BY device
    """)
    stage.show("What the devices measured", answer)
    agree("greatest by device", [row[3] for row in answer.fetchall()], [greatest(p) for p in range(PROGRAMS)],
          source="the batches")  # fmt: skip


def run(endpoint: str, program: int, half_is_sent: threading.Event) -> Sequence[tuple[int, int]]:
    """One program: send all batches. Of each, the events answered for, and how often it was sent again."""
    sink, answers = HTTPSink(endpoint, "events", KEY), []
    for number in range(BATCHES):
        if number == BATCHES // 2:
            half_is_sent.set()
        before = sink.retries
        answer = sink.send(batch(program, number))
        answers.append((int(answer["accepted"]) + int(answer["repeated"]), sink.retries - before))
    return answers


def greatest(program: int) -> float:
    """The greatest temperature that a program sent."""
    return max(float(str(event["celsius"])) for number in range(BATCHES) for event in batch(program, number))


if __name__ == "__main__":
    sys.exit(run_alone(story))
