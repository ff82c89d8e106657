"""How fast it is, beside what else could do the same work in the same run: `python -m benchmarks.spark`."""
