"""What a table wants of events: times as times, nested values as text, and the columns that the service sets itself.

JSON has no times and no exact fractions. A text for a column that the table has as a time is read as one, in ISO 8601;
for all other columns values stay what they are, and the table says whether they fit.
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

#: The name of the error for programs.
TOO_MANY_COLUMNS = "too_many_columns"

#: More would only make schemas and messages long.
_NAME_CHARS_MAX = 200

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class _ColumnConversion:
    """What becomes of values of one column; None: they stay."""

    text: Callable[[str], Any] | None = None
    number: Callable[[float], Any] | None = None
    nested: Callable[[Any], Any] | None = None
    type: str = ""
    #: Whether the table has no such column.
    is_new: bool = False


class EventColumns:
    """The columns of one table, as they were when this was made."""

    def __init__(self, settings: TableSettings, schema: Mapping[str, str], *, queried: bool = False) -> None:
        """`queried`: the table makes other columns of events, by an insert query."""
        self._settings = settings
        self._queried = queried
        self._known = {name.casefold(): type_.upper() for name, type_ in schema.items()}
        own = (settings.tenant_column, settings.received_column)
        # With the last a row would choose its partition, and be found where it does not belong.
        self._own = {*(name.casefold() for name in own if name is not None), PARTITION_COLUMN}
        self._names_max = max(settings.columns_max, len(self._known))
        self._plans: dict[str, _ColumnConversion] = {}

    def fit(
        self, rows: list[dict[str, Any]] | pa.Table, tenant: str, received: datetime, *, new_columns: bool = True
    ) -> list[Any] | pa.Table:
        """The rows as they are stored; dicts are changed. Raises Refusal (400), which names the event at fault.

        `new_columns`: whether the tenant may bring columns.
        """
        if isinstance(rows, pa.Table):
            self._check_new([f.name for f in rows.schema if not pa.types.is_null(f.type)], new_columns)
            return self._fit_arrow(rows, tenant, received)
        plans: dict[str, _ColumnConversion] = {}
        brought: set[str] = set()
        for number, row in enumerate(rows):
            for name, value in row.items():
                plan = plans.get(name)
                if plan is None:
                    plan = plans[name] = self._plan(name, number)
                    if len(plans) > self._names_max:
                        self._refuse_names("events")
                if plan.is_new and value is not None:
                    brought.add(name)
                kind = type(value)
                if kind is str:
                    if plan.text is not None:
                        row[name] = self._read(plan.text, value, f"event {number}: '{name}'", plan.type)
                elif kind is dict or kind is list:
                    if plan.nested is not None:
                        row[name] = plan.nested(value)
                elif kind is float and plan.number is not None:
                    row[name] = plan.number(value)
            if self._settings.tenant_column is not None:
                row[self._settings.tenant_column] = tenant
                self._own_id(row, tenant)
            if self._settings.received_column is not None:
                row[self._settings.received_column] = received
        self._check_new(brought, new_columns)
        return rows

    def _refuse_names(self, rows: str) -> NoReturn:
        message = f"The {rows} have more than {self._names_max} different names."
        raise RequestRejected(400, message, error=TOO_MANY_COLUMNS)

    def _check_new(self, names: Collection[str], new_columns: bool) -> None:
        """Refuse columns that the table does not have, unless they may come and there is room for them."""
        brought = sorted({name for name in names if name.casefold() not in self._known})
        if (
            not brought
            or self._queried
            or (new_columns and len(self._known) + len(brought) <= self._settings.columns_max)
        ):
            return
        shown = ", ".join(repr(name[:50]) for name in brought[:3]) + (", ..." if len(brought) > 3 else "")
        why = (
            f"The table has {len(self._known)} of the {self._settings.columns_max} columns that it may have"
            if new_columns
            else "Events of this tenant bring no columns"
        )
        message = f"{why}, and does not have {shown}. Leave them out, or send them as text in one column."
        raise RequestRejected(400, message, error=TOO_MANY_COLUMNS)

    def _own_id(self, row: dict[str, Any], tenant: str) -> None:
        """Of a table that tenants share, an id says whose it is: nobody can take another's."""
        column = self._settings.id_column
        if column is not None and isinstance(given := row.get(column), str | int) and given != "":
            row[column] = f"{tenant}/{given}"

    def _fit_arrow(self, table: pa.Table, tenant: str, received: datetime) -> pa.Table:
        if table.num_columns > self._names_max:
            self._refuse_names("columns")
        names = table.column_names
        for name in names:
            self._check_name(name, "the stream")
        if len(set(names)) < len(names):
            raise RequestRejected(400, "The stream has two columns of one name.")
        if self._settings.tenant_column is not None:
            table = table.append_column(self._settings.tenant_column, pa.repeat(tenant, table.num_rows))
            table = self._own_ids(table, tenant)
        if self._settings.received_column is not None:
            at = pa.scalar(received, pa.timestamp("us", "UTC"))
            table = table.append_column(self._settings.received_column, pa.repeat(at, table.num_rows))
        return table

    def _own_ids(self, table: pa.Table, tenant: str) -> pa.Table:
        column = self._settings.id_column
        if column is None or column not in table.column_names:
            return table
        given = table.column(column)
        if not (
            pa.types.is_string(given.type) or pa.types.is_large_string(given.type) or pa.types.is_integer(given.type)
        ):
            raise RequestRejected(400, f"column '{column}' is {given.type}, and ids are text or whole numbers.")
        texts = given.cast(pa.string())
        whole = pc.binary_join_element_wise(pa.scalar(tenant), texts, "/")
        number = table.column_names.index(column)
        return table.set_column(number, column, pc.if_else(pc.equal(texts, ""), texts, whole))

    def _check_name(self, name: str, place: str) -> None:
        if len(name) > _NAME_CHARS_MAX:
            raise RequestRejected(
                400, f"{place}: a name is longer than {_NAME_CHARS_MAX} characters: '{name[:50]}...'."
            )
        if name.casefold() in self._own:
            raise RequestRejected(400, f"{place}: '{name}' is a column that only the service sets. Leave it out.")
        id_column = self._settings.id_column
        if id_column is not None and name != id_column and name.casefold() == id_column.casefold():
            raise RequestRejected(
                400, f"{place}: '{name}' is to be written '{id_column}': it is what tells events apart."
            )

    def _plan(self, name: str, number: int) -> _ColumnConversion:
        self._check_name(name, f"event {number}")
        found = self._plans.get(name)
        if found is None:
            is_id = name.casefold() == (self._settings.id_column or "").casefold()
            type_ = self._known.get(name.casefold(), "")
            found = _ColumnConversion() if is_id else _column(type_, text=self._settings.nested == "text")
            if name.casefold() not in self._known:
                return replace(found, is_new=True)
            self._plans[name] = found  # as many as the table has; others are not kept
        return found

    def _read(self, read: Callable[[str], Any], value: str, place: str, type_: str) -> Any:
        try:
            return read(value)
        except (ValueError, OverflowError):
            if self._settings.on_conflict == "quarantine":
                return value  # the table sets the row aside
        raise RequestRejected(400, f"{place} is {type_}, and the value is none: {value[:50]!r}.") from None


def _column(type_: str, *, text: bool) -> _ColumnConversion:
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
    """As it was written, of all numbers with up to 15 digits."""
    return Decimal(repr(value))


def _instant(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _local(text: str) -> datetime:
    return _instant(text).replace(tzinfo=None)
