"""Which Hive partitions of a table belong to which partitions of an asset. Begin with `partitions`."""
