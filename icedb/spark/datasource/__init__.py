"""The Python data source `icedb`: batch and stream, reads and writes, in Spark's tasks. Begin with `source`."""
