"""A snapshot of a table becomes rows: which parts, which columns, which SQL.

`snapshot` is what a reader holds. `part_pruning` and `predicate_pushdown` leave out parts, `scan_sql` writes the SQL
over the rest. `changes`, `history` and `diff` read the past. May import `icedb.transaction`. Begin with `snapshot`.
"""
