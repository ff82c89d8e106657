"""Where the local stack keeps its files: one folder, `.icedb-dagster`, inside the project.

    state.json          which processes were started (mode 0600)
    lock                held while one `up` or `down` works
    postgres.password   of the embedded server (mode 0600)
    postgres/           its data folder
    dagster_home/       DAGSTER_HOME: dagster.yaml, artifacts, compute logs
    logs/               what the processes print (mode 0600)

The folder ignores itself in git. Files with secrets are written to a temporary file and renamed, so nobody ever
reads half of one. Everything inside is created here; nothing outside is touched, no parent's mode or owner either.
"""

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from icedb.errors import StackError

__all__ = ["StackLayout", "Progress", "open_layout", "write_private"]

Progress = Callable[[str], None]

# A cold start of everything takes under a minute on 2 cores; longer than this, the other one is stuck.
LOCK_TIMEOUT_S = 180


@dataclass(frozen=True, slots=True)
class StackLayout:
    """The paths of one project's stack."""

    project: Path
    root: Path

    @property
    def state(self) -> Path:
        """Which processes were started."""
        return self.root / "state.json"

    @property
    def password(self) -> Path:
        """The embedded Postgres' password."""
        return self.root / "postgres.password"

    @property
    def postgres(self) -> Path:
        """The folder of the embedded Postgres, unless it had to move out of the project."""
        return self.root / "postgres"

    @property
    def dagster_home(self) -> Path:
        """DAGSTER_HOME."""
        return self.root / "dagster_home"

    @property
    def workspace(self) -> Path:
        """The code locations that web server and daemon load."""
        return self.project / "workspace.yaml"

    def log(self, name: str) -> Path:
        """What a process prints."""
        return self.root / "logs" / f"{name}.log"

    def create(self) -> None:
        """Make the folders that are missing."""
        # The root is not 0700: the embedded Postgres may run as another user, and has to walk through it.
        self.root.mkdir(mode=0o755, exist_ok=True)
        (self.root / "logs").mkdir(mode=0o700, exist_ok=True)
        self.dagster_home.mkdir(mode=0o700, exist_ok=True)
        ignore = self.root / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")

    @contextmanager
    def locked(self, *, progress: Progress) -> Iterator[None]:
        """Hold the folder against other `up` and `down`. The kernel lets go when the process dies."""
        with (self.root / "lock").open("a") as file:
            _lock(file.fileno(), self.project, progress)
            yield


def open_layout(project_dir: str | Path) -> StackLayout:
    """The layout of a project folder, which has to exist; creates nothing."""
    project = Path(project_dir).expanduser().resolve()
    if not project.is_dir():
        raise StackError(f"{project} is not a folder: pass the project's folder with --project-dir")
    return StackLayout(project=project, root=project / ".icedb-dagster")


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, at once or not at all."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _lock(descriptor: int, project: Path, progress: Progress) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise StackError(
                    f"another icedb-dagster has been starting or stopping the stack of {project} for "
                    f"{LOCK_TIMEOUT_S} s: end it, then try again"
                ) from None
        if not told:
            progress("Waiting for another icedb-dagster in this folder")
            told = True
        time.sleep(0.1)
