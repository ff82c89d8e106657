"""The embedded Postgres: create its data folder, start it, find it again, stop it.

It listens on 127.0.0.1 only, without a Unix socket. Its generated password is in one file of mode 0600, and never in an
argument, a log or a message. Its programs are run directly. The package's own `get_server` is not used: as root it adds
a user and opens every parent of the data folder to other users.

Whether the server runs is read from its own `postmaster.pid`, which counts only if that process's arguments name this
data folder. So a server is found even if its starter was killed at once, and a file left by a crash is detected even if
another process has the pid now.
"""

import os
import secrets
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from icedb.errors import StackError
from icedb_dagster.dev.stack.database import local_url, try_connection
from icedb_dagster.dev.stack.layout import Progress, StackLayout, write_private
from icedb_dagster.dev.stack.placement import Placement
from icedb_dagster.dev.stack.ports import free_port, port_is_free
from icedb_dagster.dev.stack.processes import (
    ProcessId,
    command_line,
    identify,
    is_running,
    log_bytes,
    log_tail,
    run,
    spawn,
    stop,
)

__all__ = ["PostgresServer", "find_server", "read_password", "start_server", "stop_server", "use_server"]

# Recovery after a crash replays at most max_wal_size, which takes seconds.
START_TIMEOUT_S = 60
# Each takes a few seconds: children of a killed server must exit, or another program just took the port.
START_ATTEMPTS = 5
POLL_S = 0.05

_ENDED = "it ended at once"

# Small, for one developer's machine. Durability keeps its defaults: Dagster's history should survive a power cut.
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "cluster_name": "icedb-dagster",
    "shared_buffers": "32MB",
    "io_method": "sync",  # no I/O worker processes
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_logical_replication_workers": "0",
    "min_wal_size": "32MB",
    "max_wal_size": "128MB",
    "max_parallel_workers_per_gather": "0",  # needs shared memory, of which containers have little
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
}

# Without the caller's environment: PGPORT or LD_LIBRARY_PATH could redirect the programs.
_ENVIRON = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """A running embedded server."""

    process: ProcessId
    port: int


