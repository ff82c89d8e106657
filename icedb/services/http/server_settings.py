"""What a server is told about its sockets: settings with their defaults; and stamps of the files that said so."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["HEAD_BYTES_MAX", "FileStamp", "ListenSettings"]

#: Of a request before its body. S3's own limit is 8 KiB of headers; a presigned address may be as long again.
HEAD_BYTES_MAX = 32 * 1024


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """How a server listens, and how long it waits for clients."""

    host: str = "127.0.0.1"
    #: 0: any free one.
    port: int = 8080
    #: Where metrics are shown; None: nowhere.
    admin_host: str | None = None
    admin_port: int | None = None
    #: At a time.
    connections: int = 2_000
    #: How long a client may take to say what it wants, its body included.
    header_timeout_ms: int = 10_000
    #: A client that takes nothing of its answer for so long is cut off.
    send_timeout_ms: int = 60_000
    #: How long answers that are under way may take when the server is told to stop.
    stop_timeout_ms: int = 30_000
    tls_certificate: Path | None = None
    tls_key: Path | None = None


@dataclass(frozen=True, slots=True)
class FileStamp:
    """By what it is told that a file is no longer what was read."""

    mtime_ns: int
    bytes: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> FileStamp | None:
        """The stamp of a file now; None: it cannot be looked at."""
        try:
            found = path.stat()
        except (OSError, ValueError):  # ValueError: a zero byte in the path
            return None
        return cls(found.st_mtime_ns, found.st_size, found.st_ino)
