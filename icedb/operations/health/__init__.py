"""The health of a table: measurements, recommendations, and a chart of part sizes.

May import `operations.rewrite` and `operations.retention`. Begin with `table_health`.
"""
