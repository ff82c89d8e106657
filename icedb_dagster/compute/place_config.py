"""Places where Spark programs run, by name, with configuration from a file and the command line."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml

from icedb.errors import InvalidArgument, InvalidOption
from icedb_dagster.compute.emr import EmrServerlessSpark, EmrSpark
from icedb_dagster.compute.spark_places import ConnectSpark, LocalSpark, SparkPlace, StandaloneSpark

__all__ = ["PLACES", "PlaceName", "configured_place"]

PlaceName = Literal["local", "standalone", "connect", "emr", "emr-serverless"]

PLACES: dict[PlaceName, type[SparkPlace]] = {
    "local": LocalSpark,
    "standalone": StandaloneSpark,
    "connect": ConnectSpark,
    "emr": EmrSpark,
    "emr-serverless": EmrServerlessSpark,
}


def configured_place(name: PlaceName, config: Path | None = None, settings: Sequence[str] = ()) -> SparkPlace:
    """Return a place with the fields of a TOML or YAML file, overridden by `settings`. Raises InvalidOption.

    A setting is `field=value`, or `field.key=value` for an entry of a mapping. A value in brackets or braces is YAML.
    """
    place = PLACES[name]
    fields = _read(config) if config else {}
    for setting in settings:
        field, equals, value = setting.partition("=")
        if not equals:
            raise InvalidOption(f"{name}: the setting {field!r} has no value; write {field}=VALUE.")
        if field.startswith("env.") or field == "env" or "token=" in value:
            raise InvalidOption(
                f"{name}: the setting {field.partition('.')[0]} would be on a command line, which other users can "
                "read. "
                "Put secrets into the file. The program inherits the environment of this command."
            )
        field, dot, key = field.partition(".")
        if dot:
            fields[field] = {**fields.get(field, {}), key: value}
        else:
            fields[field] = yaml.safe_load(value) if value[:1] in ("[", "{") else value
    names = place.model_fields
    unknown = sorted(fields.keys() - names)
    if unknown:
        raise InvalidOption(f"{name}: unknown field {unknown[0]!r}. The fields are {', '.join(names)}.")
    try:
        return place(**fields)
    except InvalidArgument as error:
        raise InvalidOption(f"{error} Give the field in the file, or with --set.") from None


def _read(config: Path) -> dict[str, Any]:
    try:
        text = config.read_text()
        fields = tomllib.loads(text) if config.suffix == ".toml" else yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:  # its own text quotes the line, which may hold a secret
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InvalidOption(
            f"{config}{line}: {error.problem}. Write YAML, or TOML in a file that ends in .toml."
        ) from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InvalidOption(f"{config} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(fields, Mapping):
        raise InvalidOption(f"{config} must contain the fields of a place as name: value.")
    return dict(fields)
