"""The overhead of the S3 proxy, beside the same requests to the S3 server itself in the same run.

    python -m benchmarks.proxy

The S3 server, `icedb proxy` and the client are processes on this machine. They share its processors, which counts
against the proxy. Measured are the throughput of a large part, through the proxy and by its redirects; a small range,
alone and eight at a time; a listing of a table of many parts, page by page; the proxy's memory before and after many
requests.

Direct requests and those through the proxy take turns. The median of the ratios of all rounds is checked against the
goal.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid

from benchmarks.harness.memory import memory_bytes
from benchmarks.harness.proxy_world import (
    BUCKET,
    KEY_ID,
    S3,
    SECRET,
    Client,
    boto_client,
    make_proxied_table,
    proxy,
    s3_server,
)

__all__ = ["Figure", "ProxyResults", "ProxyRun", "as_grid", "measure"]

#: Minimum share of the throughput without the proxy.
GOAL_THROUGH, GOAL_REDIRECT = 0.7, 0.95
#: The limit for the parts of the default plan; it is proportional to the number of parts.
GOAL_LISTING_SECONDS, GOAL_LISTING_PARTS = 2.0, 100_000
#: Maximum ratio of the memory after many requests to that before: allocators vary by as much.
GOAL_MEMORY = 1.05
SMALL_BYTES = 64 * 1024
CLIENTS = 8
_TOKEN = re.compile(rb"<NextContinuationToken>([^<]+)</NextContinuationToken>")


@dataclass(frozen=True, slots=True)
class ProxyRun:
    """The sizes of a run. `requests` is the number of requests between two measurements of the proxy's memory."""

    part_bytes: int = 64 * 1024 * 1024
    parts: int = 100_000
    rounds: int = 9
    gets: int = 4
    small_gets: int = 400
    requests: int = 10_000


