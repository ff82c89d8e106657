"""What benchmarks put beside the library."""

import importlib.util
from importlib.metadata import version

import deltalake
import duckdb
import matplotlib as mpl
import pyiceberg

for name in ("ducklake", "tpch"):
    spec = importlib.util.find_spec(f"duckdb_extension_{name}")
    assert spec is not None, f"DuckDB's extension {name} is not there"
    assert version(f"duckdb-extension-{name}") == duckdb.__version__
assert deltalake.__version__ and mpl.__version__ and pyiceberg.__version__
