"""Listen settings of a server with their defaults, and stamps of the configuration files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["HEAD_BYTES_MAX", "FileStamp", "ListenSettings"]

#: Maximum size of a request's head. S3 allows 8 KiB of headers; a presigned URL may be as long again.
HEAD_BYTES_MAX = 32 * 1024


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """Addresses, TLS files, and timeouts of clients."""

    host: str = "127.0.0.1"
    #: 0 selects a free port.
    port: int = 8080
    #: Address of health checks and metrics. None disables them.
    admin_host: str | None = None
    admin_port: int | None = None
    #: Maximum number of open connections.
    connections: int = 2_000
    #: Time for a client to send a request, the body included.
    header_timeout_ms: int = 10_000
    #: The server disconnects a client that reads nothing of its response for this time.
    send_timeout_ms: int = 60_000
    #: Time for responses in progress to finish when the server stops.
    stop_timeout_ms: int = 30_000
    tls_certificate: Path | None = None
    tls_key: Path | None = None


@dataclass(frozen=True, slots=True)
class FileStamp:
    """The identity of a file version: a changed stamp means a changed file."""

    mtime_ns: int
    bytes: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> FileStamp | None:
        """Return the current stamp of a file, or None if the file cannot be read."""
        try:
            status = path.stat()
        except (OSError, ValueError):  # ValueError: a zero byte in the path
            return None
        return cls(status.st_mtime_ns, status.st_size, status.st_ino)
