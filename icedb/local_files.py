"""Put a file into a folder so that a power failure leaves all of it or nothing.

The content is written and synced under a staged name, which listings skip (it ends in `#` and digits); a hard link
then gives it its key, whole and only if nothing has that key; last, its folder is synced, so that the name stays, and
once per process those above it.
A crash may leave a staged file behind. It is in nobody's way, and may be deleted by hand.

Deletions are not synced: one that a power failure undoes finds its tombstone still in the log, and is repeated.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from stat import S_ISDIR

from icedb.errors import InvalidURI, UnsupportedStore
from icedb.format.names import has_unsafe_segment

__all__ = ["check_folder", "create_file"]

_COPY_BYTES = 1024 * 1024
# link(2): EPERM is what a file system without hard links says.
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
# Some network file systems cannot sync a folder, and keep names safe in their own way.
_CANNOT_SYNC = frozenset({errno.EINVAL, errno.EBADF, errno.ENOTSUP})

_numbers = count(1)

# Folders whose own names and those above them this process has synced, and which folders they were then.
_synced: dict[Path, tuple[tuple[int, int], ...]] = {}
_SYNCED_MAX = 10_000


def check_folder(folder: Path) -> bool:
    """Whether the folder is there. Raises InvalidURI for a file, and for a path below a file."""
    try:
        if S_ISDIR(folder.stat().st_mode):
            return True
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        pass
    raise InvalidURI(
        f"{folder}: a table is a folder, and this path is a file, or lies below one. Choose another path, or move the "
        "file away."
    )


def create_file(root: Path, key: str, body: bytes | Path, *, fsync: bool) -> None:
    """Create the file of a key below `root`, whole. Raises FileExistsError, UnsupportedStore, OSError."""
    if has_unsafe_segment(key.split("/")):
        raise InvalidURI(f"{root}: '{key}' is no object's key: it has an empty, '.' or '..' segment.")
    path = root / key
    _make_folders(path.parent, fsync=fsync)
    with _staged(path.parent, body, fsync=fsync) as staged:
        _link(staged, path, root)
    if fsync:
        _sync_folder(path.parent)
        _sync_names(path.parent, root)


@contextmanager
def _staged(folder: Path, body: bytes | Path, *, fsync: bool) -> Iterator[Path]:
    """A file with this content and a name that no listing shows; it is gone at the end."""
    path, file = _open_staged(folder)
    try:
        with os.fdopen(file, "wb") as target:
            if isinstance(body, Path):
                with body.open("rb") as source:
                    shutil.copyfileobj(source, target, _COPY_BYTES)
            else:
                target.write(body)
            target.flush()
            if fsync:
                os.fsync(target.fileno())
        yield path
    finally:
        with suppress(OSError):
            path.unlink()


def _open_staged(folder: Path) -> tuple[Path, int]:
    while True:  # what a crash of a process of our number left takes a number each, never the folder
        path = folder / f".staged#{os.getpid()}{next(_numbers):06}"
        with suppress(FileExistsError):
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)


def _link(staged: Path, path: Path, root: Path) -> None:
    try:
        path.hardlink_to(staged)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        # To write under the final name would show half an object; to rename would replace one.
        raise UnsupportedStore(
            f"{root}: the file system has no hard links, without which an object cannot appear whole and only once. "
            "Choose a folder on another file system (ext4, XFS, APFS, NFS have them), or an S3 store."
        ) from None


def _make_folders(folder: Path, *, fsync: bool) -> None:
    """Make what is missing of a path, from the top; each new name is synced before anything is put below it."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
        if folder == folder.parent:
            break
    for new in reversed(missing):
        with suppress(FileExistsError):  # by another writer; if it is a file, what is put below it fails
            new.mkdir()
        if fsync:
            _sync_folder(new.parent)


def _sync_names(folder: Path, root: Path) -> None:
    """Make sure that the names of a folder and of those above it stay, up to the root.

    Another writer may have made one of them just now, and not have synced it yet. Once is enough: a name that was
    synced stays as long as the folder is the same.
    """
    if folder == root:
        return
    names = [folder, *(p for p in folder.parents if p.is_relative_to(root))]
    now = tuple((found.st_dev, found.st_ino) for found in map(os.stat, names))
    if _synced.get(folder) == now:
        return
    for name in names[1:]:
        _sync_folder(name)
    if len(_synced) >= _SYNCED_MAX:
        _synced.clear()
    _synced[folder] = now


def _sync_folder(folder: Path) -> None:
    try:
        file = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return  # a folder above the table that may be passed, but not read: it is not ours
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
    finally:
        os.close(file)
