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
from icedb.operations.rewrite.watch import watch
from icedb.testing import ClockedStore, FaultyStore, ManualClock, check_sound, create_table
from tests.support.programs.watch_program import WatchProgram


class Rounds(threading.Event):
    """Waits no time at all: notes how long it would have waited, does what comes next, and stops after that."""

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


class Told:
    """What a watch said."""

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


def run(table: Table, stop: threading.Event, **options: Any) -> Told:
    told = Told()
    watch(table, stop=stop, on_merge=told.on_merge, on_wait=told.on_wait, **options)
    return told


def test_a_round_on_a_quiet_table_is_one_listing(table: Table, store: FaultyStore) -> None:
    insert(table, 1, 2)
    counted: list[int] = []
    look = lambda: counted.append(len(store.requests))  # noqa: E731
    stop = Rounds(look, look, look, look)
    told = run(table, stop, orders=("newest", "oldest"))
    assert [(order, report.new_parts) for order, report in told.merges] == [("newest", 2)]
    quiet = store.requests[counted[1] : counted[3]]
    assert [request.kind for request in quiet] == ["list", "list"], "two rounds, of both orders"
    assert stop.waits == [5.0] * 5


def test_both_orders_have_their_turns_while_there_is_more(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(icedb.operations.rewrite.watch, "INPUT_PARTS_MAX", 2)
    insert(table, 1, 2, 3, 4, 5)
    stop = Rounds()
    told = run(table, stop, orders=("newest", "oldest"))
    merged = [(order, report.commit.parts[0].partition) for order, report in told.merges]
    assert merged == [("newest", "k=5"), ("oldest", "k=1"), ("newest", "k=4"), ("oldest", "k=2"), ("newest", "k=3")]
    assert stop.waits == [5.0], "it rests when all is merged"


def test_trouble_is_waited_out_longer_and_longer_and_told(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[IceDBError | None] = [
        StoreUnavailable("no answer"), CommitStateUnknown("published or not"), *[StoreUnavailable("no answer")] * 4,
        None, StoreUnavailable("no answer"), None,
    ]  # fmt: skip
    merge = Table.merge

    def failing(self: Table, **options: Any) -> MergeReport:
        if error := errors.pop(0):
            raise error
        return merge(self, **options)

    monkeypatch.setattr(Table, "merge", failing)
    insert(table, 1)
    stop = Rounds(*[lambda: None] * 8)
    told = run(table, stop)
    assert [wait_ms for _, wait_ms in told.waits] == [5_000, 10_000, 20_000, 40_000, 60_000, 60_000, 5_000]
    assert stop.waits == [5, 10, 20, 40, 60, 60, 5, 5, 5]
    assert told.waits[1][0] == "CommitStateUnknown"
    assert len(told.merges) == len(table.snapshot().parts) == 1


def test_what_somebody_must_look_at_ends_the_watch(table: Table, store: FaultyStore) -> None:
    insert(table, 1)
    store.inner.delete([table.snapshot().parts[0].key])
    with pytest.raises(IceDBError, match="cannot be read"):
        run(table, Rounds())
    for options in ({"every_ms": 0}, {"orders": ()}):
        with pytest.raises(InvalidOption, match="every_ms is"):
            run(table, Rounds(), **options)


def test_the_merge_under_way_is_finished_and_no_other_begun(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(icedb.operations.rewrite.watch, "INPUT_PARTS_MAX", 2)
    insert(table, 1, 2, 3)
    stop = threading.Event()
    merge = Table.merge

    def asked_to_stop(self: Table, **options: Any) -> MergeReport:
        stop.set()
        return merge(self, **options)

    monkeypatch.setattr(Table, "merge", asked_to_stop)
    told = run(table, stop, orders=("newest", "oldest"))
    assert [report.new_parts for _, report in told.merges] == [1]
    assert len(table.snapshot().parts) == 5


# ------------------------------------------------------------------------------------------ as a program


@pytest.mark.process
@pytest.mark.sampled(cases=1)
def test_two_watches_in_both_directions_lose_no_row_and_end_when_told(shared_place: Any) -> None:
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
        said = [newest.errors.read(), oldest.errors.read()]
    finally:
        for program in (newest, oldest):
            program.kill()
    assert "merging every 0.02 s" in newest.begun
    assert (statuses, "error" in "".join(said)) == ([0, 0], False), said
    for line in map(json.loads, newest.lines):
        assert line["order"] == "newest"
        assert bool(line["merged_parts"]) == (line["log_file"] is not None)
    assert all(" oldest: " in line and " became " in line for line in oldest.lines)
    assert table.query("SELECT n FROM t ORDER BY n").fetchall() == [(n,) for n in range(inserted)]
    assert table.verify(deep=True).ok
    check_sound(table.handle.store)


def test_the_command_says_what_it_would_merge(local: Any) -> None:
    table = Table.create(local.uri, partition_by=["k"])
    insert(table, 1, 2)
    for arguments, parts in ((["--dry-run"], 4), (["--part-bytes-max", "1"], 4), ([], 2)):
        result = CliRunner().invoke(app, ["merge", table.uri, "--json", *arguments])
        report = json.loads(result.stdout)
        assert report["dry_run"] == ("--dry-run" in arguments)
        assert report["merged_parts"] == (0 if "--part-bytes-max" in arguments else 4)
        assert len(table.snapshot().parts) == parts


def test_a_watch_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    for options, message in (
        (["--watch", "--dry-run"], "--watch excludes --dry-run"),
        (["--every", "5s"], "--every requires --watch"),
        (["--order", "both"], "--order both requires --watch"),
    ):
        result = CliRunner().invoke(app, ["merge", str(tmp_path / "none"), *options])
        assert result.exit_code == 2
        assert message in result.output
    with pytest.raises(TableNotFound):
        Table.open(tmp_path / "none")
