"""Open tables and commits: optimistic concurrency over a store with create-only puts.

`open_table` opens or creates a table, `table_handle` is an open one, `log_reader` lists and replays its log. `append`
commits without a claim, `exclusive` with one, `idempotent_append` once for each idempotency key. Every writer commits
through these three. May import `icedb.writer`. Begin with `append`, then `exclusive`. docs/safety.md has the reasons.
"""
