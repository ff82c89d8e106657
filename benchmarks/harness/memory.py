"""The memory of processes, as Linux reports it."""

from __future__ import annotations

from pathlib import Path

__all__ = ["memory_bytes", "reset_peak"]


def memory_bytes(name: str, pid: int | None = None) -> int:
    """Return the resident memory (`VmRSS`) of this or another process, or its peak (`VmHWM`), in bytes.

    The peak that `getrusage` returns may be that of another program: a new process inherits it from its parent. Raises
    OSError if there is no such process, and KeyError if it has ended and its parent has not waited for it.
    """
    lines = _file("status", pid).read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields[name].split()[0]) * 1024


def reset_peak(pid: int | None = None) -> None:
    """Set the peak (`VmHWM`) of this or another process to its present memory. Raises OSError if it has ended."""
    _file("clear_refs", pid).write_text("5")


def _file(name: str, pid: int | None) -> Path:
    return Path(f"/proc/{'self' if pid is None else pid}/{name}")
