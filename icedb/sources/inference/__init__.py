"""Type inference for Python values: one type for all values of a column, and Arrow arrays of it.

May import `icedb.sql`. Begin with `value_types` and `common_type`.
"""
