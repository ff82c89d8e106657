"""Reads of a table: snapshots, pruning of parts (data files), the SQL over them, and the history of the table.

`snapshot` has the queries. `part_pruning` and `predicate_pushdown` leave out parts, `scan_sql` writes the SQL over the
others. `changes`, `history` and `diff` read the past. May import `icedb.transaction`. Begin with `snapshot`.
"""
