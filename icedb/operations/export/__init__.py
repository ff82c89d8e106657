"""Exports for programs that cannot read the log: a Delta log over the same parts, or a folder of plain Parquet.

May import `operations.retention`. Begin with `delta` or `parquet`.
"""
