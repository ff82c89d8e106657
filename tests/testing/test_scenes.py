"""Scenes of the simulation: they violate no invariant, and detect seeded faults.

`-m slow` runs more of each. `python -m icedb.testing.simulation --scene NAME --seeds N` runs any number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import icedb.operations.write.views
import icedb.transaction.idempotent_append
from icedb.buffering.committing import Committer
from icedb.format.keys import LogName
from icedb.format.replay import TableState
from icedb.operations.importing.import_plan import NamedParts
from icedb.operations.integrity.repair_types import _Repair
from icedb.storage.object_store import ObjectStore
from icedb.storage.parts import Part
from icedb.storage.split_store import SplitStore
from icedb.testing.simulation import SCENES, run_seed
from icedb.testing.simulation.scenes.no_fencing import NoFencing
from icedb.transaction.store_checks import StoreChecks

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


def _made(
    stores: SplitStore, data: ObjectStore, log: ObjectStore, init: Callable[..., None] = SplitStore.__init__
) -> None:
    init(stores, data, log)
    stores._log_prefixes = stores._log_prefixes[:1]


def _reason(named: NamedParts, key: str, _id: str, size: int, reason: Callable[..., Any] = NamedParts.reason) -> Any:
    return reason(named, key, "", size)


def _publish(
    committer: Committer, target: Any, written: Any, _txn: Any, group: Any, publish: Any = Committer._publish
) -> Any:
    return publish(committer, target, written, None)


def _plan(operation: _Repair, state: TableState, t_ms: int, plan: Callable[..., list[Part]] = _Repair.plan) -> Any:
    examined = {*operation.examined}
    return [p for p in plan(operation, state, t_ms) if not examined or p.key in examined]


TRANSACTIONS = icedb.transaction.idempotent_append
#: Seeded fault -> the scene, the first of its seeds that detects it, and the replaced attribute.
BREAKS: dict[str, tuple[str, int, object, str, object]] = {
    "log_files_of_v3_are_skipped_by_their_names": ("v3 writers", 1, LogName, "is_ours", property(lambda _: True)),
    "no_program_compares_the_clocks": ("clocks", 0, StoreChecks, "_compare", lambda *_: None),
    "log_files_far_ahead_are_replaced": ("clocks", 1, TableState, "far_ahead", lambda *_: frozenset()),
    "transactions_take_no_claim": ("forgotten transactions", 13, TRANSACTIONS, "_take", lambda _handle, own: own),
    "old_claims_are_published_although_parts_are_gone": (
        "forgotten transactions", 113, TRANSACTIONS, "_lost_part", lambda *_: None
    ),
    "claims_go_to_the_store_of_the_parts": ("two stores", 0, SplitStore, "__init__", _made),
    "imports_ignore_the_copies_of_others": ("imports", 0, NamedParts, "reason", _reason),
    "rows_with_ids_are_committed_by_plain_appends": ("group commits", 4, Committer, "_publish", _publish),
    "two_programs_maintain_without_fencing": ("no fencing", 3, NoFencing, "_is_free", lambda *_: True),
    "repairs_ignore_parts_that_were_added_since": ("repairs", 12, _Repair, "plan", _plan),
    "refreshed_views_forget_the_transactions_of_their_source": (
        "views", 2, icedb.operations.write.views, "_sequences", lambda _: {}
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", BREAKS)
def test_a_scene_detects_that(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scene, seed, target, name, replacement = BREAKS[fault]
    assert run_seed(seed, scene=scene).violation is None
    monkeypatch.setattr(target, name, replacement)
    assert run_seed(seed, scene=scene).violation is not None
