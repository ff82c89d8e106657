"""Many small writes, few commits: `BufferedWriter` gathers rows of threads and event loops, and commits them together.

`writer` is the front: room, threads, flush, close. `committing` makes commits of what was gathered, and says which
submission is at fault when one is refused. `ids` knows which rows were committed before.
"""
