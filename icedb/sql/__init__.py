"""DuckDB: connections and sandboxes, expressions and types, and the SQL that a table's spec means.

May import `icedb.format` and `icedb.storage`. Begin with `connections`; `user_queries` and `predicates` check SQL that
comes from callers.
"""
