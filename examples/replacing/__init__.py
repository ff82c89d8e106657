"""The newest row of each key, without updates in place."""
