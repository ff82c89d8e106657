"""A table for programs that do not know it: a Delta log over the same parts, or a folder of plain Parquet.

May import `operations.retention`. Begin with `delta` or `parquet`.
"""