SHORT = ProxyRun(part_bytes=4 * 1024 * 1024, parts=3_000, rounds=2, gets=2, small_gets=20, requests=200)


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure in each round, through the proxy, and direct if that is possible."""

    name: str
    unit: str
    direct: Sequence[float]
    through: Sequence[float]
    #: The limit of the ratio, or of the figure itself if it has no direct counterpart.
    goal: float | None = None
    #: True if more is better.
    rate: bool = True

    @property
    def compared(self) -> list[float]:
        """The ratios of all rounds, or the figures if they have no direct counterpart."""
        return [t / d for t, d in zip(self.through, self.direct, strict=True)] if self.direct else list(self.through)

    @property
    def met(self) -> bool | None:
        """True if the median meets the goal; None if there is none."""
        if self.goal is None:
            return None
        measured_value = median(self.compared)
        return measured_value >= self.goal if self.rate else measured_value <= self.goal


@dataclass(frozen=True, slots=True)
class ProxyResults:
    """All results."""

    plan: ProxyRun
    server: str
    figures: list[Figure] = field(default_factory=list)


def measure(plan: ProxyRun, folder: Path, *, on_step: Callable[[str], None] = lambda _: None) -> ProxyResults:
    """Measure everything in an empty folder. Raises AssertionError if a response is incomplete."""
    with ExitStack() as stack:
        on_step("starting the S3 server")
        server = stack.enter_context(s3_server(folder / "server"))
        on_step("making tables")
        large, small = make_proxied_table(
            server, "bytes", days=1, parts=2, bodies=[os.urandom(plan.part_bytes), os.urandom(1024 * 1024)]
        )
        make_proxied_table(server, "many", days=365, parts=plan.parts)
        on_step("starting proxies")
        endpoint, process = stack.enter_context(proxy(folder / "proxy", server, ["bytes", "many"], redirect=False))
        redirecting, _ = stack.enter_context(proxy(folder / "redirecting", server, ["bytes"], redirect=True))
        measured = ProxyResults(plan, server.name)
        measured.figures.extend(_large_parts(plan, server, endpoint, redirecting, large, on_step))
        measured.figures.extend(_small_ranges(plan, server, endpoint, small, on_step))
        measured.figures.extend(_listings(plan, endpoint, on_step))
        measured.figures.append(_memory(plan, endpoint, process, small, on_step))
    return measured


# ------------------------------------------------------------------------------------------ bytes


def _large_parts(
    plan: ProxyRun, server: S3, endpoint: str, redirecting: str, key: str, on_step: Callable[[str], None]
) -> list[Figure]:
    ways = {
        "direct": (_direct(server), BUCKET, f"bytes/_data/{key}"),
        "through": (_through(endpoint), "bytes", key),
        "redirect": (_through(redirecting), "bytes", key),
    }
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(plan.rounds + 1):
        for way, (client, bucket, name) in _turned(ways, number):
            on_step(f"a part of {plan.part_bytes / 1e6:.0f} MB, {way}: " + _round(number))
            request = client.signed(bucket, name)
            started = time.perf_counter()
            for _ in range(plan.gets):
                _must(client.get(request), plan.part_bytes)
            if number:
                rates[way].append(plan.gets * plan.part_bytes / 1e6 / (time.perf_counter() - started))
    for client, _, _ in ways.values():
        client.close()
    name = f"GET of {plan.part_bytes / 1024**2:.0f} MiB"
    return [
        Figure(f"{name}, through", "MB/s", rates["direct"], rates["through"], GOAL_THROUGH),
        Figure(f"{name}, redirected", "MB/s", rates["direct"], rates["redirect"], GOAL_REDIRECT),
    ]


def _small_ranges(plan: ProxyRun, server: S3, endpoint: str, key: str, on_step: Callable[[str], None]) -> list[Figure]:
    ways = {
        "direct": (lambda: _direct(server), BUCKET, f"bytes/_data/{key}"),
        "through": (lambda: _through(endpoint), "bytes", key),
    }
    latencies: dict[str, list[float]] = {way: [] for way in ways}
    alone: dict[str, list[float]] = {way: [] for way in ways}
    at_once: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(plan.rounds + 1):
        for way, (connect, bucket, name) in _turned(ways, number):
            on_step(f"ranges of {SMALL_BYTES // 1024} KB, {way}: " + _round(number))
            seconds = _repeated(connect, bucket, name, plan.small_gets)
            started = time.perf_counter()
            _at_once(connect, bucket, name, plan.small_gets)
            if number:
                latencies[way].append(median(seconds) * 1000)
                alone[way].append(len(seconds) / sum(seconds))
                at_once[way].append(plan.small_gets * CLIENTS / (time.perf_counter() - started))
    name = f"GET of {SMALL_BYTES // 1024} KiB"
    return [
        Figure(f"{name}, median latency", "ms", latencies["direct"], latencies["through"], rate=False),
        Figure(f"{name}, one client", "requests/s", alone["direct"], alone["through"]),
        Figure(f"{name}, {CLIENTS} clients", "requests/s", at_once["direct"], at_once["through"]),
    ]


def _repeated(connect: Callable[[], Client], bucket: str, key: str, number: int) -> list[float]:
    """Return the seconds of each of some sequential requests over one connection."""
    client = connect()
    request = client.signed(bucket, key, range=f"bytes=1000-{SMALL_BYTES + 999}")
    seconds = []
    for _ in range(number):
        started = time.perf_counter()
        _must(client.get(request), SMALL_BYTES)
        seconds.append(time.perf_counter() - started)
    client.close()
    return seconds


def _at_once(connect: Callable[[], Client], bucket: str, key: str, number: int) -> None:
    """Send requests from several clients at once."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            _repeated(connect, bucket, key, number)
        except BaseException as error:  # noqa: BLE001 -- raised below, where it is seen
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


# ------------------------------------------------------------------------------------------ listings and memory


def _listings(plan: ProxyRun, endpoint: str, on_step: Callable[[str], None]) -> list[Figure]:
    client, boto = _through(endpoint), boto_client(endpoint)
    seconds: dict[str, list[float]] = {"raw": [], "boto3": []}
    on_step("the first look at the log of many parts")
    started = time.perf_counter()
    client.text(client.signed("many", query={"list-type": "2", "max-keys": "1"}))
    first = time.perf_counter() - started
    for number in range(plan.rounds + 1):
        for way in seconds:
            on_step(f"a listing of {plan.parts:,} parts, {way}: " + _round(number))
            started = time.perf_counter()
            _must(_list_raw(client) if way == "raw" else _list_boto(boto), plan.parts)
            if number:
                seconds[way].append(time.perf_counter() - started)
    client.close()
    name = f"listing of {plan.parts:,} parts"
    goal = GOAL_LISTING_SECONDS * plan.parts / GOAL_LISTING_PARTS
    return [
        Figure(f"{name}, a client that only counts", "s", [], seconds["raw"], goal, rate=False),
        Figure(f"{name}, boto3", "s", [], seconds["boto3"], rate=False),
        Figure(f"its first page, the log unknown ({plan.parts:,} markers)", "s", [], [first], rate=False),
    ]


