"""Time and ids, as arguments.

Everything that asks what time it is, or needs a new name, asks the `Clock` it was given; the linter bans
`time.time` and `uuid4` elsewhere. So a test can stop time, skew it, or make a writer sleep past the grace
period, and the code under test is the code that runs.
"""

from __future__ import annotations

import os
import re
import socket
import time
import uuid
from typing import Protocol

__all__ = ["Clock", "SystemClock", "writer_name"]


class Clock(Protocol):
    """What an operation knows of the world's time and chance."""

    def now_ms(self) -> int:
        """Unix time in milliseconds."""
        ...

    def new_id(self) -> str:
        """A name that nothing else has: 32 lower-case hexadecimal digits."""
        ...


class SystemClock:
    """The machine's clock and random ids."""

    def now_ms(self) -> int:
        """Unix time in milliseconds."""
        return time.time_ns() // 1_000_000

    def new_id(self) -> str:
        """Random: unique across machines, processes and forks."""
        return uuid.uuid4().hex


def writer_name(clock: Clock) -> str:
    """A log file's `<writer>` (`[A-Za-z0-9.-]+`): says where it came from, and is unique per open table."""
    host = re.sub(r"[^A-Za-z0-9-]+", "-", socket.gethostname()).strip("-")[:40] or "host"
    return f"{host}-{os.getpid()}-{clock.new_id()[:12]}"
