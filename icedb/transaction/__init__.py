"""Open tables and commits: optimistic concurrency over a store with create-only puts.

`open_table` opens or creates a table. `table_handle` is an open table, composed of `current_spec`, `log_reader`,
`log_cache` and `store_checks`. `append` commits without a claim, `exclusive` with one, `idempotent_append` once for
each idempotency key. Every writer commits through these three. May import `icedb.writer`. Begin with `append`, then
`exclusive`. docs/fault-tests.md has the reasons.
"""
