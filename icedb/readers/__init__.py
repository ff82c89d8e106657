"""Snapshots for other engines: each reads the live parts itself, and needs nothing of ours while it does.

    icedb.readers.duckdb       `attach`: a table as a view and a macro of somebody's DuckDB connection
    icedb.readers.arrow        `dataset`, `record_batches`
    icedb.readers.polars       `scan`: a LazyFrame
    icedb.readers.pandas       `read`: a DataFrame
    icedb.readers.datafusion   `register`: a table of a SessionContext
    icedb.readers.chdb         ClickHouse, as a library

Each engine is an extra of its own, imported when it is used. Two parameters choose rows, in DuckDB's SQL. `where`
gives exactly the rows for which it is true, as in `Snapshot.query`; readers have it that go through DuckDB.
`parts_where` only leaves out parts that cannot hold such rows, for an engine that filters by itself.
"""
