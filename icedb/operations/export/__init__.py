"""Exports for programs that cannot read the log: a Delta log or Iceberg metadata over the same parts, or plain
Parquet.

May import `operations.retention`. Begin with `delta`, `iceberg` or `parquet`.
"""
