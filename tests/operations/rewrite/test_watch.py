"""Repeated merges: an idle table costs a listing a round, retryable errors are waited out, and no row is lost."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import icedb.operations.rewrite.watch
from icedb import MergeReport, Table
from icedb.cli import app
from icedb.errors import CommitStateUnknown, IceDBError, InvalidOption, StoreUnavailable, TableNotFound
from icedb.operations.rewrite.merge import merge
from icedb.operations.rewrite.watch import watch
from icedb.testing import ClockedStore, FaultyStore, ManualClock, check_sound, create_table
from icedb.transaction.table_handle import Handle
from tests.support.programs.watch_program import WatchProgram


class Rounds(threading.Event):
    """Records the requested waits instead of waiting, runs one act in each, and is set after the last."""

    def __init__(self, *acts: Callable[[], object]) -> None:
        super().__init__()
        self.waits: list[float | None] = []
        self._acts = list(acts)

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        if not self._acts:
            self.set()
        else:
            self._acts.pop(0)()
        return self.is_set()


class WatchCalls:
    """The calls that a watch made."""

    def __init__(self) -> None:
        self.merges: list[tuple[str, MergeReport]] = []
        self.waits: list[tuple[str, int]] = []

    def on_merge(self, order: str, report: MergeReport) -> None:
        self.merges.append((order, report))

    def on_wait(self, error: IceDBError, wait_ms: int) -> None:
        self.waits.append((type(error).__name__, wait_ms))


@pytest.fixture
def store(clock: ManualClock) -> FaultyStore:
    return FaultyStore(ClockedStore(clock))


@pytest.fixture
def table(store: FaultyStore, clock: ManualClock) -> Table:
    return create_table(store, clock, partition_by=["k"])


def insert(table: Table, *keys: int, times: int = 2) -> None:
    for n in range(times):
        table.insert([{"k": k, "n": n} for k in keys])


def run(table: Table, stop: threading.Event, **options: Any) -> WatchCalls:
    calls = WatchCalls()
    watch(table.handle, stop=stop, on_merge=calls.on_merge, on_wait=calls.on_wait, **options)
    return calls


def test_a_round_on_a_quiet_table_is_one_listing(table: Table, store: FaultyStore) -> None:
    insert(table, 1, 2)
    counted: list[int] = []
    look = lambda: counted.append(len(store.requests))  # noqa: E731
    stop = Rounds(look, look, look, look)
    calls = run(table, stop, orders=("newest", "oldest"))
    assert [(order, report.new_parts) for order, report in calls.merges] == [("newest", 2)]
    quiet = store.requests[counted[1] : counted[3]]
    assert [request.kind for request in quiet] == ["list", "list"], "two rounds, of both orders"
    assert stop.waits == [5.0] * 5


@pytest.mark.sampled(days=3)
def test_both_orders_alternate_while_groups_remain(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(icedb.operations.rewrite.watch, "INPUT_PARTS_MAX", 2)
    insert(table, 1, 2, 3, 4, 5)
    stop = Rounds()
    calls = run(table, stop, orders=("newest", "oldest"))
    merged = [(order, report.commit.parts[0].partition) for order, report in calls.merges]
    assert merged == [("newest", "k=5"), ("oldest", "k=1"), ("newest", "k=4"), ("oldest", "k=2"), ("newest", "k=3")]
    assert stop.waits == [5.0], "it rests when all is merged"


def test_retryable_errors_are_reported_and_waits_grow(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[IceDBError | None] = [
        StoreUnavailable("no answer"), CommitStateUnknown("published or not"), *[StoreUnavailable("no answer")] * 4,
        None, StoreUnavailable("no answer"), None,
    ]  # fmt: skip

    def failing(handle: Handle, **options: Any) -> MergeReport:
        if error := errors.pop(0):
            raise error
        return merge(handle, **options)

    monkeypatch.setattr(icedb.operations.rewrite.watch, "merge", failing)
    insert(table, 1)
    stop = Rounds(*[lambda: None] * 8)
    calls = run(table, stop)
    assert [wait_ms for _, wait_ms in calls.waits] == [5_000, 10_000, 20_000, 40_000, 60_000, 60_000, 5_000]
    assert stop.waits == [5, 10, 20, 40, 60, 60, 5, 5, 5]
    assert calls.waits[1][0] == "CommitStateUnknown"
    assert len(calls.merges) == len(table.snapshot().parts) == 1


def test_an_error_that_needs_an_operator_ends_the_watch(table: Table, store: FaultyStore) -> None:
    insert(table, 1)
    store.inner.delete([table.snapshot().parts[0].key])
    with pytest.raises(IceDBError, match="cannot be read"):
        run(table, Rounds())
    for options in ({"every_ms": 0}, {"orders": ()}):
        with pytest.raises(InvalidOption, match="every_ms is"):
            run(table, Rounds(), **options)


def test_a_stop_finishes_the_current_merge(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(icedb.operations.rewrite.watch, "INPUT_PARTS_MAX", 2)
    insert(table, 1, 2, 3)
    stop = threading.Event()

    def asked_to_stop(handle: Handle, **options: Any) -> MergeReport:
        stop.set()
        return merge(handle, **options)

    monkeypatch.setattr(icedb.operations.rewrite.watch, "merge", asked_to_stop)
    calls = run(table, stop, orders=("newest", "oldest"))
    assert [report.new_parts for _, report in calls.merges] == [1]
    assert len(table.snapshot().parts) == 5


# ------------------------------------------------------------------------------------------ as a program


@pytest.mark.process
@pytest.mark.sampled(cases=1, days=3)
def test_two_watches_of_both_orders_lose_no_row_and_end_on_a_signal(shared_place: Any) -> None:
    table = Table.create(
        shared_place.uri, partition_by=["k"], sort_by=["n"], storage_options=shared_place.storage_options
    )
    newest = WatchProgram(shared_place.uri, "--json", "--order", "newest", environ=shared_place.storage_options)
    oldest = WatchProgram(shared_place.uri, "--order", "oldest", environ=shared_place.storage_options)
    inserted = 0
    try:
        while inserted < 600 or not (newest.lines and oldest.lines):  # the test's timeout ends what does not end
            table.insert([{"k": n % 3, "n": n} for n in range(inserted, inserted + 20)])
            inserted += 20
        statuses = [newest.end(signal.SIGTERM), oldest.end(signal.SIGINT)]
        output = [newest.errors.read(), oldest.errors.read()]
    finally:
        for program in (newest, oldest):
            program.kill()
    assert "merging every 0.02 s" in newest.begun
    assert (statuses, "error" in "".join(output)) == ([0, 0], False), output
    for line in map(json.loads, newest.lines):
        assert line["order"] == "newest"
        assert bool(line["merged_parts"]) == (line["log_file"] is not None)
    assert all(" oldest: merged " in line or " oldest: nothing to merge" in line for line in oldest.lines)
    assert table.query("SELECT n FROM t ORDER BY n").fetchall() == [(n,) for n in range(inserted)]
    assert table.verify(deep=True).ok
    check_sound(table.handle.store)


def test_the_command_reports_what_it_would_merge(local: Any) -> None:
    table = Table.create(local.uri, partition_by=["k"])
    insert(table, 1, 2)
    for arguments, parts in ((["--dry-run"], 4), (["--part-bytes-max", "1"], 4), (["--max-time", "1m"], 2)):
        result = CliRunner().invoke(app, ["merge", table.uri, "--json", *arguments])
        report = json.loads(result.stdout)
        assert report["dry_run"] == ("--dry-run" in arguments)
        assert report["merged_parts"] == (0 if "--part-bytes-max" in arguments else 4)
        assert len(table.snapshot().parts) == parts


def test_contradictory_watch_options_are_rejected(tmp_path: Path) -> None:
    for options, message in (
        (["--watch", "--dry-run"], "--watch excludes --dry-run"),
        (["--every", "5s"], "--every requires --watch"),
        (["--watch", "--max-time", "1m"], "--watch has no end"),
        (["--order", "both"], "--order both requires --watch"),
    ):
        result = CliRunner().invoke(app, ["merge", str(tmp_path / "none"), *options])
        assert result.exit_code == 2
        assert message in result.output
    with pytest.raises(TableNotFound):
        Table.open(tmp_path / "none")
