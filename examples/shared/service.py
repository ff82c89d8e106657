"""The HTTP service `icedb ingest` for an example, in its own process, on a port of 127.0.0.1."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["IngestService", "free_port"]

START_SECONDS_MAX = 60


def free_port() -> int:
    """Return a free port. Prefer `listen = "127.0.0.1:0"` if the port need not be known beforehand."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class IngestService:
    """A service that runs inside the `with` block, and can be killed."""

    def __init__(self, config: str) -> None:
        """Create a service. `config` is the text of its ingest.toml."""
        self._folder = tempfile.TemporaryDirectory(prefix="icedb-example-service-")
        folder = Path(self._folder.name)
        self._config, self._errors = folder / "ingest.toml", folder / "ingest.log"
        self._config.write_text(config)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        try:
            self.endpoint = self._wait()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        self._folder.cleanup()

    def start(self) -> None:
        """Start the service without waiting."""
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "icedb.cli", "ingest", "--config", str(self._config)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                # A killed process does not clean up.
                env=os.environ | {"TMPDIR": self._folder.name},
            )

    def kill(self) -> None:
        """Kill the service like kill -9, without cleanup."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _wait(self) -> str:
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline and self._process is not None and self._process.poll() is None:
            if match := re.search(r"listening on (http\S+?)[,;]", self._errors.read_text()):
                return match[1]
            time.sleep(0.05)
        raise RuntimeError(f"icedb ingest did not start:\n{self._errors.read_text()}")
