"""Log lines, written to a pipe or a file by a thread, so that the callers never block.

A pipe without a reader takes some dozen lines, and then blocks its writer for ever. Here only the thread blocks. It
buffers a limited number of bytes. Lines beyond that are dropped and counted.
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

#: Some twenty thousand typical lines of the access log. A client can cause a line of 50 kilobytes.
BUFFERED_BYTES_MAX = 8 * 1024 * 1024
#: Time for which `LineWriter.close` waits for the buffered lines.
CLOSE_SECONDS = 1.0
#: Maximum size of one write of several lines: a pipe does not interleave such a write with those of other processes.
_WRITE_BYTES = select.PIPE_BUF
#: Maximum number of characters of one text value. A request's head may have 32 thousand bytes.
_TEXT_MAX = 2_000

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


class LineSink(Protocol):
    """A destination of log lines: a `LineWriter`, or a stream in memory."""

    def write(self, line: bytes, /) -> object:
        """Write or enqueue a line, newline included."""
        ...


class LineWriter:
    """A thread-safe writer of lines to an unbuffered binary stream, in order. `name` is the stream's name in messages.

    It reports two problems in the log of the process, each once: the stream cannot be written, or has no reader.
    """

    def __init__(self, stream: BinaryIO, name: str, *, buffered_bytes_max: int = BUFFERED_BYTES_MAX) -> None:
        self._stream = stream
        self._name = name
        self._bytes_max = buffered_bytes_max
        self._lines: deque[bytes] = deque()
        #: Bytes of the buffered lines, and of the lines that are being written.
        self._bytes = 0
        self._changed = threading.Condition()
        self._closed = False
        #: True if the last write ended within a line.
        self._partial = False
        self._reported: set[str] = set()
        #: Lines that were dropped or written in part.
        self.lost = 0
        self._thread = threading.Thread(target=self._run, name=f"icedb {name}", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Enqueue a line, or several, each with its newline. Never blocks, never raises."""
        with self._changed:
            if not self._closed and self._bytes + len(line) <= self._bytes_max:
                self._lines.append(line)
                self._bytes += len(line)
                self._changed.notify()
                return
            self.lost += line.count(b"\n")
            overflow = not self._closed
        if overflow:
            self._report_once("has no reader; lines are dropped")

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Write the buffered lines, for at most `seconds`; the lines that remain are lost."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(seconds)
        with self._changed:
            self.lost += sum(line.count(b"\n") for line in self._lines)
            self._lines.clear()

    def _run(self) -> None:
        while piece := self._next():
            unwritten, why = self._write_stream(piece)
            with self._changed:
                self._bytes -= len(piece)
                self.lost += unwritten.count(b"\n")
            if why:
                self._report_once("cannot be written", f": {why}")

    def _next(self) -> bytes:
        """Wait for lines and return whole lines for one write. Return nothing after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._closed)
            piece: list[bytes] = []
            size = 0
            while self._lines and (not piece or size + len(self._lines[0]) <= _WRITE_BYTES):
                piece.append(self._lines.popleft())
                size += len(piece[-1])
        return b"".join(piece)

    def _write_stream(self, piece: bytes) -> tuple[bytes, str]:
        """Write lines, and return those that could not be written, with the reason."""
        rest = b"\n" + piece if self._partial else piece  # end a partial line, so that it does not merge with the next
        try:
            while rest:
                written = self._stream.write(rest)
                if written:
                    self._partial = rest[written - 1 : written] != b"\n"
                    rest = rest[written:]
                else:  # None: another process made it non-blocking, and it is full
                    self._wait_until_writable()
            self._stream.flush()
        except OSError as error:
            return rest[-len(piece) :], error.strerror or str(error)
        return b"", ""

    def _wait_until_writable(self) -> None:
        poll = select.poll()
        poll.register(self._stream, select.POLLOUT)
        poll.poll()

    def _report_once(self, problem: str, why: str = "") -> None:
        with self._changed:
            if problem in self._reported:
                return
            self._reported.add(problem)
        _log.error("The %s %s%s. Requests are still served.", self._name, problem, why)


class TextLines:
    """A text stream over a LineWriter, for the handlers of Python's logging."""

    def __init__(self, lines: LineWriter) -> None:
        self._lines = lines

    def write(self, text: str) -> None:
        """Enqueue a text."""
        self._lines.write(text.encode(errors="backslashreplace"))


def record_line(time_ms: int, fields: Mapping[str, object]) -> bytes:
    """Encode a line of JSON: the time, given in unix milliseconds, and the fields, which may hold text of clients."""
    time = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
    texts = {name: _line_text(value) if isinstance(value, str) else value for name, value in fields.items()}
    return _encode({"time": time, **texts}) + b"\n"


def _line_text(text: str) -> str:
    """Truncate a text of a client, and escape characters that a terminal or a log reader could interpret."""
    text = text[:_TEXT_MAX]
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
