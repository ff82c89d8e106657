"""Checks before a release: the wheel with each extra alone, other Pythons, other versions of Dagster.

None of this is in the wheel. `make dist`, `make matrix`, `make unit` and `make versions` run it.
"""
