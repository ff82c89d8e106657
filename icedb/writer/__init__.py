"""A batch becomes sorted, partitioned Parquet parts in the store.

`batch_loader` loads a batch into DuckDB, `staging` converts, partitions and sorts it, `part_writer` writes and puts the
parts. Nothing here commits. May import `icedb.sources`. Begin with `staging`.
"""
