"""Snapshots for other engines: each engine reads the live parts itself, and needs nothing of this library for it.

    icedb.engines.duckdb       `attach`: a table as a view and a macro of the caller's DuckDB connection
    icedb.engines.arrow        `dataset`, `record_batches`
    icedb.engines.polars       `scan`: a LazyFrame
    icedb.engines.pandas       `read`: a DataFrame
    icedb.engines.datafusion   `register`: a table of a SessionContext
    icedb.engines.chdb         ClickHouse, as a library

Each engine is an extra of its own, imported when it is used. Two parameters choose rows, in DuckDB's SQL. `where`
gives exactly the rows for which it is true, as in `Snapshot.query`; readers have it that go through DuckDB.
`parts_where` only leaves out parts that cannot hold such rows, for an engine that filters by itself.
"""
