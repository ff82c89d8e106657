"""Temporary folders that a later process removes if their own process was killed. They hold unencrypted rows.

All folders that a process makes below one place are in one root, `icedb-temporary-...`, with mode 0700. The process
holds a lock (`flock`) on the root's file `owner` while it lives. The kernel releases the lock however the process ends.
All containers of a machine see the lock, whatever process ids they use. So an owner file that can be locked belongs to
a dead process.

The owner file gets its name only after it is locked. Other processes ignore a root without an owner file, so a process
that dies in between leaves an empty folder. Removal deletes the owner file last, while it holds the lock. So two
processes never remove the same root, and a later process continues an interrupted removal.

On some network file systems a lock of another machine is not visible. There a root is removed only by the kernel on
which its owner ran.
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
# Limits of one removal, which delays the work of the process that does it.
REMOVED_MAX = 100
REMOVAL_S = 2.0
#: A long-lived process repeats the removal after this time.
REMOVAL_EVERY_S = 3_600.0
#: File systems of a single machine, on which every lock is visible. On others the kernel must match as well.
_LOCAL = frozenset(("bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"))
_MOUNTS = Path("/proc/self/mountinfo")
#: The escapes of spaces, line ends and backslashes in the list of mounts.
_OCTAL = re.compile(rb"\\([0-7]{3})")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SEARCHED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


@dataclass(slots=True)
class _Root:
    path: Path
    #: The open owner file, which holds the lock; None if the file system has no locks.
    lock: int | None
    folders: int = 0
    spills: int = 0
    #: Whether the root is kept until the process ends.
    is_permanent: bool = False

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self.forget()

    def forget(self) -> None:
        if self.lock is not None:
            os.close(self.lock)  # in a forked child, the parent's copy keeps the lock


_roots: dict[Path, _Root] = {}
_folders: dict[Path, _Root] = {}
_looked_s: dict[Path, float] = {}
_lock = threading.RLock()


# ------------------------------------------------------------------------------------------ making folders


@contextmanager
def temporary_folder(purpose: str, *, below: Path | None = None) -> Iterator[Path]:
    """Make a folder that exists while the block runs, below the system's temporary folder unless `below` is given."""
    folder = make_folder(purpose, below=below)
    try:
        yield folder
    finally:
        remove_folder(folder)


def make_folder(purpose: str, *, below: Path | None = None) -> Path:
    """Make a folder that exists until `remove_folder` or the end of the process. Raises OSError."""
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
    """Remove a folder that this process made. A forked process does not remove its parent's folders."""
    with _lock:
        root = _folders.pop(folder, None)
    if root is None:
        return
    shutil.rmtree(folder, ignore_errors=True)
    with _lock:
        root.folders -= 1
        if not root.folders and not root.is_permanent and _roots_of(root):
            root.close()


def spill_path() -> Path | None:
    """Return an unused path for the spill files of one DuckDB connection; None if no temporary folder can be made.

    The root is kept until the process ends, because the connection may live that long. Without a path, DuckDB spills to
    `.tmp` in the working directory.
    """
    try:
        place = Path(tempfile.gettempdir()).absolute()
        _remove_dead(place)
        with _lock:
            root = _root(place)
            root.is_permanent = True
            root.spills += 1
            return root.path / f"spill-{root.spills}"
    except OSError:
        return None


def _roots_of(root: _Root) -> bool:
    """Unregister a root of this process; False if it is no longer registered."""
    for place, registered in list(_roots.items()):
        if registered is root:
            del _roots[place]
            return True
    return False


def _root(place: Path) -> _Root:
    """Return the root for folders at a place, which may itself be below a root."""
    for root in _roots.values():
        if place.is_relative_to(root.path):
            return root
    existing = _roots.get(place)
    if existing is not None:
        if existing.path.is_dir():
            return existing
        del _roots[place]  # another program emptied the temporary folder
        existing.forget()
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
    """Create and lock the owner file. It is locked before it gets its name, so no process sees it unlocked."""
    unnamed = root / f"{_OWNER}.new"
    lock = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # the file system has no locks: without an owner file only this process removes the folder
        os.close(lock)
        unnamed.unlink()
        return None
    try:
        os.write(lock, f"{_TITLE}\n{_kernel()}\n".encode())
        unnamed.rename(root / _OWNER)
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
    """Unregister all folders in a forked process, because they and the lock belong to its parent."""
    _folders.clear()
    while _roots:
        _roots.popitem()[1].forget()
    _lock.release()


# Fork only while no other thread is between locking an owner file and registering it.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_forget_all)
atexit.register(_close_all)


# ------------------------------------------------------------------------------------------ removing those of the dead


def _remove_dead(place: Path) -> None:
    """Remove some roots of dead processes, when this process first uses a place and then once an hour."""
    now_s = time.monotonic()
    with _lock:
        if now_s - _looked_s.get(place, -REMOVAL_EVERY_S) < REMOVAL_EVERY_S:
            return
        own = {root.path for root in _roots.values()}
        if any(place.is_relative_to(path) for path in own):
            return
        _looked_s[place] = now_s
        for root in _roots.values():
            if root.lock is not None:  # programs that empty temporary folders delete files by their age
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
        logger.debug("cannot list temporary folders in %s: %s", place, error)
    if removed:
        logger.info("%s: removed %d temporary folders of processes that were killed", place, removed)


def _removed(path: Path, deadline_s: float) -> bool:
    """Remove a root if its process is dead. Return whether it was removed."""
    try:
        folder = os.open(path, _SEARCHED)
    except OSError:  # a link, a file, another user's folder, or already removed
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
        logger.debug("%s is not removed: %s", path, error)
        return False
    finally:
        os.close(folder)


def _locked_owner(folder: int, place: Path) -> int | None:
    """Open and lock the owner file of a root; None unless it belongs to a dead process."""
    try:
        # NONBLOCK: opening a pipe of that name would block.
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
    except OSError:  # it is locked: the owner is alive, or another process is removing the folder
        pass
    except BaseException:
        os.close(owner)
        raise
    os.close(owner)
    return None


def _emptied(folder: int, deadline_s: float) -> bool:
    """Delete everything in a root except its owner file, without following links. False if the deadline passed."""
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
    """Whether a place is on a file system whose locks only this kernel manages. False on systems other than Linux."""
    try:
        real = place.resolve()
        kind, longest = "", -1
        for line in _MOUNTS.read_bytes().splitlines():
            left, _, right = line.partition(b" - ")
            mounted = os.fsdecode(_OCTAL.sub(lambda escape: bytes([int(escape[1], 8)]), left.split(b" ")[4]))
            if real.is_relative_to(mounted) and len(mounted) >= longest:  # a later mount hides an earlier one
                kind, longest = right.split(b" ")[0].decode(), len(mounted)
    except (OSError, IndexError, ValueError):
        return False
    return kind in _LOCAL


@lru_cache(maxsize=1)
def _kernel() -> str:
    """Return an id of the running kernel's boot, which all containers of a machine share; empty if it is unknown."""
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
