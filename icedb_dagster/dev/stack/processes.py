"""Start processes that outlive the terminal, and stop exactly those.

A process is named by its pid and by when it started, so that a pid which the system gave to somebody else is never
signalled. Each process leads a session of its own; what it spawns stays in that session even when it changes its
process group, as Spark's Python workers do, and is stopped with it.

Linux tells all this in /proc. Elsewhere `ps` does, with the process group in place of the session.
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

# Old lines are kept in `<name>.log.1` once, so that a stack which runs for months does not fill the disk.
LOG_BYTES_MAX = 10_000_000
LOG_TAIL_LINES = 15
POLL_S = 0.05

# Children of this very process: they have to be waited for, or they stay zombies until it ends.
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process that cannot be confused with a later one of the same pid."""

    pid: int
    started: str


def path_with_programs(environ: Mapping[str, str]) -> str:
    """A PATH on which the programs of this virtual environment are found, also when nobody activated it."""
    return os.pathsep.join([str(Path(sys.executable).parent), environ.get("PATH", os.defpath)])


@dataclass(frozen=True, slots=True)
class User:
    """Whom a process runs as. `prefix` is a command that changes to that user and execs the rest of its arguments."""

    uid: int | None = None
    gid: int | None = None
    prefix: tuple[str, ...] = ()

    @property
    def switch_to(self) -> tuple[int | None, int | None, list[int] | None]:
        """User, group and further groups to change to before the exec."""
        if self.uid is None or self.prefix:
            return None, None, None
        return self.uid, self.gid, []


CURRENT_USER = User()


@dataclass(frozen=True, slots=True)
class _Seen:
    pid: int
    session: int
    zombie: bool
    started: str


def spawn(
    command: Sequence[str | Path], *, log: Path, environ: Mapping[str, str], cwd: Path, user: User = CURRENT_USER
) -> ProcessId:
    """Start a process in a session of its own, with its output appended to a log."""
    if log_bytes(log) > LOG_BYTES_MAX:
        log.replace(log.with_name(log.name + ".1"))
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
    """Run a short command to its end, whatever its status, and keep what it says."""
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
    """The process that has this pid now."""
    seen = _look(pid)
    return ProcessId(pid=pid, started=seen.started) if seen and not seen.zombie else None


def is_running(process: ProcessId) -> bool:
    """Whether that very process is still there."""
    return identify(process.pid) == process


def command_line(pid: int) -> list[str]:
    """A process' arguments; empty when it is gone or hides them. Without /proc, split at every space."""
    try:
        return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")[:-1]
    except OSError:
        return [] if _has_proc() else _ps("command=", pid=pid).split()


def stop(process: ProcessId, *, signals: Iterable[tuple[signal.Signals, float]], marker: str | None = None) -> None:
    """Send each signal to a process and all of its session, and wait that many seconds before the next one.

    When the leader is gone already but others of its session remain, they are ours only if their environment holds
    `marker`; without one they are left alone.
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
            f"process {process.pid} does not end, not even when killed: see `ps -o stat,wchan {process.pid}`"
        )


def log_bytes(log: Path) -> int:
    """How long a log is now, to tell later what was printed since."""
    return log.stat().st_size if log.exists() else 0


def log_tail(log: Path, *, offset: int = 0, lines: int = LOG_TAIL_LINES) -> str:
    """The last lines of a log, of those written after `offset`."""
    try:
        with log.open("rb") as file:
            size = log_bytes(log)
            start = offset if offset <= size else 0  # shorter than then: it was put aside and begun anew
            file.seek(max(start, size - 64_000))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def _members(process: ProcessId, marker: str | None) -> list[_Seen]:
    """What still runs in a process' session."""
    session = [seen for seen in _look_at_all() if seen.session == process.pid and not seen.zombie]
    leader = _look(process.pid)
    if leader is None:
        # No new session can have this number while the old one has members, but after a reboot anything is possible.
        return [seen for seen in session if marker is not None and _has_in_environment(seen.pid, marker)]
    return session if leader.started == process.started else []


def _send(pid: int, signal_number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        try:
            os.kill(pid, signal_number)
        except PermissionError:
            raise StackError(
                f"process {pid} belongs to another user: stop the stack as the user who started it"
            ) from None


def _look(pid: int) -> _Seen | None:
    child = _children.get(pid)
    if child is not None and child.poll() is not None:
        del _children[pid]
    if _has_proc():
        return _parse_proc(pid)
    return next(iter(_parse_ps(_ps(_PS_COLUMNS, pid=pid))), None)


def _look_at_all() -> list[_Seen]:
    if not _has_proc():
        return _parse_ps(_ps(_PS_COLUMNS))
    pids = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdecimal()]
    return [seen for seen in map(_parse_proc, pids) if seen is not None]


def _has_proc() -> bool:
    return sys.platform == "linux"


def _parse_proc(pid: int) -> _Seen | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    # proc(5): the name, in parentheses, may hold anything. After it: state, ppid, pgrp, session, ..., starttime (22nd).
    fields = stat.rpartition(")")[2].split()
    # Clock ticks since boot, so the boot has to be named too.
    return _Seen(pid=pid, session=int(fields[3]), zombie=fields[0] in "ZX", started=f"{boot}/{fields[19]}")


_PS_COLUMNS = "pid=,pgid=,stat=,lstart="


def _ps(columns: str, *, pid: int | None = None) -> str:
    which = ["-A"] if pid is None else ["-p", str(pid)]
    done = subprocess.run(
        ["ps", *which, "-o", columns], capture_output=True, check=False, env={**os.environ, "LC_ALL": "C"}, text=True
    )
    return done.stdout


def _parse_ps(output: str) -> list[_Seen]:
    rows = (line.split(maxsplit=3) for line in output.splitlines())
    return [
        _Seen(pid=int(row[0]), session=int(row[1]), zombie=row[2].startswith("Z"), started=row[3].strip())
        for row in rows
        if len(row) == 4
    ]


def _has_in_environment(pid: int, marker: str) -> bool:
    try:
        return marker.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