def _list_raw(client: Client) -> int:
    """Return the number of keys on all pages."""
    keys, token = 0, ""
    while True:
        query = {"list-type": "2"} | ({"continuation-token": token} if token else {})
        page = client.text(client.signed("many", query=query))
        keys += page.count(b"<Key>")
        following = _TOKEN.search(page)
        if following is None:
            return keys
        token = following[1].decode()


def _list_boto(boto: Any) -> int:
    pages = boto.get_paginator("list_objects_v2").paginate(Bucket="many")
    return sum(page["KeyCount"] for page in pages)


def _memory(plan: ProxyRun, endpoint: str, process: int, key: str, on_step: Callable[[str], None]) -> Figure:
    """Return the memory of the proxy before and after many requests of several clients."""
    each = max(1, plan.requests // CLIENTS)
    on_step("memory: requests before the first look")
    _at_once(lambda: _through(endpoint), "bytes", key, each)
    before = memory_bytes("VmRSS", process)
    on_step(f"memory: {each * CLIENTS:,} requests")
    _at_once(lambda: _through(endpoint), "bytes", key, each)
    after = memory_bytes("VmRSS", process)
    mib = 1024**2
    return Figure(
        f"memory after {each * CLIENTS:,} GETs more", "MiB", [before / mib], [after / mib], GOAL_MEMORY, rate=False
    )


# ------------------------------------------------------------------------------------------ turns


def _direct(server: S3) -> Client:
    return Client(server.endpoint, server.key_id, server.secret)


def _through(endpoint: str) -> Client:
    return Client(endpoint, KEY_ID, SECRET)


def _turned(ways: dict[str, Any], number: int) -> list[tuple[str, Any]]:
    """Reverse the order in every second round, so that a drift within a round affects all ways equally."""
    return list(ways.items())[:: 1 if number % 2 else -1]


def _round(number: int) -> str:
    return f"round {number}" if number else "warm-up"


def _must(measured_value: int, expected: int) -> None:
    if measured_value != expected:
        raise AssertionError(f"the count is {measured_value:,} instead of {expected:,}")


# ------------------------------------------------------------------------------------------ output


def as_grid(measured: ProxyResults) -> Grid:
    """Return the results as a table."""
    title = f"Median of {measured.plan.rounds} rounds; {measured.server}, {os.cpu_count()} processors"
    grid = Grid(title=title, title_justify="left", box=SIMPLE_HEAD)
    grid.add_column("", no_wrap=True)
    for name in ("direct, or before", "proxy, or after", "ratio", "least, greatest", "goal", ""):
        grid.add_column(name, justify="right", no_wrap=True)
    for figure in measured.figures:
        verdict = {True: "met", False: "missed", None: ""}[figure.met]
        measured_value = figure.compared
        grid.add_row(
            figure.name,
            _formatted(median(figure.direct), figure.unit) if figure.direct else "",
            _formatted(median(figure.through), figure.unit),
            f"{median(measured_value):.3f}" if figure.direct else "",
            f"{min(measured_value):.3f}, {max(measured_value):.3f}" if len(measured_value) > 1 else "",
            "" if figure.goal is None else f"{'≥' if figure.rate else '≤'} {figure.goal:.4g}",
            verdict,
        )
    return grid


def _formatted(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def as_json(measured: ProxyResults) -> dict[str, Any]:
    """Return the results as JSON."""
    return {
        "plan": asdict(measured.plan),
        "server": measured.server,
        "figures": [
            asdict(f) | {"compared": f.compared, "median": median(f.compared), "met": f.met} for f in measured.figures
        ],
    }


def main(
    short: Annotated[bool, typer.Option("--short", help="Use small sizes, to check that it works.")] = False,
    parts: Annotated[int, typer.Option(min=1_000, help="Parts of the listed table.")] = 100_000,
    rounds: Annotated[int, typer.Option(min=1, help="Measured rounds, after a warm-up round.")] = 9,
    folder: Annotated[Path | None, typer.Option(help="Folder for temporary files, on a fast local disk.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the results as JSON.")] = None,
) -> None:
    """Measure requests through the proxy."""
    plan = SHORT if short else ProxyRun(parts=parts, rounds=rounds)
    console = Console(width=None if sys.stdout.isatty() else 140)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="icedb-proxy-", dir=folder) as name,
        console.status("starting") as status,
    ):
        measured = measure(plan, Path(name), on_step=status.update)
    console.print(as_grid(measured))
    if json_file is not None:
        json_file.write_text(json.dumps(as_json(measured), indent=2))


if __name__ == "__main__":
    typer.run(main)
