"""Rows in Arrow, in the order of storage, become Parquet files with statistics.

`parquet_encoder` encodes one file, with the encodings that `encoding_plan` selects and the filters of `bloom_filters`.
`parquet_file` adds the statistics of `part_stats`. No module here uses a store. Begin with `parquet_encoder`.
"""
