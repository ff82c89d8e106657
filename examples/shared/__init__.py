"""Helpers of all examples: a Postgres, timed steps, and comparisons of numbers."""
