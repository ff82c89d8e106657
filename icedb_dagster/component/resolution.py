"""From what YAML says of a table to what Python takes: templates are rendered, then all is checked once more."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import dagster as dg
from pydantic import BaseModel, ValidationError

from icedb.errors import InvalidOption
from icedb_dagster.checks import TableChecks
from icedb_dagster.component.attributes import OF_ASSETS, TableAttributes
from icedb_dagster.component.templates import is_template
from icedb_dagster.sensors import CommitsSensor, MaintenanceSensor

__all__ = ["resolved"]

# A variable of the environment, in a template.
_VARIABLE = re.compile(r"\{\{-?\s*env\.\w+\s*-?\}\}")
_PLAIN = ("asset", "observe_cron", "engine", "lock", "running", "resource_key", "spark_resource_key")


class _Spec(dg.Resolvable, dg.Model):
    """Dagster's own attributes of an asset; its partitions are resolved as in other components."""

    spec: dg.ResolvedAssetSpec


def resolved(context: dg.ResolutionContext, model: BaseModel) -> dict[str, Any]:
    """The fields of an `IceDBTable`. Raises InvalidOption, and what Dagster raises for a template."""
    given = model.model_dump(exclude_unset=True)
    told = f"the table {given.get('table')!r}"
    rendered = {name: _rendered(context.at_path(name), value, f"{told}: {name}") for name, value in given.items()}
    try:
        attributes = TableAttributes.model_validate(rendered)
    except ValidationError as error:
        raise InvalidOption(_told(rendered, error)) from None
    found = {name: getattr(attributes, name) for name in attributes.model_fields_set}
    fields = {name: found[name] for name in _PLAIN if name in found}
    fields |= {name: _settings(found[name]) for name in ("ttl", "thresholds") if found.get(name) is not None}
    fields["table"] = _key(found["table"])
    fields["spec"] = _spec(context, found)
    fields["schedules"] = _given(found.get("schedules"))
    return {**fields, **_sensors(found.get("sensors")), "checks": _checks(found.get("checks"))}


def _rendered(context: dg.ResolutionContext, value: Any, at: str) -> Any:
    """A value with what its templates give. All other texts stay: Dagster would make a number of `"3"`.

    `at`: where it is, for messages. Raises InvalidOption for a template that gives None: in YAML that leaves something
    out, and a variable that nobody has set would do so in silence.
    """
    if isinstance(value, dict):
        return {name: _rendered(context.at_path(name), inner, f"{at}.{name}") for name, inner in value.items()}
    if isinstance(value, list):
        return [_rendered(context.at_path(number), inner, f"{at}.{number}") for number, inner in enumerate(value)]
    return _given_by(context, value, at) if is_template(value) else value


def _given_by(context: dg.ResolutionContext, template: str, at: str) -> Any:
    found = context.resolve_value(template)
    # Within a longer text, what is not set would become the word None.
    if found is None or any(context.resolve_value(name) is None for name in _VARIABLE.findall(template)):
        raise InvalidOption(f"{at}: {template} gives nothing. Set the variable, or leave the attribute out.")
    return found


def _told(rendered: Mapping[str, Any], error: ValidationError) -> str:
    """Each attribute with what is wrong with it."""
    wrong = (f"{'.'.join(str(step) for step in _path(e['loc']))}: {e['msg']}" for e in error.errors())
    return f"the table {rendered.get('table')!r}: {'; '.join(wrong)}."


def _path(steps: tuple[int | str, ...]) -> list[int | str]:
    """Without the names that alternatives have."""
    return [step for step in steps if step not in ("value", "object", "template")] or ["attributes"]


def _given(model: Any) -> dict[str, Any]:
    """What was said in an object, or all of a mapping that a template gave."""
    if isinstance(model, BaseModel):
        return {name: getattr(model, name) for name in model.model_fields_set}
    return dict(model or {})


def _settings(value: Any) -> Any:
    """The Python object: made of attributes, or given by a template."""
    return value.settings() if isinstance(value, BaseModel) else value  # type: ignore[attr-defined]


def _key(table: Any) -> dg.AssetKey:
    return dg.AssetKey.from_user_string(table) if isinstance(table, str) else dg.AssetKey.from_coercible(table)


def _spec(context: dg.ResolutionContext, found: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `table_spec`."""
    spec = {name: found[name] for name in OF_ASSETS if found.get(name)}
    if "deps" in spec:
        spec["deps"] = [_key(dep) for dep in spec["deps"]]
    if "tags" in spec:
        spec["tags"] = {name: _tag(value) for name, value in spec["tags"].items()}
    if isinstance(spec.get("partitions_def"), dict):
        asset = _Spec.model()(spec={"key": "table", "partitions_def": spec["partitions_def"]})
        spec["partitions_def"] = _Spec.resolve_from_model(context, asset).spec.partitions_def
    return spec


def _tag(value: object) -> str:
    """As YAML writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _sensors(sensors: Any) -> dict[str, Any]:
    asked = _given(sensors)
    maintenance, commits = asked.get("maintenance", False), asked.get("commits", False)
    if isinstance(maintenance, bool):
        maintenance = MaintenanceSensor() if maintenance else None
    if isinstance(commits, bool | str):
        commits = (CommitsSensor(events=commits) if isinstance(commits, str) else CommitsSensor()) if commits else None  # type: ignore[arg-type]
    return {"maintenance_sensor": _settings(maintenance), "commits_sensor": _settings(commits)}


def _checks(checks: Any) -> TableChecks | None:
    return TableChecks() if checks == "default" else _settings(checks)
