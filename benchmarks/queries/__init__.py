"""The queries of `benchmarks.query`: TPC-H, and selective queries over many parts."""
