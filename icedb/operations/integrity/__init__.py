"""Verify a table, and repair what can be repaired: types of columns, a lost spec.

May import `operations.retention`. Begin with `verify`.
"""
