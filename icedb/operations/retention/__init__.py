"""Retention of objects and history: cleanup (VACUUM), orphans, pins (tags), restore, and merges of the log.

May import `operations.commits`. Begin with `cleanup`.
"""
