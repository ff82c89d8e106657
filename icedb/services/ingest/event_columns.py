"""Conversion of events to the columns of a table, with the columns that the service sets.

JSON has no times and no exact fractions. If the column is a time, a text is parsed as ISO 8601. Nested values become
text. All other values are unchanged, and the insert checks them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, NoReturn

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icedb.services.ingest.config.settings import TableSettings
from icedb.services.ingest.events.rejections import RequestRejected
from icedb.writer.batch_loader import PARTITION_COLUMN

__all__ = ["TOO_MANY_COLUMNS", "EventColumns"]

#: Error code for programs.
TOO_MANY_COLUMNS = "too_many_columns"

#: Limit on the length of a column name, which keeps schemas and messages short.
_NAME_CHARS_MAX = 200

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class _ColumnConversion:
    """Conversions of the values of one column. None leaves values unchanged."""

    text: Callable[[str], Any] | None = None
    number: Callable[[float], Any] | None = None
    nested: Callable[[Any], Any] | None = None
    type: str = ""
    #: True if the table has no such column.
    is_new: bool = False


class EventColumns:
    """The columns of one table as of the creation of this object."""

    def __init__(self, settings: TableSettings, schema: Mapping[str, str], *, queried: bool = False) -> None:
        """Read the columns of `schema`. `queried` means that an insert query maps events to other columns."""
        self._settings = settings
        self._queried = queried
        self._types = {name.casefold(): type_.upper() for name, type_ in schema.items()}
        own = (settings.tenant_column, settings.received_column)
        # With PARTITION_COLUMN, a client could put a row into a partition to which it does not belong.
        self._own = {*(name.casefold() for name in own if name is not None), PARTITION_COLUMN}
        self._names_max = max(settings.columns_max, len(self._types))
        self._conversions: dict[str, _ColumnConversion] = {}

    def fit(
        self, rows: list[dict[str, Any]] | pa.Table, tenant: str, received: datetime, *, new_columns: bool = True
    ) -> list[Any] | pa.Table:
        """Return the events of one request as rows of the table. Dicts are changed in place.

        `new_columns`: the tenant may add columns. Raises RequestRejected (400), which names the misfit.
        """
        if isinstance(rows, pa.Table):
            self._check_new([f.name for f in rows.schema if not pa.types.is_null(f.type)], new_columns)
            return self._fit_arrow(rows, tenant, received)
        conversions: dict[str, _ColumnConversion] = {}
        added: set[str] = set()
        for number, row in enumerate(rows):
            for name, value in row.items():
                conversion = conversions.get(name)
                if conversion is None:
                    conversion = conversions[name] = self._conversion(name, number)
                    if len(conversions) > self._names_max:
                        self._reject_names("events")
                if conversion.is_new and value is not None:
                    added.add(name)
                kind = type(value)
                if kind is str:
                    if conversion.text is not None:
                        row[name] = self._parse(conversion.text, value, f"event {number}: '{name}'", conversion.type)
                elif kind is dict or kind is list:
                    if conversion.nested is not None:
                        row[name] = conversion.nested(value)
                elif kind is float and conversion.number is not None:
                    row[name] = conversion.number(value)
            if self._settings.tenant_column is not None:
                row[self._settings.tenant_column] = tenant
                self._prefix_id(row, tenant)
            if self._settings.received_column is not None:
                row[self._settings.received_column] = received
        self._check_new(added, new_columns)
        return rows

    def _reject_names(self, rows: str) -> NoReturn:
        message = f"The {rows} have more than {self._names_max} different names. Send fewer."
        raise RequestRejected(400, message, error=TOO_MANY_COLUMNS)

    def _check_new(self, names: Collection[str], new_columns: bool) -> None:
        """Reject new columns unless the tenant may add columns and the table stays within `columns_max`."""
        added = sorted({name for name in names if name.casefold() not in self._types})
        if not added or self._queried or (new_columns and len(self._types) + len(added) <= self._settings.columns_max):
            return
        examples = ", ".join(repr(name[:50]) for name in added[:3]) + (", ..." if len(added) > 3 else "")
        why = (
            f"The table has {len(self._types)} of the {self._settings.columns_max} columns that it may have"
            if new_columns
            else "This tenant may not add columns to the table"
        )
        message = f"{why}. The new columns are {examples}. Omit them, or send them as text in one column."
        raise RequestRejected(400, message, error=TOO_MANY_COLUMNS)

    def _prefix_id(self, row: dict[str, Any], tenant: str) -> None:
        """Prefix an id with the tenant, so that tenants of a shared table cannot use up the ids of each other."""
        column = self._settings.id_column
        if column is not None and isinstance(id_ := row.get(column), str | int) and id_ != "":
            row[column] = f"{tenant}/{id_}"

    def _fit_arrow(self, table: pa.Table, tenant: str, received: datetime) -> pa.Table:
        if table.num_columns > self._names_max:
            self._reject_names("columns")
        names = table.column_names
        for name in names:
            self._check_name(name, "the stream")
        if len(set(names)) < len(names):
            raise RequestRejected(400, "The stream has two columns of the same name. Rename one.")
        if self._settings.tenant_column is not None:
            table = table.append_column(self._settings.tenant_column, pa.repeat(tenant, table.num_rows))
            table = self._prefix_ids(table, tenant)
        if self._settings.received_column is not None:
            at = pa.scalar(received, pa.timestamp("us", "UTC"))
            table = table.append_column(self._settings.received_column, pa.repeat(at, table.num_rows))
        return table

    def _prefix_ids(self, table: pa.Table, tenant: str) -> pa.Table:
        column = self._settings.id_column
        if column is None or column not in table.column_names:
            return table
        ids = table.column(column)
        if not (pa.types.is_string(ids.type) or pa.types.is_large_string(ids.type) or pa.types.is_integer(ids.type)):
            raise RequestRejected(400, f"column '{column}' is {ids.type}. Ids are text or whole numbers; cast it.")
        texts = ids.cast(pa.string())
        prefixed = pc.binary_join_element_wise(pa.scalar(tenant), texts, "/")
        number = table.column_names.index(column)
        return table.set_column(number, column, pc.if_else(pc.equal(texts, ""), texts, prefixed))

    def _check_name(self, name: str, place: str) -> None:
        if len(name) > _NAME_CHARS_MAX:
            raise RequestRejected(
                400, f"{place}: the name '{name[:50]}...' is longer than {_NAME_CHARS_MAX} characters. Shorten it."
            )
        if name.casefold() in self._own:
            raise RequestRejected(400, f"{place}: only the service sets the column '{name}'. Omit it.")
        id_column = self._settings.id_column
        if id_column is not None and name != id_column and name.casefold() == id_column.casefold():
            raise RequestRejected(
                400, f"{place}: '{name}' differs only in case from the id column '{id_column}'. Write '{id_column}'."
            )

    def _conversion(self, name: str, number: int) -> _ColumnConversion:
        self._check_name(name, f"event {number}")
        conversion = self._conversions.get(name)
        if conversion is None:
            is_id = name.casefold() == (self._settings.id_column or "").casefold()
            type_ = self._types.get(name.casefold(), "")
            conversion = _ColumnConversion() if is_id else _conversion_to(type_, text=self._settings.nested == "text")
            if name.casefold() not in self._types:
                return replace(conversion, is_new=True)
            self._conversions[name] = conversion  # only columns of the table are cached, so the cache is bounded
        return conversion

    def _parse(self, parse: Callable[[str], Any], value: str, place: str, type_: str) -> Any:
        try:
            return parse(value)
        except (ValueError, OverflowError):
            if self._settings.on_conflict == "quarantine":
                return value  # the insert quarantines the row
        raise RequestRejected(400, f"{place} is {type_}, but the value is {value[:50]!r}. Correct it.") from None


def _conversion_to(type_: str, *, text: bool) -> _ColumnConversion:
    if type_ == "JSON":
        return _ColumnConversion(text=_json_text, nested=_json_text)
    if type_.endswith("]") or type_.startswith(("STRUCT", "MAP")):
        return _ColumnConversion()
    nested = _json_text if text or type_ == "VARCHAR" else None
    if type_ in ("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ"):
        return _ColumnConversion(text=_instant, nested=nested, type=type_)
    if type_.startswith(("TIMESTAMP", "DATETIME")):
        return _ColumnConversion(text=_local, nested=nested, type=type_)
    if type_ == "DATE":
        return _ColumnConversion(text=date.fromisoformat, nested=nested, type=type_)
    if type_ == "TIME":
        return _ColumnConversion(text=time.fromisoformat, nested=nested, type=type_)
    if type_.startswith("DECIMAL"):
        return _ColumnConversion(number=_exact, nested=nested)
    return _ColumnConversion(nested=nested)


def _json_text(value: Any) -> str:
    return _encode(value).decode()


def _exact(value: float) -> Decimal:
    """Return a decimal that is exact for all numbers of up to 15 digits."""
    return Decimal(repr(value))


def _instant(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _local(text: str) -> datetime:
    return _instant(text).replace(tzinfo=None)
