"""The table format: the names and bytes of a table's objects, and the state that they define.

`keys` builds and parses every key. `records` defines the content of a log file, and `codec` encodes and decodes it.
`replay` computes the table's state from log files. `commit_draft` plans a log file that replaces others. Everything
here is pure: no store, no clock. May import `icedb.util`. Begin with `records`, then `replay`. docs/format.md is the
specification.
"""
