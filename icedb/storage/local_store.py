"""Puts, reads, listings and deletions of a table's files in a local folder.

No symbolic link below the table's folder is followed. Each segment of a key is opened relative to the folder above it,
so a link that is created concurrently is detected too. The path of the table's folder may contain links.

A put survives a power failure completely or not at all:

1. The content is written and synced under a staged name, which listings skip (it ends in `#` and digits).
2. A hard link with the name of the key is created, which fails if the key exists.
3. The folder is synced, so that the name persists. The folders above it are synced once per process.

A crash may leave a staged file. No reader uses it, and the orphan sweep deletes it when it is old enough.

Deletions are not synced. If a power failure undoes one, its tombstone is still in the log, and cleanup repeats it.

Paths are texts here: the objects of `pathlib` take more processor time than the system calls of a small put.
"""

# ruff: noqa: PTH102, PTH108, PTH112, PTH116, PTH118, PTH120

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from itertools import accumulate, count, groupby
from pathlib import Path
from stat import S_ISDIR, S_ISLNK, S_ISREG

from icedb.errors import InvalidURI, SymbolicLink, UnsupportedStore
from icedb.format.keys import has_unsafe_segment

__all__ = ["check_folder", "check_links", "create_file", "delete_files", "file_status", "list_files", "open_file",
           "segments_of"]  # fmt: skip

_COPY_BYTES = 1024 * 1024
# Errors of link(2) on a file system without hard links.
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
# Errors of network file systems that cannot sync a folder, and persist names by other means.
_CANNOT_SYNC = frozenset({errno.EINVAL, errno.EBADF, errno.ENOTSUP})

_numbers = count(1)

# Folder -> device and inode of it and of the folders above it, when this process synced their names.
_synced: dict[str, tuple[tuple[int, int], ...]] = {}
_SYNCED_MAX = 10_000


# With O_PATH, if the system has it, the search permission of a folder is enough to pass through it.
_STEP = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# NONBLOCK: opening a pipe would wait for its writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Files that listings skip, and those of them that interrupted puts of this module leave.
_STAGED = re.compile(r"#[0-9]+\Z")
_OURS = re.compile(r"\.staged#[0-9]+\Z")


def check_folder(folder: Path) -> bool:
    """Whether the folder exists. Raises InvalidURI for a file, and for a path below a file."""
    try:
        if S_ISDIR(os.stat(folder).st_mode):
            return True
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        pass
    raise InvalidURI(
        f"{folder}: a table is a folder, but this path is a file or is below one. Choose another path, or move the "
        "file away."
    )


# ------------------------------------------------------------------------------------------ without following links


def segments_of(key: str) -> list[str]:
    """Split a key into its segments. Raises ValueError for an invalid key."""
    segments = key.split("/")
    if has_unsafe_segment(segments) or _CONTROL.search(key):
        raise ValueError(key)
    return segments


def _open_folder(root: str, segments: Sequence[str], *, flags: int = _STEP) -> int:
    """Open a folder below `root`, one segment at a time. Raises SymbolicLink and OSError."""
    folder = os.open(root, flags if not segments else _STEP)
    for number, segment in enumerate(segments, start=1):
        above = folder
        try:
            folder = os.open(segment, (flags if number == len(segments) else _STEP) | os.O_NOFOLLOW, dir_fd=above)
        except OSError as error:
            raise _explained(error, root, segments[:number], above) from None
        finally:
            os.close(above)
    return folder


def _explained(error: OSError, root: str, segments: Sequence[str], above: int) -> OSError:
    """Return the error itself, or SymbolicLink if the last segment is a link, for which systems have several errors."""
    with suppress(OSError):
        if S_ISLNK(os.stat(segments[-1], dir_fd=above, follow_symlinks=False).st_mode):
            return _link_error(root, "/".join(segments))
    return error


