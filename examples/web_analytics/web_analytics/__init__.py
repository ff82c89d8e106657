"""Web analytics for several tenants: events as they come, sessions by Spark, metrics by DuckDB, one dashboard."""
