"""Helpers that know nothing of tables: clocks, durations, progress, thread pools, optional dependencies.

May import `icedb.errors` alone. Begin with `clock`: all time and all ids in this library come from a `Clock`.
"""
