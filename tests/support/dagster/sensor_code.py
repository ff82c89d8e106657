"""The code location of the test with a real daemon: an external table with its sensors.

Run as a program, it inserts rows without Dagster until the file `stop` exists, and records each commit.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import icedb

ROOT = "ICEDB_TEST_SENSOR_LAKE"
TABLE = "events"
#: Between two commits.
PAUSE_S = 0.5


def fill(uri: str, stop: Path, written: Path) -> None:
    """Insert rows, a commit each."""
    table = icedb.Table.open(uri)
    with written.open("a") as out:
        n = 0
        while not stop.exists():
            commit = table.insert([{"n": n, "d": "2026-11-22"}])
            out.write(f"{commit.created_ms} {n}\n")
            out.flush()
            n += 1
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    fill(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
elif ROOT in os.environ:
    import dagster as dg

    from icedb_dagster import IceDBResource, build_table_definitions, table_spec
    from icedb_dagster.sensors import CommitsSensor, MaintenanceSensor

    fresh = dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=1))
    low = icedb.Thresholds(hot_parts=16, log_files=64)
    defs = dg.Definitions.merge(
        dg.Definitions(
            assets=[table_spec(TABLE, freshness_policy=fresh)],
            resources={"icedb": IceDBResource(root=os.environ[ROOT])},
        ),
        build_table_definitions(
            TABLE,
            maintenance_sensor=MaintenanceSensor(low, interval_s=1, running=True),
            commits_sensor=CommitsSensor(interval_s=1, settle_s=1, events_max=50, running=True),
        ),
    )
