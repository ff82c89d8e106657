"""PySpark programs: they import `icedb`, `icedb.spark` and pyspark, and run by themselves or under Dagster."""
