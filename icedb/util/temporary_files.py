"""Temporary folders that the next process removes when theirs was killed: they hold rows in clear.

All folders that a process makes below one place lie in one root, `icedb-temporary-...`, with mode 0700. Its file
`owner` is locked (`flock`) for as long as the process lives. The kernel releases the lock however the process ends,
and all containers of a machine see it, whatever ids their processes have. So an owner file that can be locked belongs
to a dead process.

A root gets its owner file only when that is locked: before, no other process takes the root for one. A process that
dies in between leaves an empty folder. Removal deletes the owner file last, under its lock, so that two processes never
remove one root, and a removal that was cut short is continued.

A lock says nothing where another machine may hold it unseen, as on some network file systems. There a root is removed
only by the kernel on which its owner ran.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import logging
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from stat import S_ISREG

__all__ = ["make_folder", "remove_folder", "spill_path", "temporary_folder"]

logger = logging.getLogger(__name__)

PREFIX = "icedb-temporary-"
_OWNER = "owner"
#: The first line of an owner file. The second is the kernel on which the owner runs.
_TITLE = "The owner of this folder holds a lock on this file. IceDB removes the folder when the owner is dead."
_OWNER_BYTES_MAX = 1_024
# What a removal may take of the time of the process that has other work.
REMOVED_MAX = 100
REMOVAL_S = 2.0
#: A process that lives long looks again.
REMOVAL_EVERY_S = 3_600.0
#: File systems of one machine, where every holder of a lock is seen. The others are asked for the kernel as well.
_LOCAL = frozenset(("bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"))
_MOUNTS = Path("/proc/self/mountinfo")
#: How the list of mounts writes spaces, line ends and backslashes.
_OCTAL = re.compile(rb"\\([0-7]{3})")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SEARCHED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


@dataclass(slots=True)
class _Root:
    path: Path
    #: The open owner file, which holds the lock; None: the file system has no locks.
    lock: int | None
    folders: int = 0
    spills: int = 0
    #: Whether it stays until the process ends.
    stays: bool = False

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self.forget()

    def forget(self) -> None:
        if self.lock is not None:
            os.close(self.lock)  # in a child: the parent's copy keeps the lock


_roots: dict[Path, _Root] = {}
_folders: dict[Path, _Root] = {}
_looked_s: dict[Path, float] = {}
_lock = threading.RLock()


# ------------------------------------------------------------------------------------------ making folders


@contextmanager
def temporary_folder(purpose: str, *, below: Path | None = None) -> Iterator[Path]:
    """A new folder for as long as the block lasts. `below`: None: where the system keeps temporary files."""
    folder = make_folder(purpose, below=below)
    try:
        yield folder
    finally:
        remove_folder(folder)


def make_folder(purpose: str, *, below: Path | None = None) -> Path:
    """A new folder, until `remove_folder` or the end of the process. Raises OSError."""
    place = Path(tempfile.gettempdir() if below is None else below).absolute()
    _remove_dead(place)
    with _lock:
        root = _root(place)
        inside = place if place.is_relative_to(root.path) else root.path
        folder = Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=inside))
        root.folders += 1
        _folders[folder] = root
    return folder


def remove_folder(folder: Path) -> None:
    """Remove a folder that this process made. A forked process leaves those of its parent alone."""
    with _lock:
        root = _folders.pop(folder, None)
    if root is None:
        return
    shutil.rmtree(folder, ignore_errors=True)
    with _lock:
        root.folders -= 1
        if not root.folders and not root.stays and _roots_of(root):
            root.close()


def spill_path() -> Path | None:
    """A path for what one connection of DuckDB spills; nothing is there yet. None: there is no place for it.

    The connection may live as long as the process does. Otherwise DuckDB takes `.tmp` in the working directory.
    """
    try:
        place = Path(tempfile.gettempdir()).absolute()
        _remove_dead(place)
        with _lock:
            root = _root(place)
            root.stays = True
            root.spills += 1
            return root.path / f"spill-{root.spills}"
    except OSError:
        return None


def _roots_of(root: _Root) -> bool:
    """Take a root from those of this process; False: it is none of them any more."""
    for place, known in list(_roots.items()):
        if known is root:
            del _roots[place]
            return True
    return False


def _root(place: Path) -> _Root:
    """The root for folders at a place, which may itself be below a root."""
    for root in _roots.values():
        if place.is_relative_to(root.path):
            return root
    known = _roots.get(place)
    if known is not None:
        if known.path.is_dir():
            return known
        del _roots[place]  # another program cleaned the place
        known.forget()
    root = _roots[place] = _new_root(place)
    return root


def _new_root(place: Path) -> _Root:
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    try:
        return _Root(path, _own(path))
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


def _own(root: Path) -> int | None:
    """Lock the owner file under another name first: nobody may see it unlocked."""
    newborn = root / f"{_OWNER}.new"
    lock = os.open(newborn, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # no locks here: without an owner file nobody ever removes the folder but its process
        os.close(lock)
        newborn.unlink()
        return None
    try:
        os.write(lock, f"{_TITLE}\n{_kernel()}\n".encode())
        newborn.rename(root / _OWNER)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _close_all() -> None:
    with _lock:
        _folders.clear()
        while _roots:
            _roots.popitem()[1].close()


def _forget_all() -> None:
    """In a forked process: the folders are its parent's, and the lock as well."""
    _folders.clear()
    while _roots:
        _roots.popitem()[1].forget()
    _lock.release()


