"""Attributes of a component that may be templates (`{{ env.KEEP_DAYS }}`), and their JSON schema.

Dagster's own approach adds "or any text" to every attribute's type. Then a misspelled word is found only when
definitions load, and an object with a wrong field is "not valid under any of the given schemas". Here only a text with
`{{` is a template, and the schema has types instead of alternatives. So `dg check yaml` finds more errors, and names
the field.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any, TypeAlias, TypeVar

import dagster as dg
from pydantic import BaseModel, Discriminator, Tag, WithJsonSchema

__all__ = ["Attributes", "Choice", "Template", "Templated", "is_template"]

_T = TypeVar("_T")
_M = TypeVar("_M")

_TEMPLATE = r"\{\{.*\}\}"
_SCHEMA = {"type": "string", "pattern": _TEMPLATE}


def is_template(value: object) -> bool:
    """Return whether a value is a text that Dagster renders."""
    return isinstance(value, str) and re.search(_TEMPLATE, value, flags=re.DOTALL) is not None


def _kind(value: Any) -> str:
    if isinstance(value, dict | BaseModel):
        return "object"
    plain = value is None or isinstance(value, str | int | float | list | tuple | timedelta)
    return "value" if plain and not is_template(value) else "template"


#: A template, or the object that it rendered to.
Template = Annotated[Any, WithJsonSchema(_SCHEMA)]
#: A plain value of type T, or a template.
Templated: TypeAlias = Annotated[
    Annotated[_T, Tag("value")] | Annotated[_T, Tag("object")] | Annotated[Template, Tag("template")],
    Discriminator(_kind),
]
#: A plain value of type T, an object M, or a template.
Choice: TypeAlias = Annotated[
    Annotated[_T, Tag("value")] | Annotated[_M, Tag("object")] | Annotated[Template, Tag("template")],
    Discriminator(_kind),
]


class Attributes(dg.Model):
    """Base of a component, or of an object in it. Unknown attributes are rejected."""

    @classmethod
    def model_json_schema(cls, *args: Any, **options: Any) -> dict[str, Any]:
        """Return the JSON schema for `dg check yaml` and editors."""
        schema = super().model_json_schema(*args, **options)
        united: dict[str, Any] = _united(schema, schema.pop("$defs", {}))
        return united


def _united(schema: Any, definitions: dict[str, Any]) -> Any:
    """Return the schema without references and alternatives, as one schema whose `type` lists the types."""
    if isinstance(schema, list):
        return [_united(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        schema = {**definitions[name], **{k: v for k, v in schema.items() if k != "$ref"}}
    own = {k: _united(v, definitions) for k, v in schema.items() if k not in ("anyOf", "oneOf")}
    alternatives = [_united(a, definitions) for a in (*schema.get("anyOf", ()), *schema.get("oneOf", ()))]
    return {**_merged(alternatives), **own} if alternatives else own


def _merged(alternatives: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge alternatives that differ in type. Text alternatives become one pattern."""
    if not all("type" in a for a in alternatives):
        return {}  # one alternative accepts anything
    types = _types(alternatives)
    rest: dict[str, Any] = {}
    for alternative in alternatives:
        rest |= {k: v for k, v in alternative.items() if k not in ("type", "const", "enum", "pattern")}
    plain = _types([a for a in alternatives if a != _SCHEMA])
    if "string" not in plain:  # the error lists these types, instead of demanding braces
        return {**rest, "type": types, "if": _SCHEMA, "else": {"type": plain}}
    texts = [_pattern(a) for a in alternatives if "string" in a["type"]]
    return {**rest, "type": types, **({"pattern": "|".join(filter(None, texts))} if all(texts) else {})}


def _types(alternatives: list[dict[str, Any]]) -> list[str]:
    types = (t for a in alternatives for t in (a["type"] if isinstance(a["type"], list) else [a["type"]]))
    return [*dict.fromkeys(types)]


def _pattern(schema: dict[str, Any]) -> str | None:
    """Return the pattern of a text; None for any text."""
    choices = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    return "|".join(f"^{re.escape(choice)}$" for choice in choices) or schema.get("pattern")
