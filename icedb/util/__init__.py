"""Helpers that are independent of tables: clocks, durations, progress, thread pools, optional dependencies.

May import only `icedb.errors`. Begin with `clock`: all times and ids in this library come from a `Clock`.
"""
