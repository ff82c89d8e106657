"""Java processes that start quickly: half of what a short Spark session costs is loading and compiling classes.

`python -m tests.support.spark.quick_java` makes an archive of Spark's classes, which the Java processes of all tests
share. Without it, or with another Java, they load the classes one by one.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

#: Made once for a virtual environment: it holds what this environment's Spark loads.
ARCHIVE = Path(sys.prefix, ".spark-classes.jsa")
_OF_ARCHIVE = [f"-XX:SharedArchiveFile={ARCHIVE}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
#: For a process that is not meant to live long. An archive that does not fit is passed over in silence.
QUICK_JAVA = shlex.join(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *(_OF_ARCHIVE if ARCHIVE.exists() else [])])

#: The operations of most tests: a shuffle, Python in tasks, Arrow, Parquet.
SESSION = """
import sys, tempfile
from pyspark.sql import SparkSession
spark = SparkSession.builder.config("spark.log.level", "OFF").getOrCreate()
rows = spark.range(100).selectExpr("id", "id % 3 AS third")
rows.groupBy("third").count().collect()
spark.createDataFrame(rows.mapInArrow(lambda batches: batches, rows.schema).toArrow()).count()
with tempfile.TemporaryDirectory() as folder:
    rows.write.parquet(folder + "/rows")
    spark.read.parquet(folder + "/rows").where("third = 1").collect()
spark.stop()
"""


def use_quick_java() -> None:
    """Let all Java processes that Spark starts below this one, but for executors, have these options."""
    os.environ["SPARK_SUBMIT_OPTS"] = QUICK_JAVA
    os.environ["SPARK_DAEMON_JAVA_OPTS"] = QUICK_JAVA


def make_archive() -> None:
    """Run a session that writes down, as it ends, which classes it has loaded."""
    import pyspark

    from icedb.spark.java import prepare_environment

    environment = dict(os.environ)
    prepare_environment(environment)
    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as folder:
        made, program = Path(folder, "made.jsa"), Path(folder, "session.py")
        program.write_text(SESSION)
        options = ["-XX:+UseSerialGC", f"-XX:ArchiveClassesAtExit={made}", "-Xlog:cds=off"]
        environment["SPARK_SUBMIT_OPTS"] = shlex.join(options)
        subprocess.run(
            [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]",
             "--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1",
             "--conf", "spark.ui.enabled=false", str(program)],
            env=environment, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, timeout=600,
        )  # fmt: skip
        if made.exists():  # a Java without that ability makes none
            made.replace(ARCHIVE)


if __name__ == "__main__":
    make_archive()
