"""How often a long work logs its steps."""

import pytest

from icedb.util import progress
from icedb.util.progress import LogPace


def test_a_step_in_five_seconds_and_the_last_one_are_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    times_s = iter(range(13))
    monkeypatch.setattr(progress, "monotonic", lambda: next(times_s))
    pace = LogPace()
    assert [step for step in range(1, 13) if pace.logs(is_last=step == 12)] == [5, 10, 12]
