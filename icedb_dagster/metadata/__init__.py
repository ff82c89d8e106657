"""Metadata of a table in Dagster's UI: figures, previews, charts, progress of Spark. Begin with `table_metadata`."""
