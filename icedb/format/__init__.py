"""The table format: the names and bytes of its objects, and what they mean together.

`keys` builds and parses every key, `records` defines the content of a log file, `codec` encodes and decodes it,
`replay` turns log files into the table's state, `commit_draft` plans the log file that replaces others. Everything here
is pure: no store, no clock. May import `icedb.util`. Begin with `records`, then `replay`; docs/format.md is the
contract.
"""