def find_server(folder: Path) -> PostgresServer | None:
    """Return the server that runs on the data folder in `folder`, or None."""
    data = folder / "data"
    try:
        lines = (data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        pid, port = int(lines[0]), int(lines[3])
    except (OSError, ValueError, IndexError):
        return None
    process = identify(pid)
    return PostgresServer(process=process, port=port) if process and _serves(pid, data) else None


def use_server(layout: StackLayout, folder: Path) -> PostgresServer | None:
    """Return the server that runs in `folder`, once it answers; None if none runs, or if it is shutting down."""
    server = find_server(folder)
    if server is None:
        return None
    password = _password(layout, folder)
    problem = _await_server(server.process, local_url(port=server.port, password=password, database="postgres"))
    if problem in {None, _ENDED}:
        return server if problem is None else None
    raise StackError(
        f"Postgres runs already on 127.0.0.1:{server.port}, but {problem}. See its log {layout.log('postgres')}"
    )


def start_server(layout: StackLayout, placement: Placement, *, port: int | None, progress: Progress) -> PostgresServer:
    """Start the server on that port, or on a free one, and wait until it answers. It must not be running."""
    password = _password(layout, placement.folder)
    if not placement.data.exists():
        progress("Creating a Postgres data folder")
        _initialize(placement, password)
    log = layout.log("postgres")
    for attempt in range(START_ATTEMPTS):
        chosen = port if port is not None and port_is_free(port) and attempt == 0 else free_port()
        progress(f"Starting Postgres on 127.0.0.1:{chosen}")
        offset = log_bytes(log)
        _forget_dead_server(placement.data)
        command = (placement.programs / "bin" / "postgres", "-D", placement.data, "-c", f"port={chosen}")
        process = spawn(command, log=log, environ=_ENVIRON, cwd=Path("/"), user=placement.user)
        try:
            problem = _await_server(process, local_url(port=chosen, password=password, database="postgres"))
        except BaseException:
            stop_server(process)
            raise
        if problem is None:
            return PostgresServer(process=process, port=chosen)
        printed = log_tail(log, offset=offset)
        if "still in use" not in printed and "Address already in use" not in printed:
            break
        time.sleep(1)
    stop_server(process)
    error = StackError(f"Postgres did not start: {problem}. See its log {log}")
    error.add_note(printed)
    raise error


def stop_server(process: ProcessId) -> None:
    """Stop a server with a fast shutdown: sessions are cut, data is written."""
    # To Postgres SIGINT is `pg_ctl stop -m fast`, SIGQUIT is `-m immediate`.
    stop(process, signals=((signal.SIGINT, 30), (signal.SIGQUIT, 5), (signal.SIGKILL, 5)))


def read_password(layout: StackLayout) -> str:
    """Return the password of the embedded server."""
    return layout.password.read_text(encoding="utf-8").strip()


def _serves(pid: int, data: Path) -> bool:
    arguments = command_line(pid)
    # Joined, because without /proc they are split at every space, also in the path.
    return bool(arguments) and Path(arguments[0]).name == "postgres" and f"-D {data} -c" in " ".join(arguments)


def _forget_dead_server(data: Path) -> None:
    """Remove the pid file of a killed server. Postgres itself removes it only if no process, not even a zombie, has its
    pid.

    This is safe: if children of the dead server still run, the new one detects their shared memory by the data folder,
    and refuses to start.
    """
    if find_server(data.parent) is None:
        (data / "postmaster.pid").unlink(missing_ok=True)


def _password(layout: StackLayout, folder: Path) -> str:
    try:
        return read_password(layout)
    except FileNotFoundError:
        if (folder / "data").exists():
            raise StackError(
                f"{layout.password} is missing. Restore it, or remove {folder} to start with an empty Postgres"
            ) from None
    password = secrets.token_hex(24)
    write_private(layout.password, password.encode())
    return password


def _initialize(placement: Placement, password: str) -> None:
    """Create the data folder under another name first, so that an incomplete one is never used.

    Both names are fixed: the next attempt replaces the files of a killed one, including its password.
    """
    unfinished = placement.folder / "data.unfinished"
    if unfinished.exists():
        shutil.rmtree(unfinished)
    unfinished.mkdir(mode=0o700)
    password_file = placement.folder / "password.unfinished"
    password_file.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(password_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(password)
        _give(unfinished, placement)
        _give(password_file, placement)
        _run_initdb(placement, unfinished, password_file)
    finally:
        password_file.unlink(missing_ok=True)
    unfinished.rename(placement.data)


def _run_initdb(placement: Placement, data: Path, password_file: Path) -> None:
    options = [
        "--username=postgres",
        "--auth=scram-sha-256",
        f"--pwfile={password_file}",
        "--encoding=UTF8",
        "--locale=C",
    ]
    settings = [f"--set={name}={value}" for name, value in SETTINGS.items()]
    command: list[str | Path] = [placement.programs / "bin" / "initdb", "-D", data, *options, *settings]
    done = run(command, environ=_ENVIRON, user=placement.user)
    if done.returncode != 0:
        error = StackError(f"initdb could not create a Postgres data folder in {placement.folder}")
        error.add_note((done.stdout + done.stderr).strip())
        raise error


def _give(path: Path, placement: Placement) -> None:
    """Change the owner of a new file or folder to the server's user."""
    user = placement.user
    if user.uid is not None and user.gid is not None:
        os.chown(path, user.uid, user.gid)


def _await_server(process: ProcessId, url: str) -> str | None:
    """Wait until the server answers. Return None on success, else the reason of the failure."""
    deadline = time.monotonic() + START_TIMEOUT_S
    problem: str | None = None
    while time.monotonic() < deadline:
        if not is_running(process):
            return _ENDED
        problem = try_connection(url)
        if problem is None:
            return None
        if "password authentication failed" in problem:
            return "its data folder has another password than the password file"
        time.sleep(POLL_S)
    return f"no answer in {START_TIMEOUT_S} s ({problem})"
