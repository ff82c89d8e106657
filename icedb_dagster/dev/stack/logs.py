"""The output of a stack's processes, line by line, each with the name of its service.

No line that leaves this module holds a Postgres password: other programs write the logs.
"""

import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from icedb_dagster.dev.stack.database import local_url, without_password
from icedb_dagster.dev.stack.layout import StackLayout, open_layout, write_private
from icedb_dagster.dev.stack.postgres import read_password
from icedb_dagster.dev.stack.processes import log_bytes
from icedb_dagster.dev.stack.stack_status import DATABASE, external_url
from icedb_dagster.dev.stack.state import SERVICES, ServiceName, checked_services

__all__ = ["LogLine", "log_lines", "rotate_logs"]

LINES = 20
POLL_S = 0.2
# A line of Dagster has some 150 bytes. For longer lines, more is read.
TAIL_BYTES = 64_000
#: The lines of a longer log are moved to `<name>.log.1`, so that a stack that runs for months does not fill the disk.
LOG_BYTES_MAX = 10_000_000
_COLORS = re.compile(rb"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line, without its line ending."""

    service: ServiceName
    text: str


def log_lines(
    project_dir: str | Path = ".",
    *,
    services: Collection[str] = SERVICES,
    lines: int = LINES,
    follow: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> Iterator[LogLine]:
    """Yield the last lines of each service's log; with `follow`, then new lines for ever."""
    chosen = checked_services(services)
    layout = open_layout(project_dir)
    hide = _hider(layout, environ)
    logs = {name: _Log(layout.log(name)) for name in chosen}
    for name, log in logs.items():
        yield from (LogLine(name, hide(line)) for line in log.last(lines))
    while follow:
        quiet = True
        for name, log in logs.items():
            for line in log.added():
                quiet = False
                yield LogLine(name, hide(line))
        if quiet:
            time.sleep(POLL_S)


def rotate_logs(folder: Path) -> None:
    """Move the lines of each long log to `<name>.log.1`, without color codes, while its service writes on.

    The service keeps its open file, which is truncated. A line that it writes between the copy and the truncation is
    lost.
    """
    for log in folder.glob("*.log"):
        if log_bytes(log) > LOG_BYTES_MAX:
            write_private(log.with_name(f"{log.name}.1"), _COLORS.sub(b"", log.read_bytes()))
            os.truncate(log, 0)


class _Log:
    """A log file and its read position. It may be missing, and may be rotated."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def last(self, lines: int) -> list[str]:
        """Return the last lines, including an unfinished one; `added` continues after them."""
        size = self._size()
        window = TAIL_BYTES
        while True:
            start = max(0, size - window)
            tail = self._read(start, size)
            if start == 0 or tail.count(b"\n") > lines:
                break
            window *= 2
        self._offset = size
        return tail.decode(errors="replace").splitlines()[-lines:] if lines > 0 else []

    def added(self) -> list[str]:
        """Return the complete lines written since."""
        size = self._size()
        if size < self._offset:
            self._offset = 0
        added = self._read(self._offset, size)
        whole = added[: added.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.decode(errors="replace").splitlines()

    def _size(self) -> int:
        return log_bytes(self._path)

    def _read(self, start: int, end: int) -> bytes:
        if end <= start:
            return b""
        with self._path.open("rb") as file:
            file.seek(start)
            return file.read(end - start)


def _hider(layout: StackLayout, environ: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that removes the embedded server's and the user's password from a line."""
    urls = [external_url(environ)]
    if layout.password.is_file():
        urls.append(local_url(port=0, password=read_password(layout), database=DATABASE))

    def hide(line: str) -> str:
        for url in urls:
            line = line if url is None else without_password(line, url=url)
        return line

    return hide
