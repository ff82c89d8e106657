"""The table format: what its objects are called, what they hold, and what they mean together.

`names` builds and parses every key, `records` says what a log file holds, `codec` turns it into bytes and
back, `snapshot` replays log files into the table's state, `rewrite` drafts the log file that replaces others.
All of it is pure: nothing here talks to a store or reads a clock.
"""
