"""Server processes of benchmarks."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

__all__ = ["START_SECONDS_MAX", "free_ports", "is_up", "server", "stop"]

_Ready = TypeVar("_Ready")
START_SECONDS_MAX = 60
# Their state is temporary, so a longer clean shutdown is unnecessary.
STOP_SECONDS_MAX = 1


@contextmanager
def server(
    name: str, command: Sequence[str], folder: Path, environ: Mapping[str, str], ready: Callable[[str], _Ready | None]
) -> Iterator[tuple[int, _Ready]]:
    """Run a server in a folder until the block ends. Yield its process id and the first result of `ready`.

    `ready` gets the server's standard error, and returns None or False until the server can be used.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    # The benchmark may be run from any folder.
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), inherited.get("PYTHONPATH", "")]))
    log = folder / "errors.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, env={**inherited, "PYTHONPATH": path, **environ}, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=errors, cwd=folder,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not (result := ready(log.read_text())):
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError(f"{name} did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.05)
        yield process.pid, result
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process, and wait until it has ended."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def is_up(endpoint: str, path: str) -> bool:
    """Return whether a GET of the path succeeds."""
    connection = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == HTTPStatus.OK
    except (http.client.HTTPException, OSError):
        return False
    finally:
        connection.close()


def free_ports(number: int) -> list[int]:
    """Return different free ports: each is held until all are chosen."""
    probes = [socket.socket() for _ in range(number)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
