"""The figures of `benchmarks.guard`: requests, bytes and allocations."""
