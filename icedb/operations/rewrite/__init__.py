"""Parts become other parts: merge (compaction), delete, rewrite of partitions.

`engine` divides work among processes, `rewriter` makes one part of several, `prefetch` copies the inputs here first,
`rewrite_commit` commits the result. `merge_loop` and `watch` repeat merges. May import `operations.commits`. Begin with
`merge`.
"""
