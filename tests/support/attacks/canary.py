"""Files of the host with a secret, and an address that records every request."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

SECRET = "canary-4f1d0b"
FILES = ("secret.csv", "secret.json", "secret.txt", "below/secret.csv")


@dataclass
class Canary:
    """A folder of files that an attack must not read or change, and a port that it must not call."""

    folder: Path
    port: int
    visits: list[str] = field(default_factory=list)
    _before: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in FILES:
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"name,value\n{SECRET},1\n")
        self._before = contents(self.folder)

    @property
    def csv(self) -> Path:
        return self.folder / FILES[0]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/secret.csv"

    def check(self, *answers: object) -> None:
        """Fail unless all is as it was, and none of the answers holds the secret."""
        assert contents(self.folder) == self._before
        assert self.visits == []
        for answer in answers:
            assert SECRET not in str(answer), answer


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@contextmanager
def watching(folder: Path) -> Iterator[Canary]:
    """Return a canary in a new folder, which listens until the context ends."""
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        canary = Canary(folder, int(server.getsockname()[1]))
        thread = threading.Thread(target=_listen, args=(server, canary.visits), daemon=True)
        thread.start()
        yield canary
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def _listen(server: socket.socket, visits: list[str]) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.settimeout(1)
            try:
                visits.append(connection.recv(200).decode(errors="replace"))
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            except OSError:
                visits.append("a visitor who said nothing")
