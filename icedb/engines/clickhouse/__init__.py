"""Parts as ClickHouse opens them: its functions `file` and `s3`, and its names of types."""
