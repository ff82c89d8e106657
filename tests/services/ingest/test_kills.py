"""The service is killed under load: rows that were acknowledged with 2xx are not lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from icedb import Table
from tests.support.ingest.ingest_kills import check_nothing_lost_or_doubled, kill_again_and_again, killing_config
from tests.support.object_stores.stores import Place


@pytest.mark.process
@pytest.mark.sampled(cases=1, days=3)
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_kills_under_load_lose_and_duplicate_no_row(shared_place: Place, tmp_path: Path, kills: int) -> None:
    options = shared_place.storage_options or {}
    load = kill_again_and_again(killing_config(tmp_path, shared_place.uri, options), kills)
    check_nothing_lost_or_doubled(Table.open(shared_place.uri, storage_options=options or None), load)
    assert load.sent_again, "no kill interrupted a request"
