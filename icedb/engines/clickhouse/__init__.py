"""The live parts in ClickHouse's SQL: its functions `file` and `s3`, and its types."""
