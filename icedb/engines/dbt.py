"""A plugin of dbt-duckdb: models read attached tables, and are committed to tables.

In `profiles.yml`:

    type: duckdb
    path: ":memory:"
    plugins:
      - module: icedb.engines.dbt
        alias: icedb
        config: {root: s3://lake/events, tables: [visits, sales/orders]}

A source has the name of its table's last folder, in the schema `main`. A model with `materialized='external'` and
`plugin='icedb'` becomes a table below `root`. The setting `icedb` of the model has its options. The database is in
memory: the tables are the storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import duckdb

try:
    from dbt.adapters.duckdb.plugins import BasePlugin
    from dbt.adapters.duckdb.utils import TargetConfig
except ImportError as error:
    raise ImportError(
        "icedb.engines.dbt needs dbt-duckdb, which is not installed. Install it with: pip install 'icedb-dagster[dbt]'."
    ) from error

from icedb.engines.duckdb.attached_tables import attach
from icedb.errors import InvalidOption, TableNotFound
from icedb.sql.connections import quote_name, quote_text
from icedb.table import Table

__all__ = ["Plugin"]

_OPTIONS = ("key", "mode", "partitions", "partition_by", "sort_by", "on_conflict")


class Plugin(BasePlugin):  # type: ignore[misc]
    """Attaches tables to dbt's DuckDB connection, and commits external models to tables.

    The config of the plugin has `root` (a bucket with a prefix, or a folder), `tables` (keys below the root, or names
    with their keys), and `storage_options` as for `icedb.Table.open`. The setting `icedb` of a model has `key` (by
    default the name of the model), `mode` (`overwrite` or `append`), `partitions` (a predicate over partition columns:
    only these partitions are replaced), `on_conflict`, and for a new table `partition_by` and `sort_by`.
    """

    def initialize(self, plugin_config: dict[str, Any]) -> None:
        """Read the config. Raises InvalidOption."""
        self._root = str(plugin_config.get("root") or "").rstrip("/")
        if not self._root:
            raise InvalidOption(f"the dbt plugin {self.name}: root is missing. Set it in plugins of profiles.yml.")
        if self.creds is not None and self.creds.path != ":memory:":
            raise InvalidOption(
                f"the dbt plugin {self.name}: path is {self.creds.path!r}. Set path: ':memory:' in profiles.yml, "
                "because views of attached tables exist in memory only."
            )
        tables = plugin_config.get("tables", ())
        named = tables if isinstance(tables, Mapping) else {str(key).rpartition("/")[2]: key for key in tables}
        self._tables = {str(name): str(key) for name, key in named.items()}
        self._access: dict[str, Any] = {"storage_options": plugin_config.get("storage_options")}
        #: Keeps the connection, on which the attached tables depend.
        self._con: duckdb.DuckDBPyConnection | None = None

    def configure_connection(self, conn: duckdb.DuckDBPyConnection) -> None:
        """Attach the tables.

        Raises:
            TableNotFound: A table does not exist. Errors of the store are raised, too.
        """
        self._con = conn
        for name, key in self._tables.items():
            attach(conn, f"{self._root}/{key}", name, **self._access)

    def store(self, target_config: TargetConfig) -> None:
        """Commit the rows of a model, which dbt has written to a Parquet file.

        Raises:
            InvalidOption: The options of the model are invalid. Errors of `icedb.Table.overwrite` are raised, too.
        """
        model = target_config.relation.identifier
        options = dict(target_config.config.get("icedb") or {})
        if unknown := sorted(options.keys() - set(_OPTIONS)):
            raise InvalidOption(
                f"the dbt model {model}: icedb has {unknown[0]!r}, which is no option. Options are "
                f"{', '.join(_OPTIONS)}."
            )
        mode, partitions = options.get("mode", "overwrite"), options.get("partitions")
        if mode not in ("overwrite", "append") or (mode == "append" and partitions is not None):
            raise InvalidOption(
                f"the dbt model {model}: mode is {mode!r} with partitions {partitions!r}. Use overwrite, or append "
                "without partitions."
            )
        if target_config.location is None:
            raise InvalidOption(f"the dbt model {model} has no file. Set materialized='external'.")
        table = self._open(options.get("key", model), options)
        # For a model without rows, dbt-duckdb writes a row of nulls.
        some = " OR ".join(f"{quote_name(c.column)} IS NOT NULL" for c in target_config.column_list) or "true"
        query = f"SELECT * FROM read_parquet({quote_text(target_config.location.path)}) WHERE {some}"
        with duckdb.connect() as con:
            rows = con.sql(query)
            conflict = options.get("on_conflict", "raise")
            if mode == "append":
                table.insert(rows, on_conflict=conflict)
            elif partitions is not None and rows.limit(1).fetchone() is None:
                table.drop_partitions(partitions)
            else:
                table.overwrite(rows, partitions=partitions, on_conflict=conflict)

    def _open(self, key: str, options: Mapping[str, Any]) -> Table:
        uri = f"{self._root}/{key}"
        try:
            return Table.open(uri, **self._access)
        except TableNotFound:
            layout: dict[str, Any] = {name: options.get(name) for name in ("partition_by", "sort_by")}
            return Table.create(uri, **layout, **self._access)
