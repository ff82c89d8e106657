"""Processes and servers that a test starts and ends."""

from __future__ import annotations

import itertools
import json
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socketserver import BaseServer
from typing import Any, TypeVar

Server = TypeVar("Server", bound=BaseServer)
#: Variables with which a developer's environment would change a program.
SETTINGS = ("AWS_", "ICEDB_", "DAGSTER_")
SECONDS_MAX = 880
#: Ports of servers that tests start. Linux gives ports from 32,768 to clients.
PORTS = range(12_000, 32_000)
WORKERS_MAX = 20
_port_numbers = itertools.count(random.SystemRandom().randrange(len(PORTS)))


def clean_environment(*more: str, **variables: str) -> dict[str, str]:
    """Return the environment without settings of the developer and names that begin with `more`, plus variables."""
    hidden = (*SETTINGS, *more)
    return {name: value for name, value in os.environ.items() if not name.startswith(hidden)} | variables


def run_python(*arguments: object, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments. Raises AssertionError with the output if it fails, unless `check` is false."""
    options = {"capture_output": True, "text": True, "timeout": SECONDS_MAX, **options}
    done = subprocess.run([sys.executable, *map(str, arguments)], check=False, **options)
    assert not check or done.returncode == 0, f"{done.stdout[-4000:]}{done.stderr[-6000:]}"
    return done


def json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file to which a process appends, without an unfinished one. Without the file: none."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def free_port() -> int:
    """Return a port that is free, and that no other test and no client of a server takes.

    Each worker of a run has a range of ports, below those that systems give to clients.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = PORTS.start + worker % WORKERS_MAX * len(PORTS) // WORKERS_MAX
    while True:
        port = first + next(_port_numbers) % (len(PORTS) // WORKERS_MAX)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def end_process(process: subprocess.Popen[Any], seconds: float = 60) -> None:
    """Terminate a process, and kill it if it has not ended after this time."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Serve requests in a thread until the block ends."""
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
