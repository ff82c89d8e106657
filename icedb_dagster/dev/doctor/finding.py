"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["DoctorFinding", "Status", "ok", "problem", "warning"]

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """A check, its status, the observed state, and the remedy. `about` is a table's address or empty."""

    check: str
    status: Status
    found: str
    remedy: str = ""
    about: str = ""


def ok(check: str, found: str, *, about: str = "") -> DoctorFinding:
    """Return a finding without a problem."""
    return DoctorFinding(check, "ok", found, about=about)


def warning(check: str, found: str, remedy: str, *, about: str = "") -> DoctorFinding:
    """Return a finding that works, but is slow or will become a problem."""
    return DoctorFinding(check, "warning", found, remedy, about)


def problem(check: str, found: str, remedy: str, *, about: str = "") -> DoctorFinding:
    """Return a finding that does not work, or leaves a table unsafe."""
    return DoctorFinding(check, "problem", found, remedy, about)
