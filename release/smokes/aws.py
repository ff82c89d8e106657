"""Places for Spark's programs on EMR."""

from dagster_aws.pipes import PipesEMRServerlessClient

from icedb_dagster.compute import emr

assert PipesEMRServerlessClient.__module__.startswith("dagster_aws")
assert emr.__all__
