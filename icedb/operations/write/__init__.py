"""Inserts and overwrites: from a batch or a Spark DataFrame to a commit, with quarantine and materialized views.

May import `operations.commits`. Begin with `insert`.
"""
