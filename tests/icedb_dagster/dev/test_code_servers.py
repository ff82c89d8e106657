"""When the code servers of a stack are reloaded. `test_stack.py` and `test_faults.py` run and kill real ones."""

import errno
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

dagster = pytest.importorskip("dagster")

from dagster._core.errors import DagsterUserCodeUnreachableError

from icedb_dagster.dev import code_servers
from icedb_dagster.dev.code_servers import Location

pytestmark = pytest.mark.dagster


@dataclass
class Server:
    """A client of a code server that answers if it works, and that a reload repairs or not."""

    works: bool = True
    repairable: bool = True
    #: The times of reloads.
    reloads: list[float] = field(default_factory=list)
    now_s: float = 0

    def ping(self, _echo: str) -> None:
        if not self.works:
            raise DagsterUserCodeUnreachableError("no answer\nand a trace")

    def reload_code(self, _timeout: int) -> None:
        self.reloads.append(self.now_s)
        self.works = self.repairable
        self.ping("")

    def checked(self, location: Location, *times_s: float) -> list[float]:
        self.reloads.clear()
        for self.now_s in times_s:
            location.check(self.now_s)
        return list(self.reloads)


def test_a_location_that_does_not_answer_twice_is_reloaded(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server()
    location = Location("tables", server)
    assert server.checked(location, 0, 5, 10) == []
    server.works = False
    assert server.checked(location, 15) == []
    assert server.checked(location, 20) == [20]
    assert capsys.readouterr().err == "code location tables does not answer (no answer); reloading it\n"
    server.works = False
    assert server.checked(location, 25, 30, 35) == [30], "the failures are counted from the reload on"


def test_code_that_cannot_be_loaded_is_tried_ever_more_rarely(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(works=False, repairable=False)
    location = Location("tables", server)
    assert server.checked(location, *range(0, 300, 5)) == [5, 15, 35, 75, 135, 195, 255]
    capsys.readouterr()
    server.works = server.repairable = True
    assert server.checked(location, 300) == []
    assert capsys.readouterr().err == "code location tables answers again\n"
    server.works = False
    assert server.checked(location, 305, 310) == [310]


class FullDisk:
    """An output on a disk without space."""

    def write(self, _text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    flush = write


def test_code_servers_run_on_while_the_disk_is_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    attempts: list[Path] = []

    def rotate(folder: Path) -> None:
        attempts.append(folder)
        if len(attempts) == 3:
            signal.raise_signal(signal.SIGTERM)
        raise OSError(errno.ENOSPC, "No space left on device")

    @contextmanager
    def serve(_workspace: Path, _addresses: Path) -> Iterator[list[Location]]:
        yield []

    monkeypatch.setattr(code_servers, "CHECK_S", 0.01)
    monkeypatch.setattr(code_servers, "rotate_logs", rotate)
    monkeypatch.setattr(code_servers, "serve", serve)
    monkeypatch.setattr("sys.stderr", FullDisk())
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        code_servers.main("workspace.yaml", "addresses.yaml", str(tmp_path))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert attempts == [tmp_path] * 3
