"""What a table wants of events: times as times, nested values as text, and the columns that the service sets itself.

JSON has no times and no exact fractions. A text for a column that the table has as a time is read as one, in ISO 8601;
for all other columns values stay what they are, and the table says whether they fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icedb.incoming import PARTITION_COLUMN
from icedb.ingest.refusals import Refusal
from icedb.ingest.settings import TableSettings

__all__ = ["Columns"]

#: More would only make schemas and messages long.
_NAME_CHARS_MAX = 200

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class _Column:
    """What becomes of values of one column; None: they stay."""

    text: Callable[[str], Any] | None = None
    number: Callable[[float], Any] | None = None
    nested: Callable[[Any], Any] | None = None
    type: str = ""


class Columns:
    """The columns of one table, as they were when this was made."""

    def __init__(self, settings: TableSettings, schema: Mapping[str, str], *, columns_max: int) -> None:
        self._settings = settings
        self._columns_max = columns_max
        self._known = {name.casefold(): type_.upper() for name, type_ in schema.items()}
        own = (settings.tenant_column, settings.received_column)
        # With the last a row would choose its partition, and be found where it does not belong.
        self._own = {*(name.casefold() for name in own if name is not None), PARTITION_COLUMN}
        self._plans: dict[str, _Column] = {}

    def fit(self, rows: list[dict[str, Any]] | pa.Table, tenant: str, received: datetime) -> list[Any] | pa.Table:
        """The rows as they are stored; dicts are changed. Raises Refusal (400), which names the event at fault."""
        if isinstance(rows, pa.Table):
            return self._fit_arrow(rows, tenant, received)
        plans: dict[str, _Column] = {}
        for number, row in enumerate(rows):
            for name, value in row.items():
                plan = plans.get(name)
                if plan is None:
                    plan = plans[name] = self._plan(name, number)
                    if len(plans) > self._columns_max:
                        raise Refusal(400, f"The events have more than {self._columns_max} different names.")
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
        return rows

    def _own_id(self, row: dict[str, Any], tenant: str) -> None:
        """Of a table that tenants share, an id says whose it is: nobody can take another's."""
        column = self._settings.id_column
        if column is not None and isinstance(given := row.get(column), str | int) and given != "":
            row[column] = f"{tenant}/{given}"

    def _fit_arrow(self, table: pa.Table, tenant: str, received: datetime) -> pa.Table:
        if table.num_columns > self._columns_max:
            raise Refusal(400, f"The events have more than {self._columns_max} columns.")
        names = table.column_names
        for name in names:
            self._check_name(name, "the stream")
        if len(set(names)) < len(names):
            raise Refusal(400, "The stream has two columns of one name.")
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
            raise Refusal(400, f"column '{column}' is {given.type}, and ids are text or whole numbers.")
        texts = given.cast(pa.string())
        whole = pc.binary_join_element_wise(pa.scalar(tenant), texts, "/")
        number = table.column_names.index(column)
        return table.set_column(number, column, pc.if_else(pc.equal(texts, ""), texts, whole))

    def _check_name(self, name: str, place: str) -> None:
        if len(name) > _NAME_CHARS_MAX:
            raise Refusal(400, f"{place}: a name is longer than {_NAME_CHARS_MAX} characters: '{name[:50]}...'.")
        if name.casefold() in self._own:
            raise Refusal(400, f"{place}: '{name}' is a column that only the service sets. Leave it out.")
        id_column = self._settings.id_column
        if id_column is not None and name != id_column and name.casefold() == id_column.casefold():
            raise Refusal(400, f"{place}: '{name}' is to be written '{id_column}': it is what tells events apart.")

    def _plan(self, name: str, number: int) -> _Column:
        self._check_name(name, f"event {number}")
        found = self._plans.get(name)
        if found is None:
            is_id = name.casefold() == (self._settings.id_column or "").casefold()
            type_ = self._known.get(name.casefold(), "")
            found = _Column() if is_id else _column(type_, text=self._settings.nested == "text")
            if name.casefold() in self._known:  # as many as the table has; others are anybody's
                self._plans[name] = found
        return found

    def _read(self, read: Callable[[str], Any], value: str, place: str, type_: str) -> Any:
        try:
            return read(value)
        except (ValueError, OverflowError):
            if self._settings.on_conflict == "quarantine":
                return value  # the table sets the row aside
        raise Refusal(400, f"{place} is {type_}, and the value is none: {value[:50]!r}.") from None


def _column(type_: str, *, text: bool) -> _Column:
    if type_ == "JSON":
        return _Column(text=_json_text, nested=_json_text)
    if type_.endswith("]") or type_.startswith(("STRUCT", "MAP")):
        return _Column()
    nested = _json_text if text or type_ == "VARCHAR" else None
    if type_ in ("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ"):
        return _Column(text=_instant, nested=nested, type=type_)
    if type_.startswith(("TIMESTAMP", "DATETIME")):
        return _Column(text=_local, nested=nested, type=type_)
    if type_ == "DATE":
        return _Column(text=date.fromisoformat, nested=nested, type=type_)
    if type_ == "TIME":
        return _Column(text=time.fromisoformat, nested=nested, type=type_)
    if type_.startswith("DECIMAL"):
        return _Column(number=_exact, nested=nested)
    return _Column(nested=nested)


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
