"""Start processes that outlive the terminal, and stop exactly those.

A process is identified by its pid and start time, so that another process with a reused pid is never signalled. Each
process leads its own session. Its children stay in that session even if they change their process group, as Spark's
Python workers do, and are stopped with it.

On Linux, this information comes from /proc. Elsewhere it comes from `ps`, with the process group instead of the
session.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from icedb.errors import StackError

__all__ = [
    "CURRENT_USER",
    "ProcessId",
    "User",
    "command_line",
    "identify",
    "is_running",
    "log_bytes",
    "log_tail",
    "path_with_programs",
    "run",
    "spawn",
    "stop",
]

LOG_TAIL_LINES = 15
POLL_S = 0.05

# Children of this process, which must be waited for, or they stay zombies until it ends.
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process that cannot be confused with a later one of the same pid."""

    pid: int
    started: str


def path_with_programs(environ: Mapping[str, str]) -> str:
    """Return a PATH with the programs of this virtual environment, even if it is not activated."""
    return os.pathsep.join([str(Path(sys.executable).parent), environ.get("PATH", os.defpath)])


@dataclass(frozen=True, slots=True)
class User:
    """The user of a process. `prefix` is a command that changes to that user and executes the rest of its arguments."""

    uid: int | None = None
    gid: int | None = None
    prefix: tuple[str, ...] = ()

    @property
    def switch_to(self) -> tuple[int | None, int | None, list[int] | None]:
        """The user, group and supplementary groups to change to before the exec."""
        if self.uid is None or self.prefix:
            return None, None, None
        return self.uid, self.gid, []


CURRENT_USER = User()


@dataclass(frozen=True, slots=True)
class _ProcessInfo:
    pid: int
    session: int
    zombie: bool
    started: str


def spawn(
    command: Sequence[str | Path], *, log: Path, environ: Mapping[str, str], cwd: Path, user: User = CURRENT_USER
) -> ProcessId:
    """Start a process in its own session, with its output appended to a log."""
    uid, gid, groups = user.switch_to
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        child = subprocess.Popen(
            [*user.prefix, *command],
            cwd=cwd,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
            user=uid,
            group=gid,
            extra_groups=groups,
        )
    finally:
        os.close(descriptor)
    _children[child.pid] = child
    return identify(child.pid) or ProcessId(pid=child.pid, started="ended at once")


def run(
    command: Sequence[str | Path], *, environ: Mapping[str, str], user: User = CURRENT_USER, timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run a short command to its end, with any exit status, and capture its output."""
    uid, gid, groups = user.switch_to
    return subprocess.run(
        [*user.prefix, *command],
        cwd="/",
        capture_output=True,
        check=False,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        timeout=timeout_s,
        user=uid,
        group=gid,
        extra_groups=groups,
    )


def identify(pid: int) -> ProcessId | None:
    """Return the process that has this pid now."""
    info = _read_process(pid)
    return ProcessId(pid=pid, started=info.started) if info and not info.zombie else None


def is_running(process: ProcessId) -> bool:
    """Return whether exactly that process still runs."""
    return identify(process.pid) == process


def command_line(pid: int) -> list[str]:
    """Return a process's arguments; empty if it is gone or hides them. Without /proc, split at every space."""
    try:
        return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")[:-1]
    except OSError:
        return [] if _has_proc() else _ps("command=", pid=pid).split()


def stop(process: ProcessId, *, signals: Iterable[tuple[signal.Signals, float]], marker: str | None = None) -> None:
    """Send each signal to a process and its session, and wait that many seconds before the next one.

    If the leader is gone but other members of its session remain, they are signalled only if their environment holds
    `marker`. Without a marker they are left alone.
    """
    for signal_number, timeout_s in signals:
        members = _members(process, marker)
        if not members:
            return
        for member in members:
            _send(member.pid, signal_number)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if not _members(process, marker):
                return
            time.sleep(POLL_S)
    if _members(process, marker):
        raise StackError(
            f"process {process.pid} does not end, even after SIGKILL. See `ps -o stat,wchan {process.pid}`"
        )


def log_bytes(log: Path) -> int:
    """Return the current length of a log."""
    return log.stat().st_size if log.exists() else 0


def log_tail(log: Path, *, offset: int = 0, lines: int = LOG_TAIL_LINES) -> str:
    """Return the last lines of a log, written after `offset`."""
    try:
        with log.open("rb") as file:
            size = log_bytes(log)
            start = offset if offset <= size else 0  # shorter than before: it was rotated
            file.seek(max(start, size - 64_000))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def _members(process: ProcessId, marker: str | None) -> list[_ProcessInfo]:
    """Return the running processes of a process's session."""
    session = [info for info in _read_all_processes() if info.session == process.pid and not info.zombie]
    leader = _read_process(process.pid)
    if leader is None:
        # A new session cannot have this number while the old one has members, except after a reboot.
        return [info for info in session if marker is not None and _has_in_environment(info.pid, marker)]
    return session if leader.started == process.started else []


def _send(pid: int, signal_number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        try:
            os.kill(pid, signal_number)
        except PermissionError:
            raise StackError(
                f"process {pid} belongs to another user. Stop the stack as the user who started it"
            ) from None


def _read_process(pid: int) -> _ProcessInfo | None:
    child = _children.get(pid)
    if child is not None and child.poll() is not None:
        del _children[pid]
    if _has_proc():
        return _parse_proc(pid)
    return next(iter(_parse_ps(_ps(_PS_COLUMNS, pid=pid))), None)


def _read_all_processes() -> list[_ProcessInfo]:
    if not _has_proc():
        return _parse_ps(_ps(_PS_COLUMNS))
    pids = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdecimal()]
    return [info for info in map(_parse_proc, pids) if info is not None]


def _has_proc() -> bool:
    return sys.platform == "linux"


def _parse_proc(pid: int) -> _ProcessInfo | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    # proc(5): the name, in parentheses, may contain any character. After it: state, ppid, pgrp, session, ...,
    # starttime (22nd).
    fields = stat.rpartition(")")[2].split()
    # The start is in clock ticks since boot, so the boot id is needed, too.
    return _ProcessInfo(pid=pid, session=int(fields[3]), zombie=fields[0] in "ZX", started=f"{boot}/{fields[19]}")


_PS_COLUMNS = "pid=,pgid=,stat=,lstart="


def _ps(columns: str, *, pid: int | None = None) -> str:
    which = ["-A"] if pid is None else ["-p", str(pid)]
    done = subprocess.run(
        ["ps", *which, "-o", columns], capture_output=True, check=False, env={**os.environ, "LC_ALL": "C"}, text=True
    )
    return done.stdout


def _parse_ps(output: str) -> list[_ProcessInfo]:
    rows = (line.split(maxsplit=3) for line in output.splitlines())
    return [
        _ProcessInfo(pid=int(row[0]), session=int(row[1]), zombie=row[2].startswith("Z"), started=row[3].strip())
        for row in rows
        if len(row) == 4
    ]


def _has_in_environment(pid: int, marker: str) -> bool:
    try:
        return marker.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
