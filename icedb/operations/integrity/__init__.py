"""Verification of a table, and repair of column types and of a lost spec.

May import `operations.retention`. Begin with `verify`.
"""
