"""The cause of an error in one line, from the messages of Dagster."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagster_shared.error import SerializableErrorInfo

__all__ = ["essence", "root_cause"]


def root_cause(error: SerializableErrorInfo | None) -> SerializableErrorInfo | None:
    """Return the first cause of an error that Dagster has stored."""
    while error is not None and error.cause is not None:
        error = error.cause
    return error


def essence(message: str) -> str:
    """Return the cause from a Dagster message, which begins with the failed action and ends with the stack trace.

    Passwords in addresses are hidden.
    """
    lines = [line.strip() for line in message.partition("Stack Trace:")[0].splitlines() if line.strip()]
    return re.sub(r"(://[^:/@\s]*:)[^@\s]*@", r"\1***@", lines[-1]) if lines else ""
