"""Reads `deploy/compose.yaml` as Docker Compose would, as far as the tests of the deployment need it.

`Compose` fills in variables; `command_here` makes a service's own command line one that runs on this machine without
containers: host names become 127.0.0.1, ports others that are free, folders of the image those of the test.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[3] / "deploy"
#: `${NAME}`, `${NAME-default}`, `${NAME:-default}` and `${NAME:?what it is}`; not `$${...}`, which is the container's.
VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)(?:(:?[-?])([^}]*))?\}")


def variables(text: str) -> set[str]:
    """Return the variables of a compose file: those in `${...}`, and those passed by name."""
    passed = {
        name
        for service in yaml.safe_load(text)["services"].values()
        for name, value in (service.get("environment") or {}).items()
        if value is None
    }
    return passed | {match.group(1) for match in VARIABLE.finditer(text)}


def read_env(path: Path) -> dict[str, str]:
    """Return the variables of a `.env` file."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def load(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the compose file with values for its variables. Raises KeyError with a required variable's message."""

    def value(match: re.Match[str]) -> str:
        name, kind, text = match.groups()
        if environ.get(name) or (kind in {None, "-"} and name in environ):
            return environ[name]
        if kind and kind.endswith("?"):
            raise KeyError(f"{name} {text}")
        return text or ""

    loaded: dict[str, Any] = yaml.safe_load(VARIABLE.sub(value, (DEPLOY / "compose.yaml").read_text()))
    return loaded


@dataclass(frozen=True)
class Here:
    """The services of the containers on this machine. `places`: texts and their replacements."""

    services: Mapping[str, Any]
    environ: Mapping[str, str]
    places: Mapping[str, str] = field(default_factory=dict)

    def environment(self, service: str) -> dict[str, str]:
        """Return the environment of a service's container."""
        declared = self.services[service].get("environment") or {}
        filled = {name: self.environ.get(name) if value is None else value for name, value in declared.items()}
        return {name: self.placed(value) for name, value in filled.items() if value is not None}

    def command(self, service: str) -> list[str]:
        """Return the command line of a service."""
        return self._runnable(self.services[service]["command"])

    def health_check(self, service: str) -> list[str]:
        """Return the command line of the health check."""
        kind, *command = self.services[service]["healthcheck"]["test"]
        assert kind == "CMD", kind
        return self._runnable(command)

    def _runnable(self, command: Sequence[str]) -> list[str]:
        program, *arguments = [self.placed(word) for word in command]
        ours = Path(sys.executable).with_name(program)
        return [str(ours) if ours.exists() else program, *arguments]

    def placed(self, text: str) -> str:
        for original, replacement in self.places.items():
            text = text.replace(original, replacement)
        return text