def _link_error(root: str, key: str) -> SymbolicLink:
    return SymbolicLink(
        f"{root}: '{key}' is a symbolic link. Links inside a table are not followed, because they may lead to any file "
        "of this machine. Put the file or folder itself in its place. To use another disk, mount it there."
    )


def open_file(root: str, key: str) -> FileIO:
    """Open the file of a key. Raises FileNotFoundError, SymbolicLink, OSError, ValueError."""
    *above, name = segments_of(key)
    folder = _open_folder(root, above)
    try:
        number = os.open(name, _FILE, dir_fd=folder)
    except OSError as error:
        raise _explained(error, root, [*above, name], folder) from None
    finally:
        os.close(folder)
    if not S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise FileNotFoundError(errno.ENOENT, "no file", key)
    return FileIO(number, "rb")


def file_status(root: str, key: str) -> os.stat_result:
    """Return the status of the file of a key. Raises FileNotFoundError, SymbolicLink, OSError, ValueError."""
    *above, name = segments_of(key)
    folder = _open_folder(root, above)
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    finally:
        os.close(folder)
    if S_ISLNK(status.st_mode):
        raise _link_error(root, key)
    if not S_ISREG(status.st_mode):
        raise FileNotFoundError(errno.ENOENT, "no file", key)
    return status


def list_files(
    root: str, prefix: str, *, after: str = "", unfinished: bool = False
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield each file and link below a folder (`prefix` without a slash at the end) with its own status, unordered.

    `unfinished`: yield the staged files of puts instead. Raises SymbolicLink if the prefix leads through a link,
    OSError, and ValueError for a name that cannot be in a key.
    """
    try:
        folder = _open_folder(root, segments_of(prefix) if prefix else [], flags=_LISTED)
    except (FileNotFoundError, NotADirectoryError):
        return
    yield from _listed(folder, f"{prefix}/" if prefix else "", after, _is_unfinished if unfinished else _is_finished)


def _is_finished(name: str) -> bool:
    return _STAGED.search(name) is None


def _is_unfinished(name: str) -> bool:
    return _OURS.match(name) is not None


def _listed(
    folder: int, prefix: str, after: str, wanted: Callable[[str], bool]
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files below an open folder, and close it."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                key = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    try:
                        below = os.open(entry.name, _LISTED | os.O_NOFOLLOW, dir_fd=folder)
                    except (FileNotFoundError, NotADirectoryError):
                        continue  # removed or replaced concurrently
                    yield from _listed(below, f"{key}/", after, wanted)
                elif key > after and wanted(entry.name):
                    if not entry.name.isprintable() and _cannot_be_in_a_key(entry.name):
                        raise ValueError(key)
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        if S_ISREG(status.st_mode) or S_ISLNK(status.st_mode):
                            yield key, status
    finally:
        os.close(folder)


def _cannot_be_in_a_key(name: str) -> bool:
    """Whether a name has control characters, or is not UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return True
    return _CONTROL.search(name) is not None


def delete_files(root: str, keys: Iterable[str]) -> None:
    """Delete files, or links themselves. Missing files are skipped. Raises SymbolicLink, OSError, ValueError."""
    for above, names in groupby((segments_of(key) for key in keys), key=lambda segments: segments[:-1]):
        try:
            folder = _open_folder(root, above)
        except FileNotFoundError:
            continue
        try:
            for *_, name in names:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
        finally:
            os.close(folder)


def check_links(root: str, keys: Iterable[str]) -> None:
    """Raise SymbolicLink if a key that an engine will open by path leads through a link. Each folder is checked once.

    A link that is created between this check and the engine's access is followed.
    """
    checked = {""}
    for key in keys:
        folder = key.rpartition("/")[0]
        if folder not in checked:
            segments = folder.split("/")
            for number in range(1, len(segments) + 1):
                above = "/".join(segments[:number])
                if above not in checked:
                    _reject_link(root, above)
                    checked.add(above)
        _reject_link(root, key)


def _reject_link(root: str, key: str) -> None:
    try:
        mode = os.lstat(f"{root}/{key}").st_mode
    except OSError:
        return  # opening it raises the error
    if S_ISLNK(mode):
        raise _link_error(root, key)


# ------------------------------------------------------------------------------------------ putting


def create_file(root: Path, key: str, body: bytes | Path | FileIO, *, fsync: bool) -> None:
    """Create the file of a key below `root` atomically.

    Raises FileExistsError, SymbolicLink, UnsupportedStore, InvalidURI and OSError.
    """
    segments = key.split("/")
    if has_unsafe_segment(segments):
        raise InvalidURI(f"{root}: '{key}' is not a valid key: it has an empty, '.' or '..' segment.")
    top, path = str(root), os.path.join(root, key)
    # The root, and the folders of the key from the top.
    folders = list(accumulate(segments[:-1], os.path.join, initial=top))
    above = list(accumulate(segments[:-1], "{}/{}".format))
    for folder in above:
        _reject_link(top, folder)
    _make_folders(folders[-1], fsync=fsync)
    with _staged(folders[-1], body, fsync=fsync) as staged:
        _link(staged, path, top)
    if fsync:
        _sync_folder(folders[-1])
        _sync_names(folders)


@contextmanager
def _staged(folder: str, body: bytes | Path | FileIO, *, fsync: bool) -> Iterator[str]:
    """Write a file with this content and a staged name, and remove that name at the end."""
    path, file = _open_staged(folder)
    try:
        with os.fdopen(file, "wb") as target:
            if isinstance(body, Path):
                with body.open("rb") as source:
                    shutil.copyfileobj(source, target, _COPY_BYTES)
            elif isinstance(body, bytes):
                target.write(body)
            else:
                shutil.copyfileobj(body, target, _COPY_BYTES)
            target.flush()
            if fsync:
                os.fsync(target.fileno())
        yield path
    finally:
        with suppress(OSError):
            os.unlink(path)


def _open_staged(folder: str) -> tuple[str, int]:
    while True:  # skip names that a crashed process with the same process id left
        path = f"{folder}/.staged#{os.getpid()}{next(_numbers):06}"
        with suppress(FileExistsError):
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)


