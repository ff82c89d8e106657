"""Files that appear only when they are complete."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EEXIST, ENOTDIR
from pathlib import Path
from typing import IO

__all__ = ["complete_file"]


@contextmanager
def complete_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that gets its name, or replaces the earlier file, when the block ends without an error.

    Raises NotADirectoryError if the folder does not exist, FileExistsError if the path exists and is no regular file,
    and other OSErrors.
    """
    if not path.parent.is_dir():
        raise NotADirectoryError(ENOTDIR, "there is no such folder", str(path.parent))
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "not a regular file"
        raise FileExistsError(EEXIST, f"it is {kind}, and was not replaced; give the name of a file", str(path))
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        with unfinished.open("wb") as file:
            yield file
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
