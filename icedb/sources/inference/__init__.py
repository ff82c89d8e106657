"""Types of Python values: one type for a column whose values differ, and Arrow arrays of it.

May import `icedb.sql`. Begin with `value_types` and `common_type`.
"""