# A child never begins while another thread is between making a lock and remembering it.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_forget_all)
atexit.register(_close_all)


# ------------------------------------------------------------------------------------------ removing those of the dead


def _remove_dead(place: Path) -> None:
    """Remove the roots of dead processes, some of them, when this process comes to a place first and once an hour."""
    now_s = time.monotonic()
    with _lock:
        if now_s - _looked_s.get(place, -REMOVAL_EVERY_S) < REMOVAL_EVERY_S:
            return
        own = {root.path for root in _roots.values()}
        if any(place.is_relative_to(path) for path in own):
            return
        _looked_s[place] = now_s
        for root in _roots.values():
            if root.lock is not None:  # programs that empty temporary folders go by a file's time
                with suppress(OSError):
                    os.utime(root.lock)
    removed = 0
    try:
        with os.scandir(place) as entries:
            for entry in entries:
                if time.monotonic() > now_s + REMOVAL_S or removed >= REMOVED_MAX:
                    break
                if entry.name.startswith(PREFIX) and Path(entry.path) not in own:
                    removed += _removed(Path(entry.path), now_s + REMOVAL_S)
    except OSError as error:
        logger.debug("temporary folders in %s are not looked at: %s", place, error)
    if removed:
        logger.info("%s: removed %d temporary folders of processes that were killed", place, removed)


def _removed(path: Path, deadline_s: float) -> bool:
    """Whether a root was that of a dead process, and is gone."""
    try:
        folder = os.open(path, _SEARCHED)
    except OSError:  # a link, a file, another user's, or gone
        return False
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            return False
        owner = _locked_owner(folder, path.parent)
        if owner is None:
            return False
        try:
            return _emptied(folder, deadline_s) and _deleted(path, folder)
        finally:
            os.close(owner)
    except OSError as error:
        logger.debug("%s stays: %s", path, error)
        return False
    finally:
        os.close(folder)


def _locked_owner(folder: int, place: Path) -> int | None:
    """The owner file of a root, locked by us, if it is the owner file of a dead process."""
    try:
        # NONBLOCK: a pipe of that name would keep us waiting.
        owner = os.open(_OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return None
    try:
        status = os.fstat(owner)
        if S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1:
            title, _, kernel = os.read(owner, _OWNER_BYTES_MAX).decode(errors="replace").strip().partition("\n")
            if title == _TITLE and (_is_local(place) or kernel == _kernel() != ""):
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return owner
    except OSError:  # it is locked: the owner lives, or another process removes the folder right now
        pass
    except BaseException:
        os.close(owner)
        raise
    os.close(owner)
    return None


def _emptied(folder: int, deadline_s: float) -> bool:
    """Delete all that is in a root but its owner file; never what a link names."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if time.monotonic() > deadline_s:
                return False
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.name, dir_fd=folder)
            elif entry.name != _OWNER:
                os.unlink(entry.name, dir_fd=folder)
    return True


def _deleted(path: Path, folder: int) -> bool:
    os.unlink(_OWNER, dir_fd=folder)
    with suppress(OSError):
        path.rmdir()
    return True


def _is_local(place: Path) -> bool:
    """Whether a place is on a file system whose locks this kernel decides alone. Only Linux says."""
    try:
        real = place.resolve()
        kind, longest = "", -1
        for line in _MOUNTS.read_bytes().splitlines():
            left, _, right = line.partition(b" - ")
            mounted = os.fsdecode(_OCTAL.sub(lambda escape: bytes([int(escape[1], 8)]), left.split(b" ")[4]))
            if real.is_relative_to(mounted) and len(mounted) >= longest:  # the last of several hides the others
                kind, longest = right.split(b" ")[0].decode(), len(mounted)
    except (OSError, IndexError, ValueError):
        return False
    return kind in _LOCAL


@lru_cache(maxsize=1)
def _kernel() -> str:
    """The kernel that decides locks, since its start: what all containers of a machine have alike. Empty: unknown."""
    if sys.platform == "darwin":
        return _mac_boot_session()
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _mac_boot_session() -> str:
    value, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
    try:
        failed = ctypes.CDLL(None).sysctlbyname(b"kern.bootsessionuuid", value, ctypes.byref(size), None, 0)
    except (OSError, AttributeError):
        return ""
    return "" if failed else value.value.decode(errors="replace")
