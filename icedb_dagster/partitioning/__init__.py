"""Mapping between an asset's partitions and the Hive partitions of its table. Begin with `partitions`."""
