"""Snapshots for other engines: each reads the live parts itself, and needs nothing of ours while it does."""
