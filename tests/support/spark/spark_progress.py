"""An asset whose Spark job waits until its progress is logged, in its own process.

Run as `python spark_progress.py <root> <result>` by tests/icedb_dagster/test_metadata.py, on the Dagster instance of
the environment.
"""

import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pyarrow as pa
from dagster_pyspark import PySparkResource
from pyspark.sql import DataFrame

from icedb_dagster import IceDBIOManager, IceDBResource, spark_progress
from tests.support.spark.spark_clusters import dagster_spark
from tests.support.waiting import wait_until


@dg.asset
def watched(context: dg.AssetExecutionContext, pyspark: PySparkResource) -> DataFrame:
    noted = Path(context.run.tags["seen"])

    def is_logged() -> bool:
        entries = context.instance.all_logs(context.run_id)
        return any("0 of 2 tasks done, 2 running" in entry.user_message for entry in entries)

    def release() -> None:
        """End the tasks once the run has logged that they run."""
        try:
            wait_until(is_logged, "the run logs progress")
        finally:
            noted.touch()

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while not noted.exists():
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
    pyspark = dagster_spark(Path(f"{result}.spark-home"), **{"spark.log.level": "INFO"})
    resources = {"io_manager": IceDBIOManager(icedb=IceDBResource(root=root)), "pyspark": pyspark}
    with dg.DagsterInstance.get() as instance:
        run = dg.materialize([watched], resources=resources, instance=instance, tags={"seen": f"{result}.seen"})
        messages = [entry.user_message for entry in instance.all_logs(run.run_id)]
        [captured] = [e.dagster_event for e in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.LOGS_CAPTURED)]
        assert captured is not None
        key = [run.run_id, "compute_logs", captured.logs_captured_data.file_key]
        output = instance.compute_log_manager.get_log_data(key).stderr or b""
    Path(result).write_text(json.dumps({"messages": messages, "output": output.decode()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
