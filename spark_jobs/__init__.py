"""PySpark programs that run by themselves or under Dagster. They import `icedb`, `icedb.spark` and pyspark."""
