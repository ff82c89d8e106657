"""What other engines need is not installed with the library: each is an extra, imported when somebody uses it."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from icedb.errors import MissingExtra

__all__ = ["imported"]


def imported(module: str, *, extra: str) -> ModuleType:
    """The module, which the extra brings. Raises MissingExtra, which names the command that installs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise  # it is there, and something that it needs is not: another story
        raise MissingExtra(
            f"There is no {module} here. Install it with: pip install 'icedb-dagster[{extra}]'"
        ) from None
