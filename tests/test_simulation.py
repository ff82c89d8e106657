"""The table cannot be broken, as far as some thousand odd histories can tell; if it were, the simulation would see it.

`make simulate` runs more of the same for longer.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice

import msgspec
import pytest

import icedb.commit
import icedb.exclusive
import icedb.maintenance.cleanup
import icedb.maintenance.merge_log
import icedb.maintenance.operations
import icedb.transactions
from icedb.format.claims import Claim, EpochClaim
from icedb.format.records import LogFile
from icedb.format.rewrite import Draft
from icedb.format.snapshot import LogState
from icedb.handle import Handle
from icedb.options import Timing
from icedb.reading import LogReader
from icedb.testing.simulation import (
    CHUNK,
    Story,
    pair_stories,
    run_seed,
    run_story,
    single_stories,
    torn_stories,
)
from icedb.testing.simulation.report import Report

PARTS = 10
#: One of so many stories is told here: of one operation two, so that each fault strikes each operation here, too;
#: of pairs a prime. `-m slow` tells all of the former, `--exhaustive` all.
SINGLE_STEP = 2
PAIR_STEP = 23

pytestmark = pytest.mark.simulation

_report = Report(CHUNK)


@pytest.mark.parametrize("part", range(PARTS))
def test_random_histories_keep_every_promise(part: int) -> None:
    for seed in range(part, CHUNK, PARTS):
        outcome = run_seed(seed)
        _report.add(outcome)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}"


def test_each_operation_was_struck_by_each_fault_while_each_other_was_in_flight() -> None:
    if _report.runs < CHUNK:
        pytest.skip("the seeds before were not all run")
    assert _report.empty_cells == []
    assert _report.least["requests"] >= 200
    assert _report.least["faults"] >= 3
    assert _report.least["in flight"] >= 4
    assert len(_report.schedules) == CHUNK


@pytest.mark.parametrize(
    "turn", [0, *(pytest.param(turn, marks=pytest.mark.slow) for turn in range(1, SINGLE_STEP))], ids=str
)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_fault_at_any_request_of_any_operation_breaks_no_promise(part: int, turn: int) -> None:
    _tell(islice(single_stories(), part * SINGLE_STEP + turn, None, PARTS * SINGLE_STEP))


@pytest.mark.parametrize("part", range(PARTS))
def test_any_operation_at_any_request_of_another_breaks_no_promise(part: int) -> None:
    _tell(islice(pair_stories(), part * PAIR_STEP, None, PARTS * PAIR_STEP))


@pytest.mark.slow
def test_commits_that_land_on_both_sides_of_a_listings_cursor_break_no_promise() -> None:
    _tell(torn_stories())


def _tell(stories: Iterable[Story]) -> None:
    for story in stories:
        violation = run_story(story)
        assert violation is None, f"story {story}: {violation}"


def test_a_seed_is_the_same_history_everywhere() -> None:
    """Whatever the order of sets in a process: a failure that is reported can be seen again."""
    code = "from icedb.testing.simulation import run_seed; print([run_seed(s).tally.schedule for s in range(4)])"
    runs = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": hash_seed}
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert runs == {f"{[run_seed(s).tally.schedule for s in range(4)]}\n"}


def test_a_story_is_told_again_by_its_name() -> None:
    for story in (*islice(single_stories(), 50), *islice(pair_stories(), 50), *islice(torn_stories(), 5)):
        assert Story.parse(str(story)) == story


# ------------------------------------------------------------------------------------ does it find what is wrong?

Break = Callable[[pytest.MonkeyPatch], None]


def _claims_are_not_taken(patch: pytest.MonkeyPatch) -> None:
    def take(handle: Handle, epoch: int, own: EpochClaim, tried: icedb.exclusive._Tried) -> EpochClaim:
        tried.add(own.key, epoch, own.t)
        return own

    patch.setattr(icedb.exclusive, "_take_claim", take)


def _the_log_is_not_listed_again_after_a_claim(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(icedb.exclusive, "_is_history", lambda *_: False)


def _old_claims_are_completed_instead_of_voided(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Claim, "since_ms", property(lambda _: 1 << 60))


def _nobody_looks_for_his_own_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(icedb.exclusive, "_find_own", lambda *_: None)


def _log_tombstones_go_with_their_log_files(patch: pytest.MonkeyPatch) -> None:
    finish = icedb.exclusive._finish

    def forgetful(state: LogState, draft: Draft, epoch: int, timing: Timing) -> LogFile:
        file = finish(state, draft, epoch, timing)
        kept = tuple(t for t in file.tombstones if t.key in state.listed_ms)
        return msgspec.structs.replace(file, tombstones=kept)

    patch.setattr(icedb.exclusive, "_finish", forgetful)


def _merges_leave_dead_markers_behind(patch: pytest.MonkeyPatch) -> None:
    """So a part that is dead, and still stored, is not known to any snapshot any more."""

    def forgetful(draft: Callable[..., Draft]) -> Callable[..., Draft]:
        def drafted(state: LogState, **plan: object) -> Draft:
            planned = draft(state, **plan)
            markers = tuple(m for m in planned.file.markers if m.tombstoned_ms is None or m.key in planned.tombstoned)
            return replace(planned, file=msgspec.structs.replace(planned.file, markers=markers))

        return drafted

    for module in (icedb.maintenance.operations, icedb.maintenance.merge_log):
        patch.setattr(module, "draft", forgetful(module.draft))


def _cleanup_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    plan = icedb.maintenance.cleanup.plan_cleanup
    patch.setattr(icedb.maintenance.cleanup, "plan_cleanup", lambda state, **k: plan(state, **{**k, "grace_ms": 0}))


def _parts_of_any_age_are_published(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(icedb.exclusive, "check_age", lambda *_: None)
    patch.setattr(icedb.commit, "check_age", lambda *_: None)


def _transactions_take_no_claim(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(icedb.transactions, "_take", lambda _handle, own: own)


def _transactions_do_not_look_at_the_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(icedb.transactions, "is_recorded", lambda *_: False)


BREAKS: dict[Break, int] = {
    _claims_are_not_taken: 20,
    _the_log_is_not_listed_again_after_a_claim: 20,
    _old_claims_are_completed_instead_of_voided: 150,
    _nobody_looks_for_his_own_commit: 40,
    _log_tombstones_go_with_their_log_files: 200,
    _merges_leave_dead_markers_behind: 40,
    _cleanup_does_not_wait: 20,
    _parts_of_any_age_are_published: 150,
    _transactions_take_no_claim: 150,
    _transactions_do_not_look_at_the_log: 250,
}


@pytest.mark.parametrize(("broken", "seeds"), BREAKS.items(), ids=[b.__name__.strip("_") for b in BREAKS])
def test_random_histories_find_it_when(broken: Break, seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_seed(0).violation is None
    broken(monkeypatch)
    assert any(run_seed(seed).violation for seed in range(seeds))


def test_stories_find_it_when_live_epochs_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogReader, "_torn", lambda *_, **__: "")
    assert any(run_story(story) for story in torn_stories())


def test_the_command_tells_a_seed_request_by_request() -> None:
    command = [sys.executable, "-m", "icedb.testing.simulation"]
    done = subprocess.run([*command, "--seed", "1", "--trace"], capture_output=True, text=True, check=True)
    assert " create table/_data/d=" in done.stdout
    assert done.stdout.endswith("Every promise held.\n")
    done = subprocess.run([*command, "--seeds", "20", "--processes", "1"], capture_output=True, text=True, check=True)
    assert "20 of 20 seeds" in done.stdout
