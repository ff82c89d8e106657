"""Imports of optional dependencies. Each is an extra of the library and is imported on first use."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from icedb.errors import MissingExtra

__all__ = ["SERVER_MODULES", "import_optional"]

#: The modules of each extra with a service.
SERVER_MODULES = ("starlette", "uvicorn", "uvloop", "h11", "prometheus_client")


def import_optional(module: str, *, extra: str) -> ModuleType:
    """Import the module of an extra. Raises MissingExtra, which names the command that installs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise  # the module is installed, and one of its own dependencies is not
        raise MissingExtra(
            f"There is no {module} here. Install it with: pip install 'icedb-dagster[{extra}]'"
        ) from None
