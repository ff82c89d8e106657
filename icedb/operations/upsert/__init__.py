"""Changes of existing rows, in one exclusive commit: upsert and update.

Matching rows are found by their numbers in the parts. Each part with rows that change is rewritten without these, and
the changed and inserted rows become new parts.
"""
