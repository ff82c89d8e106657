"""The cause of an error in one line, from the messages of Dagster."""

from __future__ import annotations

import re

__all__ = ["essence"]


def essence(message: str) -> str:
    """Return the cause from a Dagster message, which begins with the failed action and ends with the stack trace.

    Passwords in addresses are hidden.
    """
    lines = [line.strip() for line in message.partition("Stack Trace:")[0].splitlines() if line.strip()]
    return re.sub(r"(://[^:/@\s]*:)[^@\s]*@", r"\1***@", lines[-1]) if lines else ""
