"""Resolve a table's YAML attributes to Python arguments: templates are rendered, then everything is validated again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import dagster as dg
from pydantic import BaseModel, ValidationError

from icedb.errors import InvalidOption
from icedb_dagster.checks import TableChecks
from icedb_dagster.component.attributes import OF_ASSETS, OF_QUERIES, TableAttributes
from icedb_dagster.component.templates import is_template
from icedb_dagster.maintenance.exports import TableExport
from icedb_dagster.sensors import CommitsSensor, MaintenanceSensor

__all__ = ["rendered", "resolved", "set_fields"]

# A variable of the environment, in a template.
_VARIABLE = re.compile(r"\{\{-?\s*env\.\w+\s*-?\}\}")
_PLAIN = (
    "asset",
    "observe_cron",
    "engine",
    "lock",
    "max_runtime_s",
    "running",
    "resource_key",
    "spark_resource_key",
)


class _Spec(dg.Resolvable, dg.Model):
    """Dagster's own asset attributes; partitions are resolved as in other components."""

    spec: dg.ResolvedAssetSpec


def resolved(context: dg.ResolutionContext, model: BaseModel) -> dict[str, Any]:
    """Return the fields of an `IceDBTableComponent`.

    Raises InvalidOption, and the errors that Dagster raises for templates.
    """
    values = model.model_dump(exclude_unset=True)
    label = f"the table {values.get('table')!r}"
    plain = rendered(context, values, label)
    try:
        attributes = TableAttributes.model_validate(plain)
    except ValidationError as error:
        raise InvalidOption(_error_text(plain, error)) from None
    resolved_values = {name: getattr(attributes, name) for name in attributes.model_fields_set}
    fields = {name: resolved_values[name] for name in _PLAIN if name in resolved_values}
    fields |= {
        name: _settings(resolved_values[name])
        for name in ("ttl", "thresholds")
        if resolved_values.get(name) is not None
    }
    fields |= {name: _export(resolved_values.get(name, False)) for name in ("export_delta", "export_iceberg")}
    fields["table"] = _key(resolved_values["table"])
    fields["spec"] = _spec(context, resolved_values)
    fields["sql"] = _sql(resolved_values)
    fields["schedules"] = set_fields(resolved_values.get("schedules"))
    return {**fields, **_sensors(resolved_values.get("sensors")), "checks": _checks(resolved_values.get("checks"))}


def rendered(context: dg.ResolutionContext, values: Mapping[str, Any], label: str) -> dict[str, Any]:
    """Return attributes with their templates rendered. `label` begins messages. Raises InvalidOption."""
    return {name: _rendered(context.at_path(name), value, f"{label}: {name}") for name, value in values.items()}


def _rendered(context: dg.ResolutionContext, value: Any, at: str) -> Any:
    """Return a value with its templates rendered. Other texts stay: Dagster would turn `"3"` into a number.

    `at` is the attribute's path for messages. Raises InvalidOption for a template that renders to None, because None in
    YAML omits an attribute, and an unset variable would do so silently.
    """
    if isinstance(value, dict):
        return {name: _rendered(context.at_path(name), inner, f"{at}.{name}") for name, inner in value.items()}
    if isinstance(value, list):
        return [_rendered(context.at_path(number), inner, f"{at}.{number}") for number, inner in enumerate(value)]
    return _rendered_template(context, value, at) if is_template(value) else value


def _rendered_template(context: dg.ResolutionContext, template: str, at: str) -> Any:
    value = context.resolve_value(template)
    # In a longer text, an unset variable would become the word None.
    if value is None or any(context.resolve_value(name) is None for name in _VARIABLE.findall(template)):
        raise InvalidOption(f"{at}: {template} renders to nothing. Set the variable, or remove the attribute.")
    return value


def _error_text(attributes: Mapping[str, Any], error: ValidationError) -> str:
    """Return the message: each attribute with its error."""
    wrong = (f"{'.'.join(str(step) for step in _path(e['loc']))}: {e['msg']}" for e in error.errors())
    return f"the table {attributes.get('table')!r}: {'; '.join(wrong)}."


def _path(steps: tuple[int | str, ...]) -> list[int | str]:
    """Return the path without the names of alternatives."""
    return [step for step in steps if step not in ("value", "object", "template")] or ["attributes"]


def set_fields(model: Any) -> dict[str, Any]:
    """Return the fields set in an object, or the mapping that a template rendered to."""
    if isinstance(model, BaseModel):
        return {name: getattr(model, name) for name in model.model_fields_set}
    return dict(model or {})


def _settings(value: Any) -> Any:
    """Return the settings object, from attributes or from a template."""
    return value.settings() if isinstance(value, BaseModel) else value  # type: ignore[attr-defined]


def _key(table: Any) -> dg.AssetKey:
    return dg.AssetKey.from_user_string(table) if isinstance(table, str) else dg.AssetKey.from_coercible(table)


def _spec(context: dg.ResolutionContext, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `table_spec`."""
    spec = {name: values[name] for name in OF_ASSETS if values.get(name)}
    if "deps" in spec:
        spec["deps"] = [_key(dep) for dep in spec["deps"]]
    if "tags" in spec:
        spec["tags"] = {name: _tag(value) for name, value in spec["tags"].items()}
    if isinstance(spec.get("partitions_def"), dict):
        asset = _Spec.model()(spec={"key": "table", "partitions_def": spec["partitions_def"]})
        spec["partitions_def"] = _Spec.resolve_from_model(context, asset).spec.partitions_def
    return spec


def _sql(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `sql_asset`; none for another asset."""
    sql = {name: values[name] for name in OF_QUERIES if name in values}
    inputs = sql.get("inputs")
    if isinstance(inputs, Mapping):
        sql["inputs"] = {name: _key(key) for name, key in inputs.items()}
    elif inputs is not None:
        sql["inputs"] = [_key(key) for key in inputs]
    return sql


def _tag(value: object) -> str:
    """Return a tag value as YAML writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _sensors(sensors: Any) -> dict[str, Any]:
    wanted = set_fields(sensors)
    maintenance, commits = wanted.get("maintenance", True), wanted.get("commits", False)
    if isinstance(maintenance, bool):
        maintenance = MaintenanceSensor() if maintenance else None
    if isinstance(commits, bool | str):
        commits = (CommitsSensor(events=commits) if isinstance(commits, str) else CommitsSensor()) if commits else None  # type: ignore[arg-type]
    return {"maintenance_sensor": _settings(maintenance), "commits_sensor": _settings(commits)}


def _export(export: Any) -> Any:
    """Return the settings of an export; None if there is none."""
    if isinstance(export, bool):
        return TableExport() if export else None
    return _settings(export)


def _checks(checks: Any) -> TableChecks | None:
    return TableChecks() if checks == "default" else _settings(checks)
