"""Notebooks with queries and plots, to read or to run."""
