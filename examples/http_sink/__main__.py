"""`python -m examples.http_sink`: four programs send while the service is killed with -9; each event is stored once."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import icedb
from examples.http_sink.sink import EventsRejected, HTTPSink
from examples.shared.alone import Stage, run_alone
from examples.shared.numbers import NumbersDisagree, agree
from examples.shared.service import IngestService, free_port

KEY = "sensors-key-0123456789"
PROGRAMS, BATCHES, EVENTS = 4, 15, 40
START = datetime(2026, 11, 21, tzinfo=UTC)


def batch(program: int, number: int) -> list[dict[str, object]]:
    """Return the measurements of one program."""
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
    """Return the configuration file with another port and table address."""
    text = (Path(__file__).parent / "ingest.toml").read_text()
    return text.replace("127.0.0.1:8080", f"127.0.0.1:{port}").replace("lake/events", uri)


def story(stage: Stage) -> None:
    """Send events, kill and restart the service meanwhile, and query."""
    uri, port = stage.uri("events"), free_port()
    os.environ["SENSORS_KEY"] = KEY
    with IngestService(config(port, uri)) as service:
        half_is_sent = threading.Event()
        with ThreadPoolExecutor(PROGRAMS) as programs:
            running = [programs.submit(run, service.endpoint, program, half_is_sent) for program in range(PROGRAMS)]
            half_is_sent.wait(60)
            service.kill()
            service.start()
            answers = [answer for program in running for answer in program.result()]
        agree("acknowledged events", sum(n for n, _ in answers), PROGRAMS * BATCHES * EVENTS,
              source="the batches")  # fmt: skip
        if not (retries := sum(n for _, n in answers)):
            raise NumbersDisagree("no request was retried, although the service was killed")
        stage.say(f"The service was killed with -9 and restarted; {retries} requests were retried.")

        try:
            HTTPSink(service.endpoint, "events", KEY).send([{"id": "bad", "celsius": "warm"}])
        except EventsRejected as error:
            stage.say(f"An invalid event is rejected at once: {error}")
        else:
            raise NumbersDisagree("a temperature that is not a number was accepted")

    table = icedb.Table.open(uri)
    [(rows, ids)] = table.query("SELECT count(*), count(DISTINCT id) FROM t").fetchall()
    agree("events in the table", rows, PROGRAMS * BATCHES * EVENTS, source="the batches")
    agree("ids in the table", ids, rows, source="the table's rows")
    answer = table.query("""
        SELECT device, count(*) AS events, avg(celsius) AS mean, max(celsius) AS greatest
        FROM t GROUP BY device ORDER BY device
    """)
    stage.show("Measurements by device", answer)
    agree("greatest by device", [row[3] for row in answer.fetchall()], [greatest(p) for p in range(PROGRAMS)],
          source="the batches")  # fmt: skip


def run(endpoint: str, program: int, half_is_sent: threading.Event) -> Sequence[tuple[int, int]]:
    """Send all batches of one program. Return, for each, the acknowledged events and the retries."""
    sink, answers = HTTPSink(endpoint, "events", KEY), []
    for number in range(BATCHES):
        if number == BATCHES // 2:
            half_is_sent.set()
        before = sink.retries
        answer = sink.send(batch(program, number))
        answers.append((int(answer["accepted"]) + int(answer["repeated"]), sink.retries - before))
    return answers


def greatest(program: int) -> float:
    """Return the greatest temperature that a program sent."""
    return max(float(str(event["celsius"])) for number in range(BATCHES) for event in batch(program, number))


if __name__ == "__main__":
    sys.exit(run_alone(story))
