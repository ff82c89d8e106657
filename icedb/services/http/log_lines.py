"""Lines for a pipe or a file, written by a thread of their own: whoever has a line to write never waits.

A pipe that nobody reads takes some dozen lines and then blocks its writer, for ever. Here only the thread waits. A
limited number of bytes waits with it, and what comes beyond that is dropped and counted.
"""

from __future__ import annotations

import logging
import select
import threading
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import BinaryIO, Protocol

import msgspec

__all__ = ["LineWriter", "LineSink", "TextLines", "record_line"]

#: Twenty thousand usual lines of the access log; a client can make one of 50 kilobytes.
WAITING_BYTES_MAX = 8 * 1024 * 1024
#: How long an end waits for lines to be taken.
CLOSE_SECONDS = 1.0
#: Written at once, if that is more than a line: as much as other processes' lines cannot come between, in a pipe.
_PIECE_BYTES = select.PIPE_BUF
#: Characters of any one text; a request's head may have 32 thousand bytes.
_TEXT_MAX = 2_000

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


class LineSink(Protocol):
    """What takes lines: a `LineWriter`, or a stream in memory."""

    def write(self, line: bytes, /) -> object:
        """Write a line, newline included, now or soon."""
        ...


class LineWriter:
    """Writes lines to a binary stream without a buffer, in their order. For any thread.

    `name` is what messages call it; they go to the process's log, and one each is enough: that lines cannot be written,
    and that nobody takes them.
    """

    def __init__(self, stream: BinaryIO, name: str, *, waiting_bytes_max: int = WAITING_BYTES_MAX) -> None:
        self._stream = stream
        self._name = name
        self._bytes_max = waiting_bytes_max
        self._lines: deque[bytes] = deque()
        #: Of these, and of the piece that is being written.
        self._bytes = 0
        self._changed = threading.Condition()
        self._closed = False
        self._torn = False
        self._told: set[str] = set()
        #: Lines that were not written, or not to their end.
        self.lost = 0
        self._thread = threading.Thread(target=self._run, name=f"icedb {name}", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Have a line, or several, written soon; they end with a newline. Never waits for the stream, never raises."""
        with self._changed:
            if not self._closed and self._bytes + len(line) <= self._bytes_max:
                self._lines.append(line)
                self._bytes += len(line)
                self._changed.notify()
                return
            self.lost += line.count(b"\n")
            unread = not self._closed
        if unread:
            self._tell_once("is not read, and lines are dropped")

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Wait until all is written, so many seconds at most; what is then left is lost."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(seconds)
        with self._changed:
            self.lost += sum(line.count(b"\n") for line in self._lines)
            self._lines.clear()

    def _run(self) -> None:
        while piece := self._next():
            unwritten, why = self._put(piece)
            with self._changed:
                self._bytes -= len(piece)
                self.lost += unwritten.count(b"\n")
            if why:
                self._tell_once("cannot be written", f": {why}")

    def _next(self) -> bytes:
        """What to write next, whole lines; nothing: it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._closed)
            piece: list[bytes] = []
            size = 0
            while self._lines and (not piece or size + len(self._lines[0]) <= _PIECE_BYTES):
                piece.append(self._lines.popleft())
                size += len(piece[-1])
        return b"".join(piece)

    def _put(self, piece: bytes) -> tuple[bytes, str]:
        """What of it could not be written, and why."""
        rest = b"\n" + piece if self._torn else piece  # else the rest of half a line, and no line itself
        try:
            while rest:
                taken = self._stream.write(rest)
                if taken:
                    self._torn = rest[taken - 1 : taken] != b"\n"
                    rest = rest[taken:]
                else:  # None: somebody made it non-blocking, and it is full
                    self._wait_for_room()
            self._stream.flush()
        except OSError as error:
            return rest[-len(piece) :], error.strerror or str(error)
        return b"", ""

    def _wait_for_room(self) -> None:
        poll = select.poll()
        poll.register(self._stream, select.POLLOUT)
        poll.poll()

    def _tell_once(self, what: str, why: str = "") -> None:
        with self._changed:
            if what in self._told:
                return
            self._told.add(what)
        _log.error("The %s %s%s. Requests are served all the same.", self._name, what, why)


class TextLines:
    """The text stream that handlers of Python's logging want, over a LineWriter."""

    def __init__(self, lines: LineWriter) -> None:
        self._lines = lines

    def write(self, text: str) -> None:
        """Have a text written soon."""
        self._lines.write(text.encode(errors="backslashreplace"))


def record_line(time_ms: int, said: Mapping[str, object]) -> bytes:
    """One line of JSON: the time (of unix milliseconds), and what is said, in its order; texts may be a client's."""
    time = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
    texts = {name: _line_text(value) if isinstance(value, str) else value for name, value in said.items()}
    return _encode({"time": time, **texts}) + b"\n"


def _line_text(text: str) -> str:
    """A client's text, cut, and without what a terminal or a reader of the log could take for more than text."""
    text = text[:_TEXT_MAX]
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
