"""The requests of each operation, counted on a real S3 server and stored in `scale_requests.json`.

    python -m benchmarks.scale_requests --write

A count has a fixed number (`each`), and a number for each part, log file and so on. Operations are counted in several
sizes, whose differences determine the latter.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.harness.slow_store import BUCKET, s3_server, storage_options
from icedb import Table
from tests.support.object_stores.counting_proxy import CountingProxy

__all__ = ["TABLE", "Costs", "count_all", "read_costs", "requests_of"]

TABLE = Path(__file__).with_suffix(".json")

#: Operation -> kind of request -> unit -> requests for each. The unit `each` is the operation itself.
Costs = Mapping[str, Mapping[str, Mapping[str, int]]]


def read_costs() -> Costs:
    """Return the stored counts."""
    counted: Costs = json.loads(TABLE.read_text())
    return counted


def requests_of(costs: Costs, operation: str, **units: float) -> dict[str, float]:
    """Return the requests of an operation by kind, for a number of each unit."""
    unit_counts = {"each": 1.0, **units}
    return {kind: sum(n * unit_counts[unit] for unit, n in of.items()) for kind, of in costs[operation].items()}


def count_all(proxy: CountingProxy, root: str, options: Mapping[str, str]) -> Costs:
    """Count all operations, in tables below an address, through the proxy."""
    world = _OperationCounts(proxy, root, dict(options))
    return {
        "append": _solve({"each": 1, "part": 1}, {"each": 1, "part": 3}, count=world.append),
        "open": _solve({"each": 1, "log_file": 1}, {"each": 1, "log_file": 4}, count=world.open),
        "refresh": _solve({"each": 1}, {"each": 1, "log_file": 3}, count=world.refresh),
        "merge": _solve(
            {"each": 1, "group": 1, "input": 3},
            {"each": 1, "group": 1, "input": 6},
            {"each": 1, "group": 2, "input": 6},
            count=world.merge,
        ),
        "merge_log": _solve({"each": 1}, count=world.merge_log),
        "drop": _solve({"each": 1}, count=world.drop),
        "cleanup": _solve({"each": 1, "log_file": 5}, {"each": 1, "log_file": 8}, count=world.cleanup),
    }


class _OperationCounts:
    """The counts of operations, each in a new table, with a handle that has read the log."""

    def __init__(self, proxy: CountingProxy, root: str, options: dict[str, str]) -> None:
        self._proxy, self._root, self._options = proxy, root, options
        self._tables = 0

    def _table(self, commits: int, groups: int = 1) -> Table:
        self._tables += 1
        table = Table.create(f"{self._root}/t{self._tables}", partition_by=["p"], storage_options=self._options)
        for number in range(commits):
            table.insert([{"p": p, "n": number} for p in range(groups)])
        table.snapshot()
        self._proxy.reset()
        return table

    def _counts(self) -> dict[str, int]:
        return {str(kind): n for kind, n in self._proxy.counts.items()}

    def append(self, *, each: int, part: int) -> dict[str, int]:
        table = self._table(1)
        table.insert([{"p": p, "n": 1} for p in range(part)])
        return self._counts()

    def open(self, *, each: int, log_file: int) -> dict[str, int]:
        uri = self._table(log_file).uri
        self._proxy.reset()
        Table.open(uri, storage_options=self._options).snapshot()
        return self._counts()

    def refresh(self, *, each: int, log_file: int = 0) -> dict[str, int]:
        table = self._table(1)
        other = Table.open(table.uri, storage_options=self._options)
        for number in range(log_file):
            other.insert([{"p": 0, "n": number}])
        self._proxy.reset()
        table.snapshot()
        return self._counts()

    def merge(self, *, each: int, group: int, input: int) -> dict[str, int]:  # noqa: A002 -- the unit's name
        table = self._table(input // group, group)
        _expect(table.merge().merged_parts == input)
        return self._counts()

    def merge_log(self, *, each: int) -> dict[str, int]:
        table = self._table(4)
        _expect(table.merge_log().commit.committed)
        return self._counts()

    def drop(self, *, each: int) -> dict[str, int]:
        table = self._table(2)
        _expect(table.drop_partitions(["p=0"]).commit.committed)
        return self._counts()

    def cleanup(self, *, each: int, log_file: int) -> dict[str, int]:
        # By a handle that has not seen them: the log files that were replaced are read as well.
        table = self._table(log_file - 1)
        table.merge()
        fresh = Table.open(table.uri, storage_options=self._options)
        fresh.snapshot()
        self._proxy.reset()
        # As many as there are, so that it looks once only, as with a grace period.
        deleted = 2 * (log_file - 1)
        report = fresh.cleanup(grace_ms=0, allow_short_grace=True, deletes_max=deleted)
        _expect(report.forgotten == log_file - 1)
        return self._counts()


def _solve(*sizes: Mapping[str, int], count: Callable[..., dict[str, int]]) -> dict[str, dict[str, int]]:
    """Return the requests of each unit. Each size has more of one unit than the size before."""
    before, counted = sizes[0], count(**sizes[0])
    extra: dict[str, dict[str, int]] = {}
    for size in sizes[1:]:
        now = count(**size)
        [unit] = [u for u in size if size[u] != before.get(u, 0)]
        for kind in now.keys() | counted.keys():
            more, rest = divmod(now.get(kind, 0) - counted.get(kind, 0), size[unit] - before.get(unit, 0))
            _expect(not rest)
            if more:
                extra.setdefault(kind, {})[unit] = more
        before, counted = size, now
    for kind, total in counted.items():
        each = total - sum(n * before[unit] for unit, n in extra.get(kind, {}).items())
        if each:
            extra.setdefault(kind, {})["each"] = each
    return {kind: dict(sorted(extra[kind].items())) for kind in sorted(extra)}


def _expect(so: bool) -> None:
    if not so:
        raise RuntimeError("an operation made other changes than expected")


def main(
    write: Annotated[bool, typer.Option("--write", help="Write the counts, for `benchmarks.scale`.")] = False,
) -> None:
    """Count, and compare with the stored counts."""
    with (
        tempfile.TemporaryDirectory() as folder,
        s3_server(Path(folder) / "s3") as endpoint,
        CountingProxy(endpoint).running() as proxy,
    ):
        counted = count_all(proxy, f"s3://{BUCKET}", storage_options(proxy.endpoint))
    typer.echo(json.dumps(counted, indent=2))
    if write:
        TABLE.write_text(json.dumps(counted, indent=2) + "\n")
    elif counted != read_costs():
        typer.echo("not what was kept", err=True)
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
