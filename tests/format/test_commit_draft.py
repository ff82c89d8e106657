"""A draft that replaces log files carries all their markers, each with its tombstone from the whole snapshot."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from icedb.errors import InvariantViolated
from icedb.format.commit_draft import CommitDraft, check_draft, draft
from icedb.format.keys import Keys
from icedb.format.records import LogFile, LogTombstoneRecord, Marker
from icedb.format.replay import StoredLogFile, TableState, replay

KEYS = Keys("t")


def part(name: str, t: int, tmb: int | None = None, rows: int | None = None) -> Marker:
    return Marker(f"t/_data/{name}.parquet", 10, t, tmb, rows)


def key(name: str) -> str:
    return f"t/_data/{name}.parquet"


def state_of(*files: LogFile) -> TableState:
    stored = [
        StoredLogFile(
            KEYS.log_file(f.t_ms, merged=f.carries_tombstones, writer=f"w.e{f.epoch}" if f.epoch else "w"), f, 1
        )
        for f in files
    ]
    return replay(stored, table="t")


@pytest.fixture
def state() -> TableState:
    """The state of three files. In the third, a v3 program tombstoned `b`, which is live in the first."""
    return state_of(
        LogFile(1, {"x": "BIGINT"}, (part("a", 1), part("b", 1), part("c", 1)), txn={"app": (1, 1)}, horizon_ms=3),
        LogFile(
            2,
            {"y": "BIGINT"},
            (part("d", 2),),
            tombstones=(LogTombstoneRecord("t/_log/old", 2),),
            epoch=1,
            live_epochs=(1,),
        ),
        LogFile(3, {}, (part("b", 1, 3),), txn={"app": (2, 3)}),
    )


def first(state: TableState) -> str:
    return min(state.files)


def carried(planned: CommitDraft) -> dict[str, tuple[int, int | None]]:
    return {m.key: (m.created_ms, m.tombstoned_ms) for m in planned.file.markers}


def test_every_marker_is_carried_with_its_tombstone_from_the_whole_snapshot(state: TableState) -> None:
    planned = draft(state, t_ms=9, add=[part("new", 0)], tombstone=[key("a")], replaces=[first(state)])
    assert carried(planned) == {key("a"): (1, 9), key("b"): (1, 3), key("c"): (1, None), key("new"): (9, None)}
    check_draft(state, planned)


def test_schemas_horizons_and_log_tombstones_are_carried(state: TableState) -> None:
    planned = draft(state, t_ms=9, schema={"z": "DATE"}, replaces=sorted(state.files)[:2])
    assert planned.file.schema == {"x": "BIGINT", "y": "BIGINT", "z": "DATE"}
    assert planned.file.horizon_ms == 3
    assert {(t.key, t.created_ms) for t in planned.file.tombstones} == {
        ("t/_log/old", 2),
        *((k, 9) for k in sorted(state.files)[:2]),
    }


def test_a_transaction_is_carried_only_from_the_file_with_its_last_sequence(state: TableState) -> None:
    assert draft(state, t_ms=9, replaces=[first(state)]).file.txn == {}
    assert draft(state, t_ms=9, replaces=sorted(state.files)).file.txn == {"app": (2, 3)}


def test_the_newest_forgotten_tombstone_becomes_the_horizon(state: TableState) -> None:
    again = state_of(LogFile(1, {}, (part("a", 1, 7), part("b", 1, 5), part("c", 1))))
    planned = draft(again, t_ms=9, replaces=list(again.files), forget={key("a"), key("b")})
    assert carried(planned) == {key("c"): (1, None)}
    assert planned.file.horizon_ms == 7
    check_draft(again, planned)


def test_a_tombstoned_part_keeps_the_time_of_its_tombstone(state: TableState) -> None:
    planned = draft(state, t_ms=9, tombstone=[key("b")])
    assert carried(planned) == {key("b"): (1, 3)}


def _without(planned: CommitDraft, name: str) -> CommitDraft:
    left = tuple(m for m in planned.file.markers if m.key != key(name))
    return replace(planned, file=msgspec.structs.replace(planned.file, markers=left))


def _alive(planned: CommitDraft, name: str) -> CommitDraft:
    changed = tuple(
        msgspec.structs.replace(m, tombstoned_ms=None) if m.key == key(name) else m for m in planned.file.markers
    )
    return replace(planned, file=msgspec.structs.replace(planned.file, markers=changed))


def test_a_draft_that_would_lose_or_revive_a_part_is_never_published(state: TableState) -> None:
    planned = draft(state, t_ms=9, add=[part("new", 0)], tombstone=[key("a")], replaces=[first(state)])
    check_draft(state, planned)
    for broken, message in (
        (_without(planned, "c"), f"lose \\['{key('c')}'"),
        (_alive(planned, "b"), f"bring back \\['{key('b')}'"),
        (_without(planned, "new"), r"add \[\]"),
        (_alive(planned, "a"), r"tombstone \[\]"),
    ):
        with pytest.raises(InvariantViolated, match=message):
            check_draft(state, broken)
    with pytest.raises(InvariantViolated, match="tombstone"):
        check_draft(state, replace(planned, tombstoned=frozenset()))
