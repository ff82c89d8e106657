"""What stays and what goes: cleanup (VACUUM), orphans, pins (tags), restore, and merges of the log.

May import `operations.commits`. Begin with `cleanup`.
"""
