"""Whether a configuration holds: each table that it names is opened. Nothing is served, nothing is made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from icedb.errors import IceDBError, TableNotFound
from icedb.services.ingest.config.config_file import load_config
from icedb.services.ingest.config.settings import TableSettings
from icedb.table import Table

__all__ = ["CheckedTable", "check_config"]


@dataclass(frozen=True, slots=True)
class CheckedTable:
    """A table as it is, or why it cannot be written."""

    table: str
    uri: str
    tenants: tuple[str, ...]
    #: "there", or "to be made" by the service when it starts; None with an error.
    state: str | None = None
    rows: int | None = None
    error: str | None = None
    #: What the operator may want to change, though the table can be written.
    warnings: tuple[str, ...] = ()


def check_config(path: Path) -> list[CheckedTable]:
    """Open every table that the file names, in its order. Raises InvalidOption when the file itself is wrong."""
    config = load_config(path)
    checked = []
    for settings in config.tables.values():
        tenants = tuple(t.name for t in config.tenants if settings.name in t.tables)
        state, rows, error, is_open = _look(settings, dict(config.storage_options) or None)
        brings = any(t.limits.new_columns for t in config.tenants if settings.name in t.tables)
        shared = is_open and brings and len(tenants) > 1 and error is None
        warnings = (_open_and_shared(settings, len(tenants)),) if shared else ()
        checked.append(CheckedTable(settings.name, settings.uri, tenants, state, rows, error, warnings))
    return checked


def _open_and_shared(settings: TableSettings, tenants: int) -> str:
    return (
        f"{tenants} tenants write it, and its schema is open. A column that one of them brings is there for all of "
        f"them for good, with the type of its first value, and counts towards columns_max ({settings.columns_max}). "
        'Declare the columns and make the table with schema_policy = "declared", or set new_columns = false for '
        "tenants that need no others."
    )


def _look(settings: TableSettings, options: dict[str, str] | None) -> tuple[str | None, int | None, str | None, bool]:
    """The state, the rows, the error, and whether events may bring columns."""
    try:
        table = Table.open(settings.uri, storage_options=options)
        is_open = table.spec.schema_policy == "open"
        return "there", table.snapshot().rows, _missing_id(settings, table), is_open
    except TableNotFound as error:
        if settings.create:
            return "to be made", None, None, settings.schema_policy == "open"
        return None, None, f"{error} Or add create = true.", False
    except (IceDBError, OSError) as error:
        return None, None, " ".join(str(error).split()), False


def _missing_id(settings: TableSettings, table: Table) -> str | None:
    """A declared table takes no ids that it has no column for."""
    own = {settings.id_column, settings.tenant_column, settings.received_column} - {None}
    if table.spec.schema_policy == "declared" and (missing := sorted(own - set(table.schema()))):  # type: ignore[type-var]
        return f"the table takes only columns that were declared, and has no {', '.join(map(str, missing))}."
    return None
