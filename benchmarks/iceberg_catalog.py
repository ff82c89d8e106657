"""The Iceberg catalog of the proxy over a table of many parts: loads, plans of engines, and memory.

    python -m benchmarks.iceberg_catalog [--parts 100000]

Engines and `icedb proxy` are processes on this machine. The parts are links to a few small files in a folder. Measured
are: the proxy's processor time for a load of the table, first and after an append, where the read of the log counts
separately, and for the manifest list after that; planning in pyiceberg and DuckDB; the time of many loads, and the
proxy's memory before and after them.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.harness.memory import memory_bytes
from benchmarks.harness.processes import server
from benchmarks.harness.proxy_world import KEY_ID, SECRET, boto_client
from icedb import Table
from icedb.format.records import Marker
from icedb.sql.column_stats import encode_statistics
from icedb.transaction.append import append

__all__ = ["measure"]

_LISTENING = re.compile(r"listening on http://(\S+?)[,;]")
#: Parts of a commit. File systems limit the links to a file.
COMMIT_PARTS = 1_000
APPENDS, APPEND_PARTS = 9, 20
TABLE = "/iceberg/v1/namespaces/tables/tables/events"
#: Longer than the proxy's `refresh`.
REFRESH_SECONDS = 1.1


def measure(folder: Path, parts: int, loads: int, show: Callable[[str], None]) -> None:
    """Create the table in an empty folder, serve it, and show each figure."""
    table = Table.create(str(folder / "events"), partition_by=["n % 10 AS u"], sort_by=["n"])
    table.insert([{"n": 0}])
    while len(table.snapshot().parts) < parts:
        _add(table, min(COMMIT_PARTS, parts - len(table.snapshot().parts)))
    config = folder / "proxy.toml"
    tenant = (
        f'keys = [{{ id = "{KEY_ID}", secret = "{SECRET}" }}]\nbucket = [{{ name = "events", table = "{table.uri}" }}]'
    )
    config.write_text(
        '[server]\nlisten = "127.0.0.1:0"\n\n[iceberg]\nenabled = true\n\n[[tenant]]\nname = "benchmark"\n' + tenant
    )
    command = [sys.executable, "-m", "icedb.cli", "proxy", "--config", str(config)]
    with server("the proxy", command, folder, {}, _LISTENING.search) as (pid, match):
        _measure_proxy(table, f"http://{match[1]}", pid, loads, show)


def _add(table: Table, parts: int) -> None:
    """Commit parts that are links to a copy of the first part."""
    handle = table.handle
    first = table.snapshot().parts[0]
    stats = encode_statistics({"n": "BIGINT"}, ["0", "0", "1"], 1)
    keys = [handle.keys.part(first.partition, handle.clock.new_id()) for _ in range(parts)]
    markers = [Marker(key, first.bytes, handle.clock.now_ms(), rows=1, stats=stats) for key in keys]
    paths = [Path(table.uri, marker.key) for marker in markers]
    shutil.copy(first.path, paths[0])
    for path in paths[1:]:
        os.link(paths[0], path)
    append(handle, markers, {"n": "BIGINT"}, oldest_part_ms=markers[0].created_ms)


def _measure_proxy(table: Table, endpoint: str, pid: int, loads: int, show: Callable[[str], None]) -> None:
    connection = http.client.HTTPConnection(endpoint.removeprefix("http://"))
    form = f"grant_type=client_credentials&client_id={KEY_ID}&client_secret={SECRET}"
    kind = {"content-type": "application/x-www-form-urlencoded"}
    token = json.loads(_asked(connection, "POST", "/iceberg/v1/oauth/tokens", kind, form))["access_token"]
    headers = {"authorization": f"Bearer {token}"}

    def load() -> dict[str, Any]:
        document: dict[str, Any] = json.loads(_asked(connection, "GET", TABLE, headers))["metadata"]
        return document

    show(f"load, first: {_processor_seconds(pid, load):.2f} s")
    _measure_engines(endpoint, show)
    client = boto_client(endpoint)
    steps: list[tuple[float, float, float]] = []
    for _ in range(APPENDS):
        _add(table, APPEND_PARTS)
        time.sleep(REFRESH_SECONDS)
        log = _processor_seconds(pid, lambda: _asked(connection, "HEAD", TABLE, headers))
        built = _processor_seconds(pid, load)  # from the state that the proxy has just read
        key = load()["snapshots"][-1]["manifest-list"].removeprefix("s3://events/")
        listed = _processor_seconds(pid, partial(_fetch, client, key))
        steps.append((log, built, listed))
    log, built, listed = (1000 * statistics.median(of_step) for of_step in zip(*steps, strict=True))
    show(
        f"after an append of {APPEND_PARTS} parts, median of {APPENDS}: the log {log:.0f} ms, the metadata {built:.0f} "
        f"ms, the manifest list {listed:.0f} ms"
    )
    before, times = _memory(pid), [_seconds(load) for _ in range(loads)]
    median = statistics.median(times)
    show(f"{loads} loads: median {1000 * median:.2f} ms; memory {before:.0f} MiB before, {_memory(pid):.0f} MiB after")


def _fetch(client: Any, key: str) -> None:
    client.get_object(Bucket="events", Key=key)["Body"].read()


def _measure_engines(endpoint: str, show: Callable[[str], None]) -> None:
    import duckdb
    from pyiceberg.catalog import load_catalog

    tokens = f"{endpoint}/iceberg/v1/oauth/tokens"
    options = {"uri": f"{endpoint}/iceberg", "credential": f"{KEY_ID}:{SECRET}", "oauth2-server-uri": tokens}
    catalog = load_catalog("lake", type="rest", **options)
    for which in ("first (the proxy encodes manifests)", "again"):
        seconds = _seconds(lambda: list(catalog.load_table("tables.events").scan().plan_files()))
        show(f"plan in pyiceberg, {which}: {seconds:.2f} s")
    con = duckdb.connect()
    for name in ("avro", "iceberg", "httpfs"):
        package = __import__(f"duckdb_extension_{name}")
        con.load_extension(str(next(Path(package.__path__[0]).rglob(f"{name}.duckdb_extension"))))
    con.execute(
        f"CREATE SECRET (TYPE iceberg, CLIENT_ID '{KEY_ID}', CLIENT_SECRET '{SECRET}', OAUTH2_SERVER_URI '{tokens}')"
    )
    con.execute(f"ATTACH 'lake' AS lake (TYPE iceberg, ENDPOINT '{endpoint}/iceberg')")
    query = "SELECT count(*) FROM lake.tables.events WHERE n = -1"  # no part can have such a row
    show(f"plan in DuckDB: {_seconds(lambda: con.execute(query).fetchall()):.2f} s")


def _asked(
    connection: http.client.HTTPConnection, method: str, path: str, headers: dict[str, str], body: str | None = None
) -> bytes:
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    text = answer.read()
    if answer.status not in (http.HTTPStatus.OK, http.HTTPStatus.NO_CONTENT):
        raise RuntimeError(f"{method} {path}: {answer.status}")
    return text


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _processor_seconds(pid: int, work: Callable[[], object]) -> float:
    """Return the processor time of a process during some work: other processes on the machine do not change it."""

    def used() -> float:
        threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9

    before = used()
    work()
    return used() - before


def _memory(pid: int) -> float:
    return memory_bytes("VmRSS", pid) / 1024**2


def main(
    parts: Annotated[int, typer.Option(help="Parts of the table.")] = 100_000,
    loads: Annotated[int, typer.Option(help="Loads between the two measurements of memory.")] = 10_000,
) -> None:
    """Measure the Iceberg catalog."""
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), parts, loads, typer.echo)


if __name__ == "__main__":
    typer.run(main)
