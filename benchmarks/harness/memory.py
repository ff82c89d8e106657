"""The memory of processes, as Linux reports it."""

from __future__ import annotations

from pathlib import Path

__all__ = ["memory_bytes"]


def memory_bytes(name: str, pid: int | None = None) -> int:
    """Return the resident memory (`VmRSS`) of this or another process, or its peak (`VmHWM`), in bytes.

    The peak that `getrusage` returns may be that of another program: a new process inherits it from its parent. Raises
    OSError if there is no such process, and KeyError if it has ended and its parent has not waited for it.
    """
    lines = Path(f"/proc/{'self' if pid is None else pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields[name].split()[0]) * 1024
