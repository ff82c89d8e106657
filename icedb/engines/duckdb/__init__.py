"""A table as a view and a table macro of the caller's DuckDB connection: `attach`, `detach`.

Begin with `attached_tables`. `table_queries` writes the SQL that DuckDB runs.
"""

from icedb.engines.duckdb.attached_tables import Attached, attach, detach

__all__ = ["Attached", "attach", "detach"]
