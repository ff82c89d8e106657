"""YAML attributes generated from settings classes: the same fields, defaults and validation.

So each field of `TimeToLive`, `Thresholds`, a check or a sensor is also a YAML attribute.
"""

# No `from __future__ import annotations` here: the models are made of annotations that are computed.
import inspect
import warnings
from collections.abc import Mapping
from dataclasses import MISSING, fields
from datetime import timedelta
from functools import cache
from typing import Annotated, Any, ClassVar, Self, get_type_hints

import dagster as dg
from pydantic import BeforeValidator, Field, WithJsonSchema, create_model, model_validator

from icedb.errors import InvalidRequestError
from icedb.util.durations import DURATION, parse_duration
from icedb_dagster.component.templates import Attributes, Choice, Templated, is_template
from icedb_dagster.maintenance.time_to_live import TimeToLive

__all__ = ["Cron", "SettingsAttributes", "model", "model_of"]

# `@daily`, or five fields.
_CRON = r"^\s*(@[a-z]+|\S+(\s+\S+){4})\s*$"


def _duration(value: Any) -> Any:
    duration = value if isinstance(value, timedelta) else parse_duration(str(value))  # its errors are ValueErrors
    if duration <= timedelta(0):
        raise ValueError("give a duration over 0, such as 26h")
    return duration


def _cron(value: Any) -> Any:
    """Validate a cron expression as Dagster does."""
    try:
        dg.ScheduleDefinition(name="schedule", job_name="job", cron_schedule=value)
    except Exception:  # noqa: BLE001 - Dagster raises many types, also those of its libraries
        raise ValueError(
            f"{value!r} is not a cron expression; write minute hour day month weekday: 53 5 * * *"
        ) from None
    return value


Duration = Annotated[timedelta, BeforeValidator(_duration), WithJsonSchema({"type": "string", "pattern": DURATION})]
Cron = Annotated[str, BeforeValidator(_cron), WithJsonSchema({"type": "string", "pattern": _CRON})]


class SettingsAttributes(Attributes):
    """The fields of a settings class. An omitted field has the class's default."""

    made: ClassVar[Any]

    def settings(self) -> Any:
        """Return the equivalent settings object. Raises InvalidRequestError errors."""
        values = {name: getattr(self, name) for name in self.model_fields_set}
        return self.made(**{n: v.settings() if isinstance(v, SettingsAttributes) else v for n, v in values.items()})

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self._has_templates():
            try:
                self.settings()
            except InvalidRequestError as error:
                raise ValueError(str(error)) from None
        return self

    def _has_templates(self) -> bool:
        values = (getattr(self, name) for name in self.model_fields_set)
        return any(v._has_templates() if isinstance(v, SettingsAttributes) else _any_template(v) for v in values)


def _any_template(value: object) -> bool:
    return any(map(is_template, value.values())) if isinstance(value, dict) else is_template(value)


_templated: Any = Templated
_choice: Any = Choice

#: The YAML types that differ from the Python types.
_IN_YAML: Mapping[Any, Any] = {
    timedelta: _templated[Duration],
    timedelta | None: _templated[Duration | None],
    (TimeToLive, "keep_days"): _templated[Annotated[int, Field(ge=1)]],
    ("SchemaCheck", "columns"): _choice[None, dict[str, _templated[str]]],
}


@cache
def model_of(settings: Any, *, without: str = "") -> Any:
    """Return the attributes of a settings class. Each field may be a template."""
    hints = get_type_hints(settings)
    made: dict[str, Any] = {}
    for field in fields(settings):
        if field.name != without:
            required = field.default is MISSING and field.default_factory is MISSING
            made[field.name] = (_type_in_yaml(settings, field.name, hints[field.name]), ... if required else None)
    return model(settings, made)


def _type_in_yaml(settings: Any, name: str, hint: Any) -> Any:
    for key in ((settings, name), (settings.__name__, name), hint):
        if key in _IN_YAML:
            return _IN_YAML[key]
    return _templated[hint]


def model(settings: Any, made: dict[str, Any]) -> Any:
    """Return the attributes of a settings class with these fields: name -> type and default, as pydantic takes them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the check `schema` has the name of a deprecated pydantic method
        created: Any = create_model(f"{settings.__name__}Attributes", __base__=SettingsAttributes, **made)
    created.made = settings
    created.__doc__ = inspect.getdoc(settings)
    return created
