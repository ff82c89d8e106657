"""Merges that aggregate rows: built-in, and with your own query."""
