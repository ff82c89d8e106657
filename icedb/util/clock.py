"""The source of all times and ids, passed as an argument.

Code that needs the time or a new name calls its `Clock`. The linter bans `time.time` and `uuid4` elsewhere. So a test
can stop or skew time, or make a writer sleep past the grace period, without patching the code under test.
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
    """A source of times and of unique ids."""

    def now_ms(self) -> int:
        """Return the unix time in milliseconds."""
        ...

    def new_id(self) -> str:
        """Return a unique name of 32 lower-case hexadecimal digits."""
        ...


class SystemClock:
    """The machine's clock and random ids."""

    def now_ms(self) -> int:
        """Return the unix time in milliseconds."""
        return time.time_ns() // 1_000_000

    def new_id(self) -> str:
        """Return a random id, unique across machines, processes and forks."""
        return uuid.uuid4().hex


def writer_name(clock: Clock) -> str:
    """Return the `<writer>` of log file names (`[A-Za-z0-9.-]+`): host, process and a part of a new id."""
    host = re.sub(r"[^A-Za-z0-9-]+", "-", socket.gethostname()).strip("-")[:40] or "host"
    return f"{host}-{os.getpid()}-{clock.new_id()[:12]}"
