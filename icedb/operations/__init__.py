"""The verbs of a table, each in the package of its kind.

`commits` has the plans that others share; `write` brings rows, `rewrite` merges and deletes, `retention` removes what
is superseded, `integrity` verifies and repairs, `health` recommends, `importing` and `export` exchange Parquet and
Delta. A verb is a pure plan and a function that carries it out. All but the deletions of cleanup are exclusive commits:
safe at any moment, and twice at once. The table's lock only keeps two workers from doing the same work. May import
`icedb.reader`.
"""
