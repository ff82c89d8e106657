"""Insert events into a table, and query it."""
