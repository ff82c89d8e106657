"""DuckDB connections of benchmarks, and DuckDB's extensions from PyPI."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import duckdb

from icedb.sql.connections import quote_text

__all__ = ["connected", "load_extension"]


@contextmanager
def connected() -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection to an empty database in memory."""
    with duckdb.connect() as con:
        con.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        yield con


def load_extension(con: duckdb.DuckDBPyConnection, name: str) -> None:
    """Load an extension of DuckDB from its wheel."""
    wheel = find_spec(f"duckdb_extension_{name}")
    if wheel is None or not wheel.submodule_search_locations:
        raise SystemExit(f"An extension is missing: pip install duckdb-extension-{name}=={duckdb.__version__}")
    folder = Path(wheel.submodule_search_locations[0], "extensions", f"v{duckdb.__version__}")
    con.execute(f"LOAD {quote_text(str(folder / f'{name}.duckdb_extension'))}")
