"""Snapshots for other query engines, which read the live parts themselves.

    icedb.engines.duckdb       `attach`: a table as a view and a macro of the caller's DuckDB connection
    icedb.engines.arrow        `dataset`, `record_batches`
    icedb.engines.polars       `scan`: a LazyFrame
    icedb.engines.pandas       `read`: a DataFrame
    icedb.engines.datafusion   `register`: a table of a SessionContext
    icedb.engines.chdb         ClickHouse as a library

Each engine is an optional dependency, imported on first use. Two parameters select rows, both DuckDB predicates.
`where` returns exactly the rows for which it is true, as in `Snapshot.query`. The readers that go through DuckDB take
it. `parts_where` only skips parts that cannot contain such rows, for engines that filter by themselves.

May import `icedb.reader` and below. Begin with `engine_parts`.
"""
