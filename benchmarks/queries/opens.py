"""The files that any process opens, observed by inotify."""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["files_opened"]

_IN_OPEN, _IN_Q_OVERFLOW, _IN_ISDIR = 0x20, 0x4000, 0x40000000
# The head of an event: watch, mask, cookie, length of the name that follows.
_EVENT = struct.Struct("iIII")
_BUFFER_BYTES = 1024 * 1024
_POLL_MS = 20


@contextmanager
def files_opened(folder: Path) -> Iterator[set[str]]:
    """Yield a set that receives the paths of the files below a folder that are opened during the block.

    It is complete after the block. New folders are not observed. Linux only. Raises OSError if events were lost.
    """
    system = ctypes.CDLL(None, use_errno=True)
    events = system.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if events < 0:
        raise OSError(ctypes.get_errno(), "inotify cannot be used: opened files cannot be counted here")
    opened_files: set[str] = set()
    errors: list[OSError] = []
    over = threading.Event()

    def read() -> None:
        poll = select.poll()
        poll.register(events, select.POLLIN)
        while True:
            ends = over.is_set()  # before the poll: a file may be opened between a poll in vain and the end
            if poll.poll(_POLL_MS):
                try:
                    opened_files.update(_names(os.read(events, _BUFFER_BYTES), folders))
                except BlockingIOError:
                    continue
                except OSError as error:
                    errors.append(error)
                    return
            elif ends:
                return

    try:
        below = [folder, *(Path(root, name) for root, names, _ in os.walk(folder) for name in names)]
        folders: dict[int, Path] = {}
        for path in below:
            watch = system.inotify_add_watch(events, os.fsencode(path), _IN_OPEN)
            if watch < 0:
                raise OSError(ctypes.get_errno(), "inotify cannot watch (see fs.inotify.max_user_watches)", str(path))
            folders[watch] = path
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            yield opened_files
        finally:
            over.set()
            reader.join()
    finally:
        os.close(events)
    if errors:
        raise errors[0]


def _names(data: bytes, folders: dict[int, Path]) -> Iterator[str]:
    offset = 0
    while offset < len(data):
        watch, mask, _, length = _EVENT.unpack_from(data, offset)
        name = data[offset + _EVENT.size : offset + _EVENT.size + length].rstrip(b"\0")
        offset += _EVENT.size + length
        if mask & _IN_Q_OVERFLOW:
            raise OSError("events were lost: more files were opened at once than fs.inotify.max_queued_events allows")
        if name and not mask & _IN_ISDIR:
            yield str(folders[watch] / os.fsdecode(name))
