"""The operations of a table, by kind.

`commits` has the plans that others share. `write` inserts rows, `rewrite` merges and deletes, `upsert` changes rows,
`retention` removes superseded objects, `integrity` verifies and repairs, `health` recommends, `report` renders a page,
`importing` and `export` exchange Parquet and Delta. Most operations are a pure plan and a function that carries it out.
Operations can run concurrently, because they publish appends and exclusive commits. The table's lock only keeps two
workers from doing the same work. May import `icedb.reader`.
"""
