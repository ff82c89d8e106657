"""Rewrites of parts: merge (compaction), delete, and the rewrite of a partition.

`engine` divides work among processes, `rewriter` writes one part from several, `prefetch` copies its inputs to the
local disk first, `rewrite_commit` commits the result. `merge_loop` and `watch` repeat merges. May import
`operations.commits`. Begin with `merge`.
"""
