"""The demo: a year of flights through Spark, IceDB, DuckDB and Dagster."""
