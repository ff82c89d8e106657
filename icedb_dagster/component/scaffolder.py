"""The scaffolder of `dg scaffold defs icedb_dagster.IceDBTableComponent <name>`: writes commented YAML that works."""

# No `from __future__ import annotations` here: pydantic reads the annotations of fields as objects.
import json
import re
from pathlib import Path
from string import Template
from typing import Any

import dagster as dg
from dagster.components.component_scaffolding import scaffold_component
from pydantic import BaseModel, Field

__all__ = ["TEMPLATE", "TableScaffolder", "yaml_values"]

TYPE = "icedb_dagster.IceDBTableComponent"

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
# YAML reads these as booleans or null.
_NO_TEXTS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})

TEMPLATE = Path(__file__).with_name("defs.yaml.txt")


class _Parameters(BaseModel):
    """The command-line parameters."""

    table: str | None = Field(default=None, description="The table's key, with /. Default: the path below defs.")
    ttl_column: str | None = Field(default=None, description="The partition column with the date, for a TTL.")
    keep_days: int = Field(default=365, ge=1, description="Days to keep; with --ttl-column.")


class TableScaffolder(dg.Scaffolder[_Parameters]):
    """Writes the YAML of a table."""

    @classmethod
    def get_scaffold_params(cls) -> type[_Parameters]:
        """Return the command-line parameters."""
        return _Parameters

    def scaffold(self, request: dg.ScaffoldRequest[_Parameters]) -> None:
        """Write or append to `defs.yaml`. For Python, write the stub that Dagster writes for all components."""
        if request.scaffold_format == "python":
            scaffold_component(request, {})
            return
        path = request.target_path if request.append else request.target_path / "defs.yaml"
        text = _rendered(request)
        with path.open("a" if request.append else "w", encoding="utf-8") as file:
            file.write(f"---\n{text}" if request.append else text)


def _rendered(request: dg.ScaffoldRequest[Any]) -> str:
    parameters: _Parameters = request.params
    values = yaml_values(
        parameters.table or _key_of(request),
        type_name=request.type_name,
        ttl_column=parameters.ttl_column,
        keep_days=parameters.keep_days,
    )
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(values)


def _key_of(request: dg.ScaffoldRequest[Any]) -> str:
    """Return the key from the folder: `sales/orders` for `defs/sales/orders/defs.yaml`."""
    folder = request.target_path.parent if request.append else request.target_path
    above, _, below = folder.as_posix().rpartition("/defs/")
    return below if above else folder.name


def yaml_values(
    table: str, *, type_name: str = TYPE, ttl_column: str | None = None, keep_days: int = 365
) -> dict[str, str]:
    """Return the values of the template. Without a `ttl_column`, the time to live is a comment."""
    ttl = f"ttl: {{partition_column: {_in_yaml(ttl_column or 'day')}, keep_days: {keep_days}}}"
    return {"type": type_name, "table": _in_yaml(table), "ttl": ttl if ttl_column else f"# {ttl}"}


def _in_yaml(text: str) -> str:
    """Return a text for YAML, in quotes where YAML could read it otherwise: `2024`, `no`, `a, b`."""
    plain = _PLAIN.fullmatch(text) and text.lower() not in _NO_TEXTS
    return text if plain else json.dumps(text, ensure_ascii=False)
