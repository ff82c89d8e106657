"""The costs of opening a table after ten thousand commits, over a network, with an unmerged and a merged log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.harness.figures import OURS, Check, Finding, Plan, Step, Way
from benchmarks.harness.proxy_world import s3_server
from benchmarks.harness.rounds import Case, Work, run_rounds
from benchmarks.harness.slow_store import BUCKET, slow
from benchmarks.opening.made_logs import make_commits
from icedb import Table
from icedb.storage.location import parse_location
from icedb.storage.obstore_store import open_store

__all__ = ["measure_store"]

COMMITS = 10_000
UNMERGED_SECONDS_MAX = 15.0
MERGED_SECONDS_MAX = 1.0
#: Log files that are read sequentially, as a v3 program reads all of them.
SINGLE_GETS = 50

_WHY = "a GET of each log file, many at a time; the server and the proxy share the processors"
_WHY_MERGED = "the replaced log files are listed sequentially until a cleanup deletes them"

_AS_THEY_ARE = "commits as they are"
_MERGED = "after merge_log"
_CLEANED = "after merge_log and cleanup"


def measure_store(plan: Plan, folder: Path, on_step: Step) -> Finding:
    """Measure `Table.open` and `snapshot()` with a store that delays each request."""
    commits = plan.size(COMMITS)
    with s3_server(folder / "server") as server:
        uri = f"s3://{BUCKET}/long"
        on_step(f"store: {commits:,} commits")
        make_commits(uri, server.storage_options, commits)
        direct = Table.open(uri, storage_options=server.storage_options)
        with slow(server.endpoint, plan.latency_ms) as proxy:
            options = server.storage_options | {"AWS_ENDPOINT_URL": proxy.endpoint}
            opening, ways, counts = partial(_opening, uri, options, commits), [], dict[str, float]()

            def measured(name: str) -> None:
                [result] = run_rounds([Case("store", name, opening)], plan.rounds, on_step=on_step, only_reads=True)
                ways.append(Way(f"{OURS}, {name}", result.seconds))
                proxy.reset()
                with opening() as work:
                    work()
                counts.update({f"{name}: {kind}": n for kind, n in sorted(proxy.counts.items())})
                counts[f"{name}: connections"] = len({r.client_port for r in proxy.requests})

            single = _single_get(uri, options)
            measured(_AS_THEY_ARE)
            on_step("store: merge_log")
            direct.merge_log()
            measured(_MERGED)
            on_step("store: cleanup")
            direct.cleanup(grace_ms=0, allow_short_grace=True)
            measured(_CLEANED)
    unmerged, merged, _ = ways
    return Finding(
        "store",
        f"open after {commits:,} commits, {plan.latency_ms:g} ms a request",
        "s",
        ways,
        [
            Check(f"without merge_log under {UNMERGED_SECONDS_MAX:g} s", unmerged.median, UNMERGED_SECONDS_MAX,
                  spread=(min(unmerged.values), max(unmerged.values)), why=_WHY),
            Check(f"after merge_log under {MERGED_SECONDS_MAX:g} s", merged.median, MERGED_SECONDS_MAX,
                  spread=(min(merged.values), max(merged.values)), why=_WHY_MERGED),
        ],
        counts=counts,
        notes=[
            f"{server.name} on this machine, with a proxy process that delays each request by {plan.latency_ms:g} ms. "
            "After merge_log the replaced log files are still listed, a thousand names a request, until cleanup "
            "deletes them.",
            f"v3 reads log files sequentially. Computed with {single * 1000:.1f} ms each, as measured here, that is "
            f"{single * commits:,.0f} s for {commits:,} log files.",
        ],
        short=f"{commits:,} commits, S3",
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
    """Return the median seconds of sequential GETs."""
    store = open_store(parse_location(uri, dict(options)))
    keys = [info.key for info in store.list(store.location.keys.log_prefix)][:SINGLE_GETS]
    seconds = []
    for key in keys:
        started = time.perf_counter()
        store.get(key)
        seconds.append(time.perf_counter() - started)
    return median(seconds)
