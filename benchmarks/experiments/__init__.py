"""The experiments of `benchmarks.tuning` and `benchmarks.tips`. Begin with `lab`."""
