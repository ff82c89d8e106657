"""DuckDB: connections and sandboxes, expressions and types, and the SQL of a table's spec.

`user_queries` and `predicates` check SQL from callers. May import `icedb.format` and `icedb.storage`. Begin with
`connections`.
"""
