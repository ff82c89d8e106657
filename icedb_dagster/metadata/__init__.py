"""Metadata of a table in Dagster's UI: figures, previews, charts, Spark progress. Begin with `table_metadata`."""
