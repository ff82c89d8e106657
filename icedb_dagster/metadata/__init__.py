"""What Dagster's UI shows of a table: figures, previews, charts and the progress of Spark. Begin with `table_metadata`."""
