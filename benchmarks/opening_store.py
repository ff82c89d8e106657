"""A table after ten thousand commits, over a network: opened as the commits left it, and after its log was merged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.figures import OURS, Check, Finding, Plan, Step, Way
from benchmarks.opening_world import make_commits
from benchmarks.proxy_world import s3_server
from benchmarks.rounds import Case, Work, run_rounds
from benchmarks.slow_store import BUCKET, slow
from icedb import Table
from icedb.location import parse_location
from icedb.store import open_store

__all__ = ["measure_store"]

COMMITS = 10_000
UNMERGED_SECONDS_MAX = 15.0
MERGED_SECONDS_MAX = 1.0
#: Read one after the other, as a v3 program does with all of them.
SINGLE_GETS = 50

_AS_THEY_ARE = "commits as they are"
_MERGED = "after merge_log"
_CLEANED = "after merge_log and cleanup"


def measure_store(plan: Plan, folder: Path, on_step: Step) -> Finding:
    """`Table.open` and `snapshot()` with a store that lets each request wait."""
    commits = plan.size(COMMITS)
    with s3_server(folder / "server") as server:
        uris = {name: f"s3://{BUCKET}/{number}" for number, name in enumerate((_AS_THEY_ARE, _MERGED))}
        for name, uri in uris.items():
            on_step(f"store: {commits:,} commits, {name}")
            make_commits(uri, server.storage_options, commits)
        merged_table = Table.open(uris[_MERGED], storage_options=server.storage_options)
        merged_table.merge_log()
        with slow(server.endpoint, plan.latency_ms) as proxy:
            options = server.storage_options | {"AWS_ENDPOINT_URL": proxy.endpoint}

            def timed(cases: Mapping[str, str]) -> list[Way]:
                of = [Case("store", name, partial(_opening, uri, options, commits)) for name, uri in cases.items()]
                results = run_rounds(of, plan.rounds, on_step=on_step, only_reads=True)
                return [Way(f"{OURS}, {r.case.name}", r.seconds) for r in results]

            def counted(name: str, uri: str) -> dict[str, float]:
                proxy.reset()
                with _opening(uri, options, commits) as work:
                    work()
                return {f"{kind}, {name}": n for kind, n in sorted(proxy.counts.items())}

            ways = timed(uris)
            counts = counted(_MERGED, uris[_MERGED]) | counted(_AS_THEY_ARE, uris[_AS_THEY_ARE])
            counts["connections"] = len({r.client_port for r in proxy.requests})
            merged_table.cleanup(grace_ms=0, allow_short_grace=True)
            ways += timed({_CLEANED: uris[_MERGED]})
            counts |= counted(_CLEANED, uris[_MERGED])
            single = _single_get(uris[_AS_THEY_ARE], options)
    unmerged, merged, _ = ways
    return Finding(
        "store",
        f"open after {commits:,} commits, {plan.latency_ms:g} ms a request",
        "s",
        ways,
        [
            Check(f"without merge_log under {UNMERGED_SECONDS_MAX:g} s", unmerged.median, UNMERGED_SECONDS_MAX,
                  spread=(min(unmerged.values), max(unmerged.values))),
            Check(f"after merge_log under {MERGED_SECONDS_MAX:g} s", merged.median, MERGED_SECONDS_MAX,
                  spread=(min(merged.values), max(merged.values))),
        ],
        counts=counts,
        notes=[
            f"{server.name} on this machine, each request delayed by {plan.latency_ms:g} ms by a proxy that is a "
            "process of its own. The replaced log files are still listed after merge_log, a thousand names a request, "
            "one request after the other; cleanup deletes them.",
            f"v3's way, computed: one GET after the other, {single * 1000:.1f} ms each as measured here, is "
            f"{single * commits:,.0f} s for {commits:,} log files.",
        ],
    )  # fmt: skip


@contextmanager
def _opening(uri: str, options: Mapping[str, str], commits: int) -> Iterator[Work]:
    def work() -> Callable[[], None]:
        parts = len(Table.open(uri, storage_options=dict(options)).snapshot().parts)
        if parts != commits:
            raise AssertionError(f"{uri} has {parts} parts after {commits} commits")
        return lambda: None

    yield work


def _single_get(uri: str, options: Mapping[str, str]) -> float:
    """Seconds of a GET that waits for the one before."""
    store = open_store(parse_location(uri, dict(options)))
    keys = [info.key for info in store.list(store.location.keys.log_prefix)][:SINGLE_GETS]
    seconds = []
    for key in keys:
        started = time.perf_counter()
        store.get(key)
        seconds.append(time.perf_counter() - started)
    return median(seconds)
