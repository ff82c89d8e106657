"""A process of `icedb proxy` or of another service, on a free port of 127.0.0.1."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.processes import end_process, json_lines

ROOT = Path(__file__).parents[3]
START_SECONDS_MAX = 300
STOP_SECONDS_MAX = 60
_LISTENING = re.compile(r"listening on (\S+?)(?:, health and metrics on (\S+?))?; ")


def proxy_command(path: Path, *more: str, verb: str = "proxy") -> list[str]:
    """Return the command line of a verb, with the interpreter of the tests."""
    return [sys.executable, "-m", "icedb.cli", verb, "--config", str(path), *more]


class ProxyProcess:
    """A proxy that runs inside the `with` block.

    `config` is a file or its content. `env` is added to the environment. The process listens on a port that the system
    chooses, and sets `endpoint` and `admin`.
    """

    verb = "proxy"

    def __init__(self, config: str | Path, env: Mapping[str, str] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="icedb-proxy-")
        folder = Path(self._folder.name)
        if isinstance(config, str):
            self.path = folder / "proxy.toml"
            self.path.write_text(config)
        else:
            self.path = config
        self._env = {**os.environ, **(env or {})}
        self._out, self._err = folder / "out", folder / "err"
        self._process: subprocess.Popen[bytes] | None = None
        #: The address for clients, as `http://127.0.0.1:49152`.
        self.endpoint = ""
        #: The address of health and metrics, if configured.
        self.admin = ""
        #: When it was started, by `time.monotonic`.
        self.started_s = 0.0

    def __enter__(self) -> Self:
        self.started_s = time.monotonic()
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=self._env,
                cwd=ROOT,
            )
        try:
            addresses = self._wait_until_it_listens()
        except BaseException:
            self._end()
            raise
        self.endpoint, self.admin = addresses[1], addresses[2] or ""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def command(self) -> list[str]:
        """Return the command line of the process."""
        return proxy_command(self.path, verb=self.verb)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """Return the process."""
        if self._process is None:
            raise RuntimeError("it was not started")
        return self._process

    @property
    def port(self) -> int:
        """Return the port for clients."""
        return int(self.endpoint.rpartition(":")[2])

    def alive(self) -> bool:
        """Return whether the process runs."""
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        self.process.send_signal(number)

    def wait(self, seconds: float = STOP_SECONDS_MAX) -> int:
        """Wait for its end, and return the exit status: negative if a signal ended it. Raises TimeoutExpired."""
        return self.process.wait(seconds)

    def access_log(self) -> list[dict[str, Any]]:
        """Return the lines written so far."""
        return json_lines(self._out)

    def access_text(self) -> str:
        """Return the lines of the access log."""
        return self._out.read_text()

    def errors(self) -> str:
        """Return the standard error so far."""
        return self._err.read_text()

    def _wait_until_it_listens(self) -> re.Match[str]:
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            addresses = _LISTENING.search(self.errors())
            if addresses:
                return addresses
            if not self.alive():
                break
            time.sleep(0.05)
        raise RuntimeError(f"icedb {self.verb} did not start:\n{self.errors()}")

    def _end(self) -> None:
        end_process(self.process, STOP_SECONDS_MAX)
        self._folder.cleanup()
