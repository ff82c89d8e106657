"""Hostile texts by attack class, in four languages, and the tables that they attack."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

from icedb import Table
from icedb.storage.location import parse_location
from icedb.storage.obstore_store import open_store
from tests.support.attacks.canary import Canary, contents
from tests.support.object_stores.stores import BUCKET, Place

#: A value or a name. The canary guards `{csv}`, `{folder}` and `{url}`.
TEXTS = {
    "single quote": "x' OR '1'='1",
    "double quote": "x\" FROM '{csv}' --",
    "statement": "x'); DROP TABLE t; --",
    "comment": "x /* y */ -- z",
    "traversal": "../../escape",
    "file": "x' || (SELECT content FROM read_text('{csv}')) || '",
    "copy": "x'; COPY (SELECT 1) TO '{folder}/new.csv'; --",
    "attach": "x'; ATTACH '{folder}/new.db' AS new; --",
    "extension": "x'; INSTALL httpfs; LOAD httpfs; --",
    "setting": "x'; SET memory_limit = '1B'; PRAGMA enable_profiling; --",
    "newline": "x\ny\r\tz",
    "zero": "x\0y",
    "glob": "?*[a-z]{{x}}",
    "internal": "_data/_log/_claims/x",
    "network": "{url}",
}
#: An expression over the columns `a` and `p`.
EXPRESSIONS = {
    "single quote": "p = 'x' OR '1'='1",
    "double quote": "p\" FROM '{csv}' --",
    "statement": "true); DROP TABLE t; SELECT (true",
    "comment": "true) FROM '{csv}' --",
    "traversal": "(SELECT count(*) FROM '../files/secret.csv') = 1",
    "file": "(SELECT count(*) FROM read_text('{csv}')) = 1",
    "copy": "true); COPY (SELECT 1) TO '{folder}/new.csv'; SELECT (true",
    "attach": "true); ATTACH '{folder}/new.db' AS new; SELECT (true",
    "extension": "true); INSTALL httpfs; SELECT (true",
    "setting": "current_setting('home_directory') = ''",
    "newline": "p = 'x\ny'",
    "zero": "true\0 AND false",
    "glob": "p GLOB '?[*]'",
    "internal": "p = '_data/_log/x'",
    "network": "(SELECT count(*) FROM '{url}') = 1",
}
#: A query over `{rows}`.
QUERIES = {
    "single quote": "SELECT *, 'x' OR '1'='1 AS q FROM {rows}",
    "double quote": 'SELECT "a" FROM "{csv}" -- {rows}',
    "statement": "SELECT * FROM {rows}; DROP TABLE {rows}",
    "comment": "SELECT * FROM /* {rows} */ '{csv}' -- {rows}",
    "traversal": "SELECT * FROM '../files/secret.csv'",
    "file": "SELECT * REPLACE ((SELECT content FROM read_text('{csv}')) AS s) FROM {rows}",
    "copy": "COPY (SELECT * FROM {rows}) TO '{folder}/new.csv'",
    "attach": "ATTACH '{folder}/new.db' AS new",
    "extension": "INSTALL httpfs",
    "setting": "SELECT * REPLACE (current_setting('home_directory') AS s) FROM {rows}",
    "newline": "SELECT * FROM {rows}\n;\nSELECT * FROM {rows}",
    "zero": "SELECT * FROM {rows}\0 WHERE false",
    "glob": "SELECT * FROM glob('{folder}/*')",
    "internal": "SELECT * FROM '_data/*/*.parquet'",
    "network": "SELECT * FROM read_csv('{url}')",
}
#: The name of a type.
TYPES = {
    "single quote": "VARCHAR'",
    "double quote": "VARCHAR\" FROM '{csv}' --",
    "statement": "INTEGER); DROP TABLE t; SELECT CAST(1 AS INTEGER",
    "comment": "INTEGER) FROM '{csv}' --",
    "traversal": "../INTEGER",
    "file": "INTEGER), (SELECT content FROM read_text('{csv}')",
    "copy": "INTEGER); COPY (SELECT 1) TO '{folder}/new.csv'; --",
    "attach": "INTEGER); ATTACH '{folder}/new.db' AS new; --",
    "extension": "INTEGER); INSTALL httpfs; --",
    "setting": "INTEGER); SET memory_limit = '1B'; --",
    "newline": "INTEGER\n), (1",
    "zero": "INTEGER\0",
    "glob": "INTEGER[?*]",
    "internal": "_data/_log",
    "network": "{url}",
}
CLASSES = tuple(TEXTS)
assert CLASSES == tuple(EXPRESSIONS) == tuple(QUERIES) == tuple(TYPES)


def make_tables(place: Place) -> None:
    """Create the attacked table and a neighbour that no attack may change."""
    for name in ("table", "neighbour"):
        table = Table.create(place.below(name).uri, storage_options=place.storage_options, partition_by=["p"])
        table.insert([{"a": 1, "p": "x", "s": "one"}, {"a": 2, "p": "y", "s": "two"}])


@dataclass
class AttackedTables:
    """A table of two rows, another beside it, and everything else that an attack could reach."""

    place: Place
    canary: Canary
    table: Table = field(init=False)
    #: Every object before the attack.
    before: dict[str, bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.table = self.open()
        self.mark()

    def mark(self) -> None:
        """Record the state that the attack must not change."""
        self.before = self.everything()

    @property
    def options(self) -> Mapping[str, str] | None:
        return self.place.storage_options

    @property
    def prefix(self) -> str:
        """Return the folder of all tables, with which keys of their store begin."""
        return self.place.uri.removeprefix(f"s3://{BUCKET}/")

    def beside(self, name: str) -> Place:
        return self.place.below(name)

    def open(self) -> Table:
        return Table.open(self.beside("table").uri, storage_options=self.options)

    def create(self, name: str = "new", **options: Any) -> Table:
        return Table.create(self.beside(name).uri, storage_options=self.options, **options)

    def rows(self) -> list[tuple[Any, ...]]:
        return self.open().query("SELECT a, p, s FROM t ORDER BY ALL").fetchall()

    def text(self, payloads: Mapping[str, str], attack: str, *, rows: str = "") -> str:
        canary = self.canary
        return payloads[attack].format(csv=canary.csv, folder=canary.folder, url=canary.url, rows=rows)

    def everything(self) -> dict[str, bytes]:
        """Return every object of the store, and every local file of the test's folder, with their content."""
        # Not the owner file of the library's temporary folder, which stays as long as something needs the folder.
        files = contents(self.canary.folder.parent)
        host_files = {k: body for k, body in files.items() if not fnmatch(k, "*/icedb-temporary-*/owner")}
        if self.place.kind == "s3":
            store = open_store(parse_location(self.place.uri, self.options))
            keys = [info.key for info in store.list(f"{self.prefix}/")]
            host_files |= {key: store.get(key).body for key in keys}
        return host_files

    def new_keys(self) -> list[str]:
        """Return the new names below the folder of all tables. Fails if an object was changed or deleted."""
        after = self.everything()
        assert {key: after.get(key) for key in self.before} == self.before, "something was changed or deleted"
        new = sorted(after.keys() - self.before.keys())
        outside = [key for key in new if not key.startswith(f"{self.prefix}/") or ".." in key.split("/")]
        assert not outside, f"outside the tables: {outside}"
        return [os.path.relpath(key, self.prefix) for key in new]
