"""The memory of processes, as Linux reports it."""

from __future__ import annotations

from pathlib import Path

__all__ = ["memory_bytes"]


def memory_bytes(name: str, pid: int | None = None) -> int:
    """Return the resident memory (`VmRSS`) of this or another process, or its peak (`VmHWM`), in bytes.

    The peak of `getrusage` may be that of another program: a process that was just started has inherited it from the
    process that started it. Raises OSError if the process has ended, and KeyError if it has not been
    awaited yet.
    """
    lines = Path(f"/proc/{'self' if pid is None else pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields[name].split()[0]) * 1024
