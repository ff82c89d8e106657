"""Fresh virtual environments of an interpreter, and programs that run in them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from rich.console import Console
from rich.table import Table

__all__ = ["ROOT", "Environment", "StepOutcome", "build", "environment", "find_python", "report"]

ROOT = Path(__file__).parents[1]
UV = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}") or "uv"
#: Variables of the user that would change the behaviour of an environment.
_DROPPED_VARIABLES = re.compile(r"^(AWS_|AZURE_|DAGSTER_|GOOGLE_|ICEDB_|PYTHON|VIRTUAL_ENV$|SPARK_|JAVA_HOME$)")
#: Maximum number of lines of a failed program's output in a report.
_LINES_MAX = 15


@dataclass(frozen=True)
class StepOutcome:
    """The outcome of one step. `result` is ok, failed or skipped; `detail` is the reason, or the versions."""

    name: str
    result: str
    seconds: float
    detail: str = ""


@dataclass(frozen=True)
class Environment:
    """A virtual environment that is deleted at the end. `folder` is for programs to work in."""

    root: Path
    folder: Path

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.root / "bin" / "python"

    def install(self, *requirements: str, options: Sequence[str] = ()) -> str:
        """Install packages. Returns "", or uv's error message."""
        command = [UV, "pip", "install", "--quiet", "--no-config", "--python", str(self.python), *options]
        return _run([*command, *requirements], self.folder, {})

    def run(self, *arguments: str, cwd: Path | None = None, **environ: str) -> str:
        """Run a program of the environment. Returns "", or its exit status and last lines of output."""
        programs = f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"
        return _run(
            [str(self.python.parent / arguments[0]), *arguments[1:]], cwd or self.folder, {"PATH": programs, **environ}
        )

    def versions(self, packages: Sequence[str]) -> str:
        """Return the versions of those packages that are installed, in one line."""
        code = (
            "import importlib.metadata as m\n"
            "for d in sorted(m.distributions(), key=lambda d: d.name.lower()):\n"
            "    print(d.name.lower().replace('_', '-'), d.version)"
        )
        done = subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=True, cwd=self.folder)
        installed = dict(line.split(" ", 1) for line in done.stdout.splitlines())
        return ", ".join(f"{name} {installed[name]}" for name in packages if name in installed)


@contextmanager
def environment(interpreter: str | Path = sys.executable) -> Iterator[Environment]:
    """Yield a fresh environment of an interpreter. Raises CalledProcessError if it cannot be created."""
    # The name is in the paths of all installed files, and some tests search these for the package's name.
    folder = Path(mkdtemp(prefix="release-"))
    try:
        (folder / "work").mkdir()
        made = Environment(folder / "venv", folder / "work")
        subprocess.run([UV, "venv", "--quiet", "--no-config", "--python", interpreter, made.root], check=True)
        yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def build(folder: Path) -> Path:
    """Build the source distribution, and from it the wheel. Returns the wheel's path."""
    subprocess.run([UV, "build", "--quiet", "--out-dir", folder, ROOT], check=True)
    [wheel] = folder.glob("*.whl")
    return wheel


def find_python(version: str) -> Path | None:
    """Return an interpreter of a version such as 3.12 from PATH, pyenv or uv, or None. Nothing is downloaded."""
    named = shutil.which(f"python{version}")
    candidates = [Path(named)] if named else []
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates += sorted((pyenv / "versions").glob(f"{version}.*/bin/python"), reverse=True)
    kept = Path(os.environ.get("UV_PYTHON_INSTALL_DIR", Path.home() / ".local" / "share" / "uv" / "python"))
    candidates += sorted(kept.glob(f"cpython-{version}.*/bin/python{version}"), reverse=True)
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in candidates:
        # A program on PATH may be a shim without an interpreter.
        done = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return candidate
    return None


def report(title: str, outcomes: Sequence[StepOutcome]) -> int:
    """Print a table of the outcomes. Returns the exit status: 1 if one failed."""
    console = Console()
    drawn = Table("", "result", "seconds", "", title=title)
    colours = {"ok": "green", "failed": "red", "skipped": "yellow"}
    for outcome in outcomes:
        first = outcome.detail if outcome.result != "failed" else "see above"
        drawn.add_row(outcome.name, f"[{colours[outcome.result]}]{outcome.result}[/]", f"{outcome.seconds:.0f}", first)
    for outcome in outcomes:
        if outcome.result == "failed":
            console.print(f"[red]{outcome.name}[/]")
            console.print(outcome.detail, markup=False, highlight=False)
    console.print(drawn)
    return int(any(outcome.result == "failed" for outcome in outcomes))


def _run(command: Sequence[str], cwd: Path, environ: Mapping[str, str]) -> str:
    inherited = {name: value for name, value in os.environ.items() if not _DROPPED_VARIABLES.match(name)}
    started = time.monotonic()
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**inherited, "AWS_EC2_METADATA_DISABLED": "true", **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if not done.returncode:
        return ""
    last = "\n".join(done.stdout.splitlines()[-_LINES_MAX:])
    return f"{' '.join(command)}\nstatus {done.returncode} after {time.monotonic() - started:.0f} s\n{last}"
