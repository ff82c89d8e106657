"""Notebooks to read as they are, or to run: tables looked at, and drawn."""
