"""A process that maintains a table while others write it: merges, drops of old days and cleanups, in a loop.

Run as `python maintenance_loop.py '<json>'` by tests/spark/test_mixed_load.py, until the file `stop` exists.
Credentials come from the environment. The journal has a line of JSON for each act.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from icedb import Table, Timing
from icedb.errors import OutcomeUnknownError, RetryableError

# As short as possible on a busy machine, so that superseded parts are deleted during the load.
TIMING = Timing(max_skew_ms=1_000, commit_timeout_ms=4_000, grace_ms=8_000)
PAUSE_SECONDS = 0.2


@dataclass(frozen=True)
class Days:
    """Days that pass within seconds, and how many of them the table keeps."""

    started: float
    seconds: float
    kept: int

    @property
    def today(self) -> int:
        return int((time.time() - self.started) / self.seconds)


#: The operations of a round, by the oldest day to keep. Each returns how much it did.
ACTS: dict[str, Callable[[Table, int], int]] = {
    "merged_parts": lambda table, _: table.merge().merged_parts,
    "merged_log_files": lambda table, _: len(table.merge_log().merged_log_files),
    "dropped_rows": lambda table, oldest: table.drop_partitions(f"day < {oldest}").rows or 0,
    "deleted_parts": lambda table, _: len(table.cleanup().deleted_parts),
}


def main(task: dict[str, Any]) -> None:
    table, days = Table.open(task["uri"]), Days(**task["days"])
    with Path(task["journal"]).open("w", buffering=1) as journal:
        while not Path(task["stop"]).exists():
            oldest = days.today - days.kept
            for name, act in ACTS.items():
                journal.write(json.dumps({"act": name, "oldest": oldest}) + "\n")  # before: it may be done unheard
                try:
                    journal.write(json.dumps({name: act(table, oldest)}) + "\n")
                except (RetryableError, OutcomeUnknownError) as error:
                    journal.write(json.dumps({f"{name}: {type(error).__name__}": 1}) + "\n")
            time.sleep(PAUSE_SECONDS)


def arguments(uri: str, days: Days, journal: Path, stop: Path) -> str:
    """Return the arguments of this program."""
    return json.dumps({"uri": uri, "days": asdict(days), "journal": str(journal), "stop": str(stop)})


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
