"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "Status", "ok", "problem", "warning"]

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A check, its status, the state found, and the remedy unless it is ok. `about` is a table's address or empty."""

    check: str
    status: Status
    found: str
    remedy: str = ""
    about: str = ""


def ok(check: str, found: str, *, about: str = "") -> Finding:
    """Return a finding without a problem."""
    return Finding(check, "ok", found, about=about)


def warning(check: str, found: str, remedy: str, *, about: str = "") -> Finding:
    """Return a finding that works, but is slow or will become a problem."""
    return Finding(check, "warning", found, remedy, about)


def problem(check: str, found: str, remedy: str, *, about: str = "") -> Finding:
    """Return a finding that does not work, or leaves a table unsafe."""
    return Finding(check, "problem", found, remedy, about)
