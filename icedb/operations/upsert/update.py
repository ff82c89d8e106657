"""Updates: stored rows for which a predicate is true get new values of some columns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import duckdb

from icedb.errors import IceDBError, InvalidOption, UnknownColumn
from icedb.operations.rewrite.engine import Engine
from icedb.operations.upsert.change_rows import ChangedParts, check_changeable, commit_changes, no_changes, resources
from icedb.operations.upsert.matched_rows import IS_SAME, MATCHES, ChangePlan, MatchedRows
from icedb.operations.upsert.row_changes import RowChanges
from icedb.operations.upsert.row_search import RowSearch, TableColumns
from icedb.reader.part_pruning import prune_parts
from icedb.sql.connection_pool import scratch_connection
from icedb.sql.connections import quote_name, quote_text
from icedb.sql.predicates import check_predicate, names_function, parse_value
from icedb.sql.types import describe, typed_nothing
from icedb.transaction.idempotent_append import Txn, is_recorded, repeated
from icedb.transaction.table_handle import Handle

__all__ = ["UpdateReport", "update"]

_TEXT = re.compile(r"'(?:[^']|'')*'", re.DOTALL)


@dataclass(frozen=True)
class UpdatedRows:
    """The stored rows for which the predicate is true."""

    updated_rows: int
    #: Rows that had the new values already.
    unchanged_rows: int

    @classmethod
    def of(cls, con: duckdb.DuckDBPyConnection) -> UpdatedRows:
        """Count the rows in MATCHES."""
        counts = f"SELECT count(*) FILTER (NOT {IS_SAME}), count(*) FILTER ({IS_SAME}) FROM {MATCHES}"
        [(updated, unchanged)] = con.execute(counts).fetchall()
        return UpdatedRows(int(updated), int(unchanged))


_NO_ROWS = UpdatedRows(0, 0)


@dataclass(frozen=True)
class UpdateReport(ChangedParts, UpdatedRows):
    """The result of an update or of its dry run."""


def update(
    handle: Handle,
    values: Mapping[str, str],
    where: str,
    *,
    txn: Txn | None = None,
    dry_run: bool = False,
    memory_bytes: int | None = None,
    engine: Engine | None = None,
) -> UpdateReport:
    """Update rows. `values`: column -> expression. See `Table.update`."""
    if not isinstance(values, Mapping) or not values or not all(isinstance(c, str) for c in values):
        raise InvalidOption(f"{handle.table}: set is {values!r}; give columns and SQL expressions ({{'price': '2'}}).")
    if not isinstance(where, str) or not where.strip():
        raise InvalidOption(f"{handle.table}: no predicate is given. To update every row, pass where='true'.")
    if not dry_run:
        handle.check_writable()
    state = handle.read(fresh=True)
    check_changeable(handle, "update")
    if txn is not None and is_recorded(state, txn):
        return UpdateReport(**vars(_NO_ROWS), **no_changes(state, repeated(handle), dry_run=dry_run))
    assignments = _Assignments(handle, values, where)
    with resources(handle, memory_bytes, engine) as own:
        rows = MatchedRows(handle, own.con, assignments.plan, "update", own.engine, own.memory_bytes)
        changes = RowChanges(handle, rows, "update", txn=txn, dry_run=dry_run)
        report = commit_changes(handle, changes)
    if report is None:
        return UpdateReport(**vars(_NO_ROWS), **no_changes(state, repeated(handle), dry_run=dry_run))
    return UpdateReport(**report)


@dataclass(frozen=True, slots=True)
class _Assignments:
    """The new values of columns, as SQL expressions over the stored row."""

    handle: Handle
    values: Mapping[str, str]
    where: str

    def plan(self, schema: Mapping[str, str]) -> ChangePlan:
        """Return the plan for a table with these columns. Raises InvalidOption, UnknownColumn."""
        columns = TableColumns.of(self.handle, schema)
        predicate = check_predicate(
            self.where, schema, columns.visible, table=self.handle.table, at_once=True, what="where"
        )
        values, same = self._checked(columns.stored, {**schema, **columns.visible})
        names = {c: f"value{n}" for n, c in enumerate(columns.stored)}
        selected = {IS_SAME: " AND ".join(same)}
        selected |= {name: values.get(c, quote_name(c)) for c, name in names.items()}
        search = RowSearch(
            columns, f"WHERE (\n{predicate.sql}\n)", selected, None,
            f"where {quote_text(self.where)} or one of {dict(self.values)} has no value for some row; use TRY_CAST",
        )  # fmt: skip
        rows = ", ".join(f"{name} AS {quote_name(c)}" for c, name in names.items())
        return ChangePlan(
            search,
            lambda parts: prune_parts(parts, predicate.tree, schema, columns.visible),
            lambda con: vars(UpdatedRows.of(con)),
            lambda con: (
                f"SELECT {rows} FROM {MATCHES} WHERE NOT {IS_SAME}" if UpdatedRows.of(con).updated_rows else None
            ),
        )

    def _checked(self, stored: Mapping[str, str], columns: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
        """Return SQL of the new values, and of whether each is equal to the stored one."""
        values, same = {}, []
        with scratch_connection() as con:
            for column, text in self.values.items():
                if column not in stored:
                    raise UnknownColumn(
                        f"{self.handle.table}: set names '{column}', and the table stores no such column (it has "
                        f"{sorted(stored)}). Correct the name."
                    )
                value, type_ = self._check(con, column, text, stored[column], columns)
                # As the value is stored. A value that the cast would change is rejected when the row is written.
                cast = f"TRY_CAST({value} AS {stored[column]})"
                back = (
                    "" if type_ == stored[column] else f" AND TRY_CAST({cast} AS {type_}) IS NOT DISTINCT FROM {value}"
                )
                values[column] = value
                same.append(f"{cast} IS NOT DISTINCT FROM {quote_name(column)}{back}")
        return values, same

    def _check(
        self, con: duckdb.DuckDBPyConnection, column: str, text: str, target: str, columns: Mapping[str, str]
    ) -> tuple[str, str]:
        """Return SQL of a checked expression, and its type. NULL and a text literal have the type of the column."""

        def refuse(reason: str) -> IceDBError:
            return InvalidOption(
                f"{self.handle.table}: the expression {quote_text(str(text))} for '{column}' {reason}. Write one "
                'DuckDB expression over the columns of t, such as "price * 2".'
            )

        parsed = parse_value(text, columns, refuse=refuse, at_once=True)
        # DuckDB would call its function `user`, and `t` is the whole row, with columns of this library.
        if name := next((n for n in ("user", "t") if names_function(parsed, columns, n)), None):
            raise refuse(f"names '{name}', which is no column")
        sql = f"(\n{parsed.sql}\n)"
        try:
            [described] = describe(con, f"SELECT {sql} AS value FROM ({typed_nothing(columns)}) AS t").values()
            con.execute(f"SELECT 1 FROM ({typed_nothing(columns)}) AS t WHERE {sql} IS NULL")
            if parsed.sql == "NULL" or (_TEXT.fullmatch(parsed.sql) and described == "VARCHAR" != target):
                sql, described = f"CAST({sql} AS {target})", target
                con.execute(f"SELECT {sql}")
        except duckdb.Error as error:
            raise refuse(f"does not fit the rows ({str(error).splitlines()[0]})") from None
        return sql, described
