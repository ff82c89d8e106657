"""The simulation finds no violation in some hundred runs, and detects seeded faults.

The short scope has the same seeds every day, and further seeds and stories that the day chooses. `make simulate` runs
more of them.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import date
from functools import cache
from itertools import combinations, islice
from typing import Any

import msgspec
import pytest

from icedb.format.claims import Claim, EpochClaim
from icedb.format.commit_draft import CommitDraft, draft
from icedb.format.records import LogFile
from icedb.format.replay import TableState
from icedb.format.timing import Timing
from icedb.operations.commits import actions
from icedb.operations.retention import cleanup, merge_log
from icedb.operations.rewrite import rewrite_commit
from icedb.testing.simulation import (
    CHUNK,
    Story,
    all_cells,
    pair_stories,
    run_seed,
    run_story,
    single_stories,
    torn_stories,
)
from icedb.testing.simulation.__main__ import main
from icedb.testing.simulation.report import SimulationReport
from icedb.transaction import append, exclusive, idempotent_append
from icedb.transaction.log_reader import LogReader
from icedb.transaction.table_handle import Handle

#: Seeds with this distance strike each operation by each fault, and each while each other was in flight.
SEED_STEP = 5
#: The number of seeds of a day.
SEEDS_OF_A_DAY = 20
PARTS = 10
#: One of this many pair stories runs in a day, and in the run of all tests. Both are primes.
DAYS_OF_PAIRS, PAIR_STEP = 151, 23

pytestmark = pytest.mark.simulation

_all = SimulationReport(CHUNK)


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(n, marks=pytest.mark.slow(seconds=5)) for n in range(1, SEED_STEP))]
)
def test_random_runs_violate_no_invariant(first: int) -> None:
    report = _report(first)
    assert report.least["requests"] >= 200
    assert report.least["faults"] >= 3
    assert report.least["in flight"] >= 4
    assert len(report.schedules) == report.runs
    for a, b in combinations(range(3), 2):  # of the operation struck, another in flight, the fault
        assert {(cell[a], cell[b]) for cell in report.cells} >= {(cell[a], cell[b]) for cell in all_cells()}


def test_random_runs_of_the_day_violate_no_invariant(day: date) -> None:
    first = CHUNK + day.toordinal() * SEEDS_OF_A_DAY
    _run(range(first, first + SEEDS_OF_A_DAY))


@pytest.mark.slow(seconds=60)
def test_each_operation_was_struck_by_each_fault_while_each_other_was_in_flight() -> None:
    for first in range(SEED_STEP):
        _report(first)
    assert _all.empty_cells == []
    assert len(_all.schedules) == CHUNK


@cache
def _report(first: int) -> SimulationReport:
    """Run the seeds from `first` with the distance `SEED_STEP`, once for all tests, and return their report."""
    seeds = range(first, CHUNK, SEED_STEP)
    report = SimulationReport(len(seeds))
    _run(seeds, report, _all)
    return report


def _run(seeds: range, *reports: SimulationReport) -> None:
    for seed in seeds:
        outcome = run_seed(seed)
        for report in reports:
            report.add(outcome)
        again = f"python -m icedb.testing.simulation --seed {seed} --trace"
        assert outcome.violation is None, f"seed {seed}: {outcome.violation} ({again})"


def test_each_fault_at_a_request_of_the_day_of_each_operation_violates_no_invariant(day: date) -> None:
    by_fault: defaultdict[object, list[Story]] = defaultdict(list)
    for story in single_stories():
        by_fault[story.first, story.trouble].append(story)
    _run_stories(stories[day.toordinal() % len(stories)] for stories in by_fault.values())


@pytest.mark.slow(seconds=8)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_fault_at_any_request_of_any_operation_violates_no_invariant(part: int) -> None:
    _run_stories(islice(single_stories(), part, None, PARTS))


def test_operations_of_the_day_at_requests_of_others_violate_no_invariant(day: date) -> None:
    _run_stories(islice(pair_stories(), day.toordinal() % DAYS_OF_PAIRS, None, DAYS_OF_PAIRS))


@pytest.mark.slow(seconds=4)
@pytest.mark.parametrize("part", range(PARTS))
def test_any_operation_at_any_request_of_another_violates_no_invariant(part: int) -> None:
    _run_stories(islice(pair_stories(), part * PAIR_STEP, None, PARTS * PAIR_STEP))


@pytest.mark.slow(seconds=30)
def test_commits_on_both_sides_of_a_listing_cursor_violate_no_invariant() -> None:
    _run_stories(torn_stories())


def _run_stories(stories: Iterable[Story]) -> None:
    for story in stories:
        violation = run_story(story)
        assert violation is None, f"story {story}: {violation}"


def test_a_seed_has_the_same_run_in_every_process() -> None:
    """The order of sets, which differs between processes, has no effect, so a failure can be repeated."""
    code = "from icedb.testing.simulation import run_seed; print([run_seed(s).tally.schedule for s in range(4)])"
    here = f"{[run_seed(s).tally.schedule for s in range(4)]}\n"
    env = {"PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    elsewhere = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert elsewhere.stdout == here


def test_a_story_is_parsed_from_its_name() -> None:
    for story in (*islice(single_stories(), 50), *islice(pair_stories(), 50), *islice(torn_stories(), 5)):
        assert Story.parse(str(story)) == story


# ------------------------------------------------------------------------------------ seeded faults


def _take_claim(handle: Handle, epoch: int, own: EpochClaim, tried: exclusive._ClaimAttempts) -> EpochClaim:
    tried.add(own.key, epoch, own.t)
    return own


def _finish(
    state: TableState,
    draft: CommitDraft,
    epoch: int,
    timing: Timing,
    finish: Callable[..., LogFile] = exclusive._finish,
) -> LogFile:
    """Forget log tombstones with their log files."""
    file = finish(state, draft, epoch, timing)
    return msgspec.structs.replace(file, tombstones=tuple(t for t in file.tombstones if t.key in state.listed_ms))


def _draft(state: TableState, **plan: Any) -> CommitDraft:
    """Leave dead markers behind: then no snapshot has a dead part that is still stored."""
    planned = draft(state, **plan)
    markers = tuple(m for m in planned.file.markers if m.tombstoned_ms is None or m.key in planned.tombstoned)
    return replace(planned, file=msgspec.structs.replace(planned.file, markers=markers))


def _plan_cleanup(state: TableState, plan: Callable[..., Any] = cleanup.plan_cleanup, **options: Any) -> Any:
    return plan(state, **{**options, "grace_ms": 0})


#: Seeded fault -> the first seed that detects it, how many seeds may be needed, and the replaced attribute.
BREAKS: dict[str, tuple[int, int, str, object, tuple[object, ...]]] = {
    "claims_are_not_taken": (3, 20, "_take_claim", _take_claim, (exclusive,)),
    "the_log_is_not_listed_again_after_a_claim": (3, 20, "_epoch_decided", lambda *_: False, (exclusive,)),
    "old_claims_are_completed_instead_of_voided": (16, 150, "since_ms", property(lambda _: 1 << 60), (Claim,)),
    "own_commits_are_not_searched": (3, 40, "_find_own", lambda *_: None, (exclusive,)),
    "log_tombstones_go_with_their_log_files": (0, 200, "_finish", _finish, (exclusive,)),
    "merges_leave_dead_markers_behind": (0, 40, "draft", _draft, (actions, rewrite_commit, merge_log)),
    "cleanup_does_not_wait": (3, 20, "plan_cleanup", _plan_cleanup, (cleanup,)),
    "parts_of_any_age_are_published": (12, 150, "check_age", lambda *_: None, (exclusive, append)),
    "transactions_take_no_claim": (24, 150, "_take", lambda _handle, own: own, (idempotent_append,)),
    "transactions_do_not_look_at_the_log": (132, 250, "is_recorded", lambda *_: False, (idempotent_append,)),
}


@pytest.mark.sampled(cases=3)
@pytest.mark.parametrize("fault", BREAKS)
def test_random_runs_detect_that(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    likely, seeds, name, replacement, targets = BREAKS[fault]
    assert run_seed(likely).violation is None
    for target in targets:
        monkeypatch.setattr(target, name, replacement)
    assert any(run_seed(seed).violation for seed in (likely, *range(seeds)))


def test_stories_detect_that_live_epochs_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogReader, "_torn", lambda *_, **__: "")
    assert any(run_story(story) for story in torn_stories())


@pytest.mark.sampled(days=3)
def test_the_command_prints_each_request(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(logging, "disable", lambda _: None)  # unlike the command's process, this one continues
    monkeypatch.setattr(sys, "argv", ["simulation", "--seed", "1", "--trace"])
    assert main() == 0
    out = capsys.readouterr().out
    assert " create table/_data/d=" in out
    assert out.endswith("No invariant was violated.\n")
    command = [sys.executable, "-m", "icedb.testing.simulation", "--seeds", "5", "--processes", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "5 of 5 seeds" in done.stdout
