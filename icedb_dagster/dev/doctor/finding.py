"""The result of one check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from icedb.util.times import iso_text

__all__ = ["DoctorFinding", "Status", "named", "ok", "problem", "warning"]

Status = Literal["ok", "warning", "problem"]

_NAMES_MAX = 5


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """A check, its status, the observed state, and the remedy. `about` is a table's address or empty.

    `since` is the time of the error, or of the begin of the state, in ISO 8601 and UTC. It is empty if unknown.
    """

    check: str
    status: Status
    found: str
    remedy: str = ""
    about: str = ""
    since: str = ""


def ok(check: str, found: str, *, about: str = "") -> DoctorFinding:
    """Return a finding without a problem."""
    return DoctorFinding(check, "ok", found, about=about)


def warning(check: str, found: str, remedy: str, *, about: str = "", since_s: float | None = None) -> DoctorFinding:
    """Return a finding that works, but is slow or will become a problem. `since_s` is in unix seconds."""
    return DoctorFinding(check, "warning", found, remedy, about, _since(since_s))


def problem(check: str, found: str, remedy: str, *, about: str = "", since_s: float | None = None) -> DoctorFinding:
    """Return a finding that does not work, or leaves a table unsafe. `since_s` is in unix seconds."""
    return DoctorFinding(check, "problem", found, remedy, about, _since(since_s))


def _since(since_s: float | None) -> str:
    return "" if since_s is None else iso_text(int(since_s * 1000), timespec="seconds")


def named(names: Sequence[str]) -> str:
    """Return the first few names, and the number of the others."""
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    return ", ".join(names[:_NAMES_MAX]) + more
