"""What one check says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "Status", "ok", "problem", "warning"]

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, what was found, and, unless it is well, what to change. `about`: a table's address, or ""."""

    check: str
    status: Status
    found: str
    remedy: str = ""
    about: str = ""


def ok(check: str, found: str, *, about: str = "") -> Finding:
    """It is well."""
    return Finding(check, "ok", found, about=about)


def warning(check: str, found: str, remedy: str, *, about: str = "") -> Finding:
    """It works, and will be a problem some day, or is slower than it should be."""
    return Finding(check, "warning", found, remedy, about)


def problem(check: str, found: str, remedy: str, *, about: str = "") -> Finding:
    """It does not work, or a table is not safe."""
    return Finding(check, "problem", found, remedy, about)
