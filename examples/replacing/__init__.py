"""The newest row of each key, without an update in place."""
