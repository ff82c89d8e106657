"""An asset becomes a table; its maintenance loads; the command knows its verbs."""

import subprocess
import sys
from pathlib import Path

import dagster as dg
import pyarrow as pa

from icedb_dagster import IceDBIOManager, IceDBResource, TimeToLive, build_table_definitions

lake = IceDBResource(root=str(Path("lake").resolve()))


@dg.asset(partitions_def=dg.DailyPartitionsDefinition("2026-11-01"), metadata={"partition_expr": "day"})
def events(context: dg.AssetExecutionContext) -> pa.Table:
    """A day's events."""
    return pa.table({"day": [context.partition_key] * 3, "n": [1, 2, 3]})


resources = {"icedb": lake, "io_manager": IceDBIOManager(icedb=lake)}
defs = dg.Definitions.merge(
    dg.Definitions(assets=[events], resources=resources),
    build_table_definitions("events", ttl=TimeToLive("day", keep_days=30)),
)
dg.Definitions.validate_loadable(defs)
for _ in range(2):  # what is materialized again is replaced
    assert dg.materialize([events], partition_key="2026-11-02", resources=resources).success
assert lake.table("events").query("SELECT count(*) FROM t").fetchall() == [(3,)]
subprocess.run([Path(sys.executable).with_name("icedb-dagster"), "--help"], check=True)
