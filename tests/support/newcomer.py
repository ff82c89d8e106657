"""Run the quickstart and the tutorials as a user with only a clone and Python does (`make newcomer`).

    python tests/support/newcomer.py                  a fresh clone of the commit, a fresh environment, all pages
    python tests/support/newcomer.py --uncommitted    the same with the working tree
    python tests/support/newcomer.py --keep           and keep its folder

Each block of a page is a step, in order:

    ```sh           runs in a shell, and must succeed; the next block has the same folder and variables
    ```text         is the output of the `sh` block before it; `...` matches any text, alone on a line any lines
    ```python       and other kinds of files are saved under the name in the paragraph before them

An address on 127.0.0.1 that a step prints is opened, and must answer. Any other block is an error, and so is a step
whose result differs from the page. The program needs only the standard library; `pip install` finds a wheel of the
clone.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
QUICKSTART = Path("docs") / "quickstart.md"
TUTORIAL = Path("docs") / "tutorial.md"
#: Continues in the folder of the tutorial.
DAGSTER = Path("docs") / "tutorial-dagster.md"
#: The suffix of the file of a block in a language.
SUFFIXES = {"python": ".py", "sql": ".sql", "yaml": ".yaml"}
#: The terminal of the steps.
COLUMNS, LINES = 100, 50
SECONDS_MAX = 900
#: Variables of the machine that a newcomer does not have.
OURS = ("AWS_", "ICEDB_", "DAGSTER_", "PYTHON", "VIRTUAL_ENV", "LAKE_ROOT", "COLUMNS", "LINES")
_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Misled(Exception):
    """A step failed, or its output differs from the page. The message has the line and the output."""


@dataclass(frozen=True)
class Step:
    """A block of the page. `file`: the file that it becomes. `printed`: the documented output."""

    line: int
    section: str
    language: str
    text: str
    file: str | None = None
    printed: str | None = None

    def __str__(self) -> str:
        first, *more = (self.text.strip() or " ").splitlines()
        what = f"write {self.file}" if self.file else first + (" ..." if more else "")
        return f"line {self.line:3}  {what}"


def steps_of(page: str) -> list[Step]:
    """Parse the steps of a page. Raises Misled for a block that is no step."""
    steps: list[Step] = []
    section, paragraph, ended = "", "", True
    lines = iter(enumerate(page.splitlines(), 1))
    for number, line in lines:
        if not line.startswith("```"):
            section = line.lstrip("# ") if line.startswith("#") else section
            if line.strip():  # the last paragraph before the block, across blank lines
                paragraph = line if ended else f"{paragraph} {line}"
            ended = not line.strip()
            continue
        language, text = line.removeprefix("```").strip(), "".join(_block(lines, number))
        if language == "text":
            steps[-1:] = [_printing(steps[-1:], number, text)]
        elif language == "sh":
            steps.append(Step(number, section, language, text))
        elif language in SUFFIXES:
            steps.append(Step(number, section, language, text, file=_file_of(paragraph, language, number)))
        else:
            raise Misled(f"line {number}: a block of {language or 'no language'}: nobody knows what to do with it")
        paragraph, ended = "", True
    return steps


def _block(lines: Iterator[tuple[int, str]], begin: int) -> Iterator[str]:
    for _, line in lines:
        if line.startswith("```"):
            return
        yield f"{line}\n"
    raise Misled(f"line {begin}: the block has no end")


def _printing(last: Sequence[Step], number: int, text: str) -> Step:
    if not last or last[0].language != "sh" or last[0].printed is not None:
        raise Misled(f"line {number}: a block of text is what the commands before it print, and there are none")
    return replace(last[0], printed=text)


def _file_of(paragraph: str, language: str, number: int) -> str:
    names: list[str] = re.findall(rf"`([\w./-]+\{SUFFIXES[language]})`", paragraph)
    if len(names) != 1 or not paragraph.endswith(":"):
        raise Misled(f"line {number}: the paragraph before a block of {language} must name its file, and end with ':'")
    return names[0]


def quick(steps: Sequence[Step]) -> list[Step]:
    """Return the steps that install nothing. The test suite follows them."""
    installing = re.compile(r"-m venv|pip install|/activate")
    return [step for step in steps if not installing.search(step.text)]


def follow(steps: Sequence[Step], folder: Path, env: Mapping[str, str], *, tell: Callable[[str], None]) -> None:
    """Run the steps in a folder, and report each with `tell`. Raises Misled."""
    shell = _Shell(folder, env)
    began = time.monotonic()
    for step in steps:
        before = time.monotonic()
        if step.file is None:
            _check(step, shell.run(step.text, step))
        else:
            path = shell.folder / step.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step.text)
        tell(f"{time.monotonic() - before:6.1f} s  {step}")
    tell(f"{time.monotonic() - began:6.1f} s  in all, {len(steps)} steps")


class _Shell:
    """A shell whose folder and variables remain for the next block."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.folder = folder
        terminal = {"TERM": "dumb", "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        self._env = dict(env) | terminal

    def run(self, text: str, step: Step) -> str:
        """Run commands and return their output. Raises Misled if they fail or do not end."""
        with tempfile.TemporaryDirectory() as state:
            left = Path(state) / "left"
            script = f"{text}\n{{ pwd; env -0; }} >{left}\n"
            status, printed = _in_terminal(["sh", "-ec", script], self.folder, self._env)
            if status != 0:
                raise Misled(f"{step}\nended with status {status}, and printed:\n{printed}")
            folder, _, variables = left.read_text().partition("\n")
        self.folder = Path(folder)
        self._env = dict(pair.split("=", 1) for pair in variables.split("\0") if "=" in pair)
        return printed


def _in_terminal(command: list[str], folder: Path, env: Mapping[str, str]) -> tuple[int, str]:
    """Return the exit status and all output, as a terminal shows it."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as seen:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        with os.fdopen(theirs, "wb", buffering=0) as terminal:
            process = subprocess.Popen(
                command, cwd=folder, env=dict(env), stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal,
                start_new_session=True,
            )  # fmt: skip
        printed, deadline = b"", time.monotonic() + SECONDS_MAX
        while True:
            ended = process.poll() is not None  # checked before the last read of the terminal
            if select.select([seen], [], [], 0 if ended else 0.2)[0]:
                with contextlib.suppress(OSError):  # the other end is closed
                    if piece := seen.read(65536):
                        printed += piece
                        continue
            if ended:
                break
            if time.monotonic() > deadline:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise Misled(f"{command[-1]}\ndid not end within {SECONDS_MAX} s, and printed:\n{_plain(printed)}")
    return process.returncode, _plain(printed)


def _plain(printed: bytes) -> str:
    text = _ESCAPES.sub("", printed.decode(errors="replace")).replace("\r\n", "\n")
    return "\n".join(line.rpartition("\r")[2].rstrip() for line in text.splitlines())


def _check(step: Step, printed: str) -> None:
    lines = printed.strip("\n") + "\n"
    if step.printed is not None and not re.fullmatch(_pattern(step.printed), lines):
        raise Misled(f"{step}\nis said to print:\n{step.printed}\nand printed:\n{printed}")
    for address in dict.fromkeys(_ADDRESS.findall(printed)):
        try:
            urllib.request.urlopen(address, timeout=60).close()
        except OSError as error:  # also the answer of a server that it is not well
            raise Misled(f"{step}\nsays {address}, which does not answer: {error}") from None


def _pattern(text: str) -> str:
    """Return a pattern in which `...` matches any text within a line, or any lines if it is alone on a line."""
    return "".join(
        r"(?:[^\n]*\n)*?"
        if line.strip() == "..."
        else r"[^\n]*".join(map(re.escape, line.rstrip().split("..."))) + r"\n"
        for line in text.strip("\n").splitlines()
    )


def main() -> int:
    """Follow the quickstart and the tutorials. The exit status is 1 if a step fails."""
    parser = argparse.ArgumentParser(description="Follow the quickstart and the tutorials in a fresh clone.")
    parser.add_argument("--uncommitted", action="store_true", help="the files as they are, not what is committed")
    parser.add_argument("--keep", action="store_true", help="do not delete the folder at the end")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="icedb-newcomer-"))
    try:
        env = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}
        paths = env["PATH"].split(os.pathsep)
        env["PATH"] = os.pathsep.join(path for path in paths if not Path(path).is_relative_to(ROOT))
        clone = folder / "clone"
        _say(f"a clone, and a wheel of it, in {folder}")
        (_copy if arguments.uncommitted else _clone)(clone)
        env |= _wheel(clone, folder, env)
        for pages in ((QUICKSTART,), (TUTORIAL, DAGSTER)):
            own = folder / pages[0].stem
            own.mkdir()
            follow([step for page in pages for step in steps_of((clone / page).read_text())], own, env, tell=_say)
        _say("The pages do what they say.")
    except Misled as error:
        _say(str(error))
        return 1
    finally:
        _end(folder)
        if not arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _clone(target: Path) -> None:
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(target)], check=True)


def _copy(target: Path) -> None:
    """Copy the files of the working tree that Git does not ignore."""
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def _wheel(clone: Path, folder: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Build the clone's wheel, and return the variable with which pip finds it."""
    wheels = folder / "wheels"
    builder = folder / "builder"
    subprocess.run([sys.executable, "-m", "venv", str(builder)], check=True, env=dict(env))
    build = [str(builder / "bin" / "pip"), "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels), str(clone)]
    subprocess.run(build, check=True, env=dict(env))
    return {"PIP_FIND_LINKS": f"{wheels} {env.get('PIP_FIND_LINKS', '')}".strip()}


def _end(folder: Path) -> None:
    """Stop the servers of an unfinished page."""
    for stack in folder.rglob(".icedb-dagster"):
        for command in folder.rglob("bin/icedb-dagster"):
            subprocess.run([str(command), "down", "--project-dir", str(stack.parent)], capture_output=True)


if __name__ == "__main__":
    sys.exit(main())
