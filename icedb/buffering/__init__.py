"""Group commits: `BufferedWriter` collects rows of threads and event loops, and commits them together.

`writer` has the public class: room, threads, flush, close. `committing` commits groups of submissions, and finds the
submission at fault if a group is rejected. `ids` has the ids of rows that were committed before.
"""
