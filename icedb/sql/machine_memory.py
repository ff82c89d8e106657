"""The memory of this machine or container, and the share of it that a process may use."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from icedb.errors import InvalidOption

__all__ = ["MEMORY_SHARE", "memory_bytes", "memory_share"]

#: The variable with the share of the memory that a process may use, if several run at the same time.
MEMORY_SHARE = "ICEDB_MEMORY_SHARE"
# The memory limits of a container in Linux: control groups, version 2 and 1.
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@lru_cache(maxsize=1)
def memory_bytes() -> int:
    """Return the memory of this machine or container, in bytes."""
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _CGROUP_LIMITS:
        text = path.read_text().strip() if path.exists() else ""
        available = min(available, int(text)) if text.isdigit() else available
    return available


def memory_share() -> float | None:
    """Return the share in the environment, None if there is none. Raises InvalidOption."""
    text = os.environ.get(MEMORY_SHARE)
    if not text:
        return None
    with suppress(ValueError):
        if 0 < (share := float(text)) <= 1:
            return share
    raise InvalidOption(
        f"{MEMORY_SHARE} is {text!r}. Set a number above 0 and at most 1, such as 0.25 for four processes."
    )
