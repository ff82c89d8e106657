"""Scenes of the simulation: they violate no invariant, and detect seeded faults.

`-m slow` runs more of each. `python -m icedb.testing.simulation --scene NAME --seeds N` runs any number.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import icedb.operations.integrity.repair_types
import icedb.operations.write.views
import icedb.transaction.idempotent_append
from icedb.buffering.committing import Committer
from icedb.format.keys import LogName
from icedb.format.replay import TableState
from icedb.operations.importing.import_plan import NamedParts
from icedb.storage.object_store import ObjectStore
from icedb.storage.split_store import SplitStore
from icedb.testing.simulation import SCENES, run_seed
from icedb.testing.simulation.scenes.no_fencing import NoFencing
from icedb.transaction.table_handle import Handle, Part

#: Runs of each scene in the short scope, and in the long one.
SHORT, LONG = 1, 60

pytestmark = pytest.mark.simulation


@pytest.mark.parametrize("scene", SCENES)
def test_a_scene_violates_no_invariant(scene: str) -> None:
    _play(scene, range(SHORT))


@pytest.mark.slow(seconds=6)
@pytest.mark.parametrize("scene", SCENES)
def test_many_runs_of_a_scene_violate_no_invariant(scene: str) -> None:
    done = _play(scene, range(SHORT, LONG))
    assert done >= SCENES[scene]().operations.keys()


def _play(scene: str, seeds: range) -> set[str]:
    """Run seeds, and return the operations that ended in them."""
    done: set[str] = set()
    for seed in seeds:
        outcome = run_seed(seed, scene=scene)
        assert outcome.violation is None, f"{scene}, seed {seed}: {outcome.violation}"
        done |= {name for name, _ in outcome.tally.outcomes}
    return done


# ------------------------------------------------------------------------------------ seeded faults

Break = Callable[[pytest.MonkeyPatch], None]


def _log_files_of_v3_are_skipped_by_their_names(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogName, "is_ours", property(lambda _: True))


def _no_program_compares_the_clocks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Handle, "_compare", lambda *_: None)


def _log_files_far_ahead_are_replaced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TableState, "far_ahead", lambda *_: frozenset())


def _transactions_take_no_claim(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(icedb.transaction.idempotent_append, "_take", lambda _handle, own: own)


def _old_claims_are_published_although_parts_are_gone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(icedb.transaction.idempotent_append, "_lost_part", lambda *_: None)


def _claims_go_to_the_store_of_the_parts(patch: pytest.MonkeyPatch) -> None:
    init = SplitStore.__init__

    def made(stores: SplitStore, data: ObjectStore, log: ObjectStore) -> None:
        init(stores, data, log)
        stores._log_prefixes = stores._log_prefixes[:1]

    patch.setattr(SplitStore, "__init__", made)


def _imports_ignore_the_copies_of_others(patch: pytest.MonkeyPatch) -> None:
    reason = NamedParts.reason
    patch.setattr(NamedParts, "reason", lambda named, key, _id, size: reason(named, key, "", size))


def _rows_with_ids_are_committed_by_plain_appends(patch: pytest.MonkeyPatch) -> None:
    publish = Committer._publish
    patch.setattr(
        Committer, "_publish", lambda committer, target, written, _txn, group: publish(committer, target, written, None)
    )


def _two_programs_maintain_without_fencing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NoFencing, "_is_free", lambda _: True)


def _repairs_ignore_parts_that_were_added_since(patch: pytest.MonkeyPatch) -> None:
    plan = icedb.operations.integrity.repair_types._Repair.plan

    def first_time_only(
        operation: icedb.operations.integrity.repair_types._Repair, state: TableState, t_ms: int
    ) -> list[Part]:
        seen = {*operation.examined}
        return [p for p in plan(operation, state, t_ms) if not seen or p.key in seen]

    patch.setattr(icedb.operations.integrity.repair_types._Repair, "plan", first_time_only)


def _refreshed_views_forget_the_transactions_of_their_source(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(icedb.operations.write.views, "_sequences", lambda _: {})


#: Seeded fault -> the scene, and the first of its seeds that detects it.
BREAKS: dict[Break, tuple[str, int]] = {
    _log_files_of_v3_are_skipped_by_their_names: ("v3 writers", 0),
    _no_program_compares_the_clocks: ("clocks", 0),
    _log_files_far_ahead_are_replaced: ("clocks", 0),
    _transactions_take_no_claim: ("forgotten transactions", 13),
    _old_claims_are_published_although_parts_are_gone: ("forgotten transactions", 28),
    _claims_go_to_the_store_of_the_parts: ("two stores", 0),
    _imports_ignore_the_copies_of_others: ("imports", 0),
    _rows_with_ids_are_committed_by_plain_appends: ("group commits", 4),
    _two_programs_maintain_without_fencing: ("no fencing", 2),
    _repairs_ignore_parts_that_were_added_since: ("repairs", 12),
    _refreshed_views_forget_the_transactions_of_their_source: ("views", 2),
}


@pytest.mark.parametrize("broken", BREAKS, ids=[b.__name__.strip("_") for b in BREAKS])
def test_a_scene_detects_that(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    scene, seed = BREAKS[broken]
    assert run_seed(seed, scene=scene).violation is None
    broken(monkeypatch)
    assert run_seed(seed, scene=scene).violation is not None
