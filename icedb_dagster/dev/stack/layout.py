"""The files of the local stack: one folder, `.icedb-dagster`, inside the project.

    state.json          the processes that were started (mode 0600)
    lock                held while an `up` or `down` runs
    postgres.password   of the embedded server (mode 0600)
    postgres/           its data folder
    dagster_home/       DAGSTER_HOME: dagster.yaml, artifacts, compute logs
    workspace.yaml      the addresses of the code servers, while they run
    logs/               output of the processes (mode 0600)

The folder ignores itself in git. Files with secrets are written to a temporary file and renamed, so no reader sees half
of one. Everything inside is created here. Nothing outside is changed, not even the mode or owner of a parent.
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

# A cold start takes under a minute on 2 cores. After this time, the other process is stuck.
LOCK_TIMEOUT_S = 180


@dataclass(frozen=True, slots=True)
class StackLayout:
    """The paths of a project's stack."""

    project: Path
    root: Path

    @property
    def state(self) -> Path:
        """The processes that were started."""
        return self.root / "state.json"

    @property
    def password(self) -> Path:
        """The password of the embedded Postgres."""
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
        """The code locations of the project."""
        return self.project / "workspace.yaml"

    @property
    def code_addresses(self) -> Path:
        """The code locations with the addresses of their code servers, for web server and daemon."""
        return self.root / "workspace.yaml"

    @property
    def logs(self) -> Path:
        """The folder of the logs."""
        return self.root / "logs"

    def log(self, name: str) -> Path:
        """Return the log file of a process."""
        return self.logs / f"{name}.log"

    def create(self) -> None:
        """Create missing folders."""
        # The root is not 0700, because the embedded Postgres may run as another user and must traverse it.
        self.root.mkdir(mode=0o755, exist_ok=True)
        self.logs.mkdir(mode=0o700, exist_ok=True)
        self.dagster_home.mkdir(mode=0o700, exist_ok=True)
        ignore = self.root / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")

    @contextmanager
    def locked(self, *, progress: Progress) -> Iterator[None]:
        """Hold the folder's lock against other `up` and `down`. The kernel releases it if the process dies."""
        with (self.root / "lock").open("a") as file:
            _lock(file.fileno(), self.project, progress)
            yield


def open_layout(project_dir: str | Path) -> StackLayout:
    """Return the layout of a project folder, which must exist. Creates nothing."""
    project = Path(project_dir).expanduser().resolve()
    if not project.is_dir():
        raise StackError(f"{project} is not a folder. Pass the project's folder with --project-dir")
    return StackLayout(project=project, root=project / ".icedb-dagster")


def write_private(path: Path, content: bytes) -> None:
    """Atomically write a file that only its owner can read."""
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
    reported = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise StackError(
                    f"another icedb-dagster has been starting or stopping the stack of {project} for "
                    f"{LOCK_TIMEOUT_S} s. Stop it, then try again"
                ) from None
        if not reported:
            progress("Waiting for another icedb-dagster in this folder")
            reported = True
        time.sleep(0.1)