def _link(staged: str, path: str, root: str) -> None:
    try:
        os.link(staged, path)
    except FileNotFoundError:  # the orphan sweep deleted the staged file of a process that was paused for a day
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE)) from None
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        # Writing under the final name would expose a partial object, and renaming would replace an existing one.
        raise UnsupportedStore(
            f"{root}: the file system has no hard links, without which a create-only put cannot be atomic. "
            "Choose a folder on another file system (ext4, XFS, APFS, NFS have them), or an S3 store."
        ) from None


def _make_folders(folder: str, *, fsync: bool) -> None:
    """Create the missing folders of a path, from the top. Each new name is synced before anything is put below it."""
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
        if folder == os.path.dirname(folder):
            break
    for new in reversed(missing):
        with suppress(FileExistsError):  # by another writer; if it is a file, the put below it fails
            os.mkdir(new)
        if fsync:
            _sync_folder(os.path.dirname(new))


def _sync_names(folders: Sequence[str]) -> None:
    """Sync the names of a folder and of those above it. `folders`: from the root to the folder itself.

    Another writer may have created one of them just now without having synced it yet. Once is enough, because a synced
    name persists as long as the folder is the same.
    """
    *above, folder = folders
    if not above:
        return
    now = tuple((status.st_dev, status.st_ino) for status in map(os.stat, folders))
    if _synced.get(folder) == now:
        return
    for name in reversed(above):
        _sync_folder(name)
    if len(_synced) >= _SYNCED_MAX:
        _synced.clear()
    _synced[folder] = now


def _sync_folder(folder: str) -> None:
    try:
        file = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return  # a folder above the table with search permission only, which other programs manage
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
    finally:
        os.close(file)
