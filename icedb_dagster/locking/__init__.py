"""A table's lock: a Dagster concurrency pool of limit 1, kept in Postgres. Begin with `table_lock`."""
