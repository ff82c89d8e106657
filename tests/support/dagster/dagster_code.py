"""The code location that the daemon loads in the tests of the lock: tables with their maintenance, and gates.

A gate stops one program at a moment of its commit: the test makes a file, the first program that comes to the moment
takes it by renaming it after its process, and waits until the file is deleted. What the tables hold, where they are and
where the gates are comes from the environment, see tests/support/dagster/dagster_platform.py.
"""

import json
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa

import icedb
from icedb.storage.location import parse_location
from icedb.storage.obstore_store import open_store
from icedb.testing import FaultyStore, Request
from icedb.transaction.open_table import open_handle
from icedb.util.clock import SystemClock
from icedb_dagster import IceDBIOManager, IceDBResource, build_table_definitions, icedb_pool
from icedb_dagster.locking.table_lock import check_pool_held

SETTINGS = "ICEDB_TEST_PLATFORM"
#: The rows of each partition of the daily assets.
ROWS = 10


class GatedTable(icedb.Table):
    """A table whose merges record when they began and ended."""

    run: str
    spans: Path

    def merge(self, **options: Any) -> icedb.MergeReport:
        began = time.monotonic()
        report = super().merge(**options)
        span = {"began": began, "ended": time.monotonic(), "dropped_groups": report.dropped_groups, "run": self.run}
        hidden = self.spans / f".{uuid.uuid4().hex}"
        hidden.write_text(json.dumps(span))
        hidden.rename(self.spans / f"{hidden.name[1:]}.json")  # whole, or not there
        return report


class GatedLake(IceDBResource):
    """The tables below a root, with gates between their requests to the store."""

    folder: str

    def table(self, key: Any) -> GatedTable:
        uri = self.uri(key)
        name = uri.rpartition("/")[2]
        store = FaultyStore(open_store(parse_location(uri, self.access()["storage_options"])))
        keys = store.location.keys

        def creates(request: Request, prefix: str) -> bool:
            return request.kind == "create" and request.keys[0].startswith(prefix)

        def before(request: Request) -> None:
            if creates(request, f"{keys.claims_prefix}epoch-"):
                self._gate(name, "before-claim")

        def after(request: Request) -> None:
            if creates(request, keys.data_prefix):
                self._gate(name, "first-part")
            if creates(request, f"{keys.claims_prefix}epoch-"):
                self._gate(name, "after-claim")
            if creates(request, keys.log_prefix):
                self._gate(name, "after-log")

        store.before, store.after = before, after
        table = GatedTable(open_handle(store, clock=SystemClock()))
        table.run = f"{os.getpid()} {uuid.uuid4()}"  # each run opens the table once
        table.spans = Path(self.folder, "spans", name)
        table.spans.mkdir(parents=True, exist_ok=True)
        return table

    def _gate(self, table: str, moment: str) -> None:
        taken = Path(self.folder, f"{table}.{moment}.{os.getpid()}")
        try:
            Path(self.folder, f"{table}.{moment}").rename(taken)
        except FileNotFoundError:
            return
        while taken.exists():
            time.sleep(0.02)


def merging_asset(table: str) -> dg.AssetsDefinition:
    """An exclusive asset, as a user might write it."""
    pool = icedb_pool(table)

    @dg.asset(name=f"{table}_by_hand", pool=pool)
    def by_hand(context: dg.AssetExecutionContext, icedb: GatedLake) -> None:
        check_pool_held(context, pool)
        icedb.table(table).merge()

    return by_hand


def daily(lake: GatedLake, days: list[str], fails_first: list[str]) -> dg.Definitions:
    """Append a partition, then overwrite it with the same rows. Fails the first time for some days."""
    partitions = dg.StaticPartitionsDefinition(days)
    of_table = {"partition_by": ["d"], "partition_expr": "d"}

    @dg.asset(partitions_def=partitions, metadata={**of_table, "icedb/mode": "append"}, io_manager_key="lake")
    def appended(context: dg.AssetExecutionContext) -> pa.Table:
        day = context.partition_key
        first = days.index(day) * ROWS
        return pa.table({"id": range(first, first + ROWS), "d": [day] * ROWS})

    @dg.asset(partitions_def=partitions, metadata=of_table, io_manager_key="lake")
    def overwritten(context: dg.AssetExecutionContext, appended: pa.Table) -> pa.Table:
        day = context.partition_key
        tried = Path(lake.folder, f"tried {day}")
        if day in fails_first and not tried.exists():
            tried.touch()
            raise dg.Failure(f"{day} fails the first time", allow_retries=False)
        return appended

    job = dg.define_asset_job("daily", [appended, overwritten], executor_def=dg.in_process_executor)
    resources = {"lake": IceDBIOManager(icedb=lake)}
    return dg.Definitions(assets=[appended, overwritten], jobs=[job], resources=resources)


def definitions() -> dg.Definitions:
    """Return all definitions of a platform."""
    settings = json.loads(os.environ[SETTINGS])
    options = {name: dg.EnvVar(name) for name in settings["storage_options"]}
    lake = GatedLake(root=settings["root"], storage_options=options, folder=settings["folder"])
    return dg.Definitions.merge(
        dg.Definitions(assets=[merging_asset(table) for table in settings["by_hand"]], resources={"icedb": lake}),
        *(build_table_definitions(table) for table in settings["tables"]),
        *([daily(lake, settings["days"], settings["fails_first"])] if settings["days"] else []),
    )


if SETTINGS in os.environ:
    defs = definitions()


if __name__ == "__main__":
    (lake,) = (defs.resources or {}).values()
    with dg.DagsterInstance.get() as instance:
        dg.materialize([merging_asset(sys.argv[1])], instance=instance, resources={"icedb": lake})
