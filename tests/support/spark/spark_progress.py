"""An asset whose Spark job waits until the run has told how far it is, in a process of its own.

Run as `python spark_progress.py <root> <result>` by tests/icedb_dagster/test_metadata.py, on the Dagster instance of
the environment.
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of functions as objects.
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pyarrow as pa
from dagster_pyspark import PySparkResource
from pyspark.sql import DataFrame

from icedb.spark.java import prepare_environment
from icedb_dagster import IceDBIOManager, IceDBResource, spark_progress
from tests.support.spark.spark_clusters import SESSION, make_spark_home
from tests.support.waiting import wait_until


@dg.asset
def watched(context: dg.AssetExecutionContext, pyspark: PySparkResource) -> DataFrame:
    seen = Path(context.run.tags["seen"])

    def told() -> list[str]:
        return [entry.user_message for entry in context.instance.all_logs(context.run_id)]

    def release() -> None:
        """Lets the tasks end once the run tells that they run."""
        try:
            wait_until(lambda: any("0 of 2 tasks done, 2 running" in text for text in told()), "the run shows progress")
        finally:
            seen.touch()

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while not seen.exists():
            time.sleep(0.1)
        yield from batches

    rows = pyspark.spark_session.range(0, 10, 1, 2)
    thread = threading.Thread(target=release)
    thread.start()
    with spark_progress(context, pyspark.spark_session, every_s=0.2):
        assert len(rows.mapInArrow(wait, rows.schema).collect()) == 10
    thread.join()
    return rows


def main(root: str, result: str) -> None:
    os.environ["SPARK_HOME"] = str(make_spark_home(Path(f"{result}.spark-home")))
    prepare_environment()
    config = SESSION | {"spark.master": "local[2]", "spark.log.level": "INFO"}
    resources = {
        "io_manager": IceDBIOManager(icedb=IceDBResource(root=root)),
        "pyspark": PySparkResource(spark_config=config),
    }
    with dg.DagsterInstance.get() as instance:
        run = dg.materialize([watched], resources=resources, instance=instance, tags={"seen": f"{result}.seen"})
        entries = instance.all_logs(run.run_id)
        [captured] = [e.dagster_event for e in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.LOGS_CAPTURED)]
        assert captured is not None
        key = [run.run_id, "compute_logs", captured.logs_captured_data.file_key]
        output = instance.compute_log_manager.get_log_data(key).stderr or b""
    Path(result).write_text(json.dumps({"told": [entry.user_message for entry in entries], "output": output.decode()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
