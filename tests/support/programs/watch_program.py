"""`icedb merge --watch` for tests: a process that merges a table all the time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import IO


class WatchProgram:
    """`icedb merge --watch` in its own process, and its output. It has started when this is constructed."""

    def __init__(self, uri: str, *options: str, every: str = "20ms", environ: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "icedb.cli", "merge", uri, "--watch", "--every", every, *options]
        env = {"PATH": os.environ["PATH"], **(environ or {})}
        self.process = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.lines: list[str] = []
        self.errors = self.process.stderr
        self._reader = threading.Thread(target=self._read, args=(self.process.stdout,))
        self._reader.start()
        self.begun = self.errors.readline()

    def _read(self, out: IO[str]) -> None:
        for line in out:
            self.lines.append(line)

    def end(self, number: signal.Signals) -> int:
        """Send a signal, and return the exit status."""
        self.process.send_signal(number)
        status = self.process.wait(60)
        self._reader.join()
        return status

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.errors.close()
