"""The check of a configuration: open each table that it names. Nothing is served or created."""

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
    """The state of a table, or the reason why it cannot be written."""

    table: str
    uri: str
    tenants: tuple[str, ...]
    #: "there", or "to be made" if the service will create the table at its start. None if there is an error.
    state: str | None = None
    rows: int | None = None
    error: str | None = None
    #: Settings that the operator may want to change, although the table can be written.
    warnings: tuple[str, ...] = ()


def check_config(path: Path) -> list[CheckedTable]:
    """Open every table that the file names, in the order of the file. Raises InvalidOption if the file is invalid."""
    config = load_config(path)
    checked = []
    for settings in config.tables.values():
        tenants = tuple(t.name for t in config.tenants if settings.name in t.tables)
        state, rows, error, is_open = _table_state(settings, dict(config.storage_options) or None)
        extensible = is_open and any(t.limits.new_columns for t in config.tenants if settings.name in t.tables)
        shared = extensible and len(tenants) > 1 and error is None
        warnings = (_shared_schema_warning(settings, len(tenants)),) if shared else ()
        checked.append(CheckedTable(settings.name, settings.uri, tenants, state, rows, error, warnings))
    return checked


def _shared_schema_warning(settings: TableSettings, tenants: int) -> str:
    return (
        f"{tenants} tenants write it, and its schema is open. A column that one tenant adds is permanent for all "
        f"tenants, with the type of its first value, and counts towards columns_max ({settings.columns_max}). Declare "
        'the columns and create the table with schema_policy = "declared", or set new_columns = false for tenants that '
        "need no other columns."
    )


def _table_state(
    settings: TableSettings, options: dict[str, str] | None
) -> tuple[str | None, int | None, str | None, bool]:
    """Return the state, the number of rows, the error, and whether events may add columns."""
    try:
        table = Table.open(settings.uri, storage_options=options)
        is_open = table.spec.schema_policy == "open"
        return "there", table.snapshot().rows, _missing_id(settings, table), is_open
    except TableNotFound as error:
        if settings.create:
            return "to be made", None, None, settings.schema_policy == "open"
        return None, None, f"{error} Alternatively, set create = true.", False
    except (IceDBError, OSError) as error:
        return None, None, " ".join(str(error).split()), False


def _missing_id(settings: TableSettings, table: Table) -> str | None:
    """Return an error if a table with declared columns lacks a column that the service sets or needs."""
    own = {settings.id_column, settings.tenant_column, settings.received_column} - {None}
    if table.spec.schema_policy == "declared" and (missing := sorted(own - set(table.schema()))):  # type: ignore[type-var]
        return f"the table accepts only declared columns, and has no {', '.join(map(str, missing))}."
    return None
