"""Clients that send events to a service that is killed repeatedly, and the answers they got."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from icedb import Table
from tests.support.ingest.ingest_process import KEY, IngestClient, IngestProcess
from tests.support.processes import free_port

#: Events of a request.
EVENTS = 5
#: The pause of a client after a failed or rejected request.
AGAIN_SECONDS = 0.05


def killing_config(folder: Path, uri: str, storage_options: Mapping[str, str]) -> Path:
    """Write a configuration with one table, and a port that is free now and the same after each start."""
    options = "\n".join(f"{name} = {json.dumps(value)}" for name, value in storage_options.items())
    path = folder / "ingest.toml"
    path.write_text(f"""
[server]
listen = "127.0.0.1:{free_port()}"
[storage_options]
{options}
[[table]]
name = "events"
uri = "{uri}"
create = true
partition_by = ["n % 2 AS half"]
schema = {{ id = "VARCHAR", plain = "VARCHAR", n = "BIGINT" }}
id_column = "id"
delay_max = "20ms"
[[tenant]]
name = "acme"
tables = ["events"]
[[tenant.keys]]
secret = "{KEY}"
""")
    return path


class IngestLoad:
    """Threads that send. Events with an id are sent until they are acknowledged, those without once."""

    def __init__(self, endpoint: str, threads: int = 8) -> None:
        self._endpoint = endpoint
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.acknowledged: set[str] = set()
        self.plain_sent: set[str] = set()
        self.plain_acknowledged: set[str] = set()
        #: Answers that were neither 200 nor 503, and what else should not be.
        self.wrong: list[str] = []
        self.sent_again = 0
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(threads)]

    def __enter__(self) -> IngestLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(120)

    def wait_for(self, more: int) -> None:
        """Until so many more events are acknowledged."""
        target = len(self.acknowledged) + more
        deadline = time.monotonic() + 120
        while len(self.acknowledged) < target and time.monotonic() < deadline and not self.wrong:
            time.sleep(0.005)
        assert not self.wrong, self.wrong[:3]
        assert len(self.acknowledged) >= target, "clients receive no answers"

    def _run(self, thread: int) -> None:
        number = 0
        with IngestClient(self._endpoint, seconds=30) as client:
            while not self._stop.is_set():
                number += 1
                names = [f"{thread}-{number}-{n}" for n in range(EVENTS)]
                if thread < 2:  # without ids
                    with self._lock:
                        self.plain_sent |= set(names)
                    if self._sent(client, [{"plain": name, "n": number} for name in names]):
                        with self._lock:
                            self.plain_acknowledged |= set(names)
                else:
                    events = [{"id": name, "n": number} for name in names]
                    while not self._sent(client, events):
                        with self._lock:
                            self.sent_again += 1
                        if self._stop.is_set():
                            return
                    with self._lock:
                        self.acknowledged |= set(names)

    def _sent(self, client: IngestClient, events: list[dict[str, object]]) -> bool:
        try:
            reply = client.send("events", events)
        except (OSError, http.client.HTTPException):
            self._stop.wait(AGAIN_SECONDS)
            return False
        if reply.status == 200:
            counts = reply.json
            if counts["accepted"] + counts["repeated"] != len(events):
                self.wrong.append(str(counts))
            return True
        if reply.status != 503:
            self.wrong.append(f"{reply.status} {reply.body!r}")
        self._stop.wait(AGAIN_SECONDS)
        return False


def kill_again_and_again(path: Path, kills: int) -> IngestLoad:
    """Kill the service this many times while clients send events, then stop it. Returns the load."""
    with ExitStack() as running:
        service = running.enter_context(IngestProcess(path))
        load = IngestLoad(service.endpoint)
        with load:
            for number in range(kills):
                load.wait_for(more=3 * EVENTS)
                time.sleep(0.007 * (number % 7))  # at another moment of a commit each time
                service.process.kill()
                service.process.wait()
                service = running.enter_context(IngestProcess(path))
            load.wait_for(more=3 * EVENTS)
    return load


def check_nothing_lost_or_doubled(table: Table, load: IngestLoad) -> None:
    """Compare the acknowledged events with the table."""
    ids = Counter(i for (i,) in table.query("SELECT id FROM t WHERE id IS NOT NULL").fetchall())
    plain = Counter(p for (p,) in table.query("SELECT plain FROM t WHERE plain IS NOT NULL").fetchall())
    assert load.acknowledged <= set(ids), "acknowledged events are lost"
    assert max(ids.values()) == 1, "an event with an id is duplicated"
    assert load.plain_acknowledged <= set(plain), "acknowledged events without an id are lost"
    assert set(plain) <= load.plain_sent
    assert max(plain.values()) == 1, "an event that was sent once is duplicated"
    assert table.verify(deep=True).ok
