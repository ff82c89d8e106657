"""Follows the tutorial word by word, as somebody would who has only a clone and Python: `make newcomer`.

    python tests/support/newcomer.py                  a fresh clone of what is committed, a fresh environment, all pages
    python tests/support/newcomer.py --uncommitted    the same with the files as they are now
    python tests/support/newcomer.py --keep           and leave its folder there, to look at

Each block of the page is a step, in the order in which they stand:

    ```sh           is typed into a shell, and must end well; the shell's folder and variables go on to the next
    ```text         is what the block of `sh` before it prints; `...` stands for anything, alone on a line for any lines
    ```python       and other kinds of files are saved under the name that the paragraph before them says

An address on 127.0.0.1 that a step prints is opened, and must answer. Whatever the page shows that is none of these is
an error, and so is a step that does not do what the page says. It needs nothing but the standard library, for that is
what a newcomer has; the package that `pip install` looks for is a wheel of the clone, which it finds before others.
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
TUTORIAL = Path("docs") / "tutorial.md"
#: What a block of a language is saved as.
SUFFIXES = {"python": ".py", "sql": ".sql", "yaml": ".yaml"}
#: Of the terminal that the steps write to.
COLUMNS, LINES = 100, 50
SECONDS_MAX = 900
#: What of the machine's environment a newcomer does not have.
OURS = ("AWS_", "ICEDB_", "DAGSTER_", "PYTHON", "VIRTUAL_ENV", "LAKE_ROOT", "COLUMNS", "LINES")
_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Misled(Exception):
    """The page says something that is not so; the message says where and what happened."""


@dataclass(frozen=True)
class Step:
    """A block of the page. `file`: what it is saved as. `printed`: what the page says that it prints."""

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
    """The steps of a page. Raises Misled for a block of which nobody could say what to do with it."""
    steps: list[Step] = []
    section, paragraph, ended = "", "", True
    lines = iter(enumerate(page.splitlines(), 1))
    for number, line in lines:
        if not line.startswith("```"):
            section = line.lstrip("# ") if line.startswith("#") else section
            if line.strip():  # the last paragraph is the one before a block, whatever blank lines are between
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
    """The steps that need neither a network nor servers: what the suite follows."""
    slow = {step.section for step in steps if "icedb-dagster up" in step.text}
    installing = re.compile(r"-m venv|pip install|/activate")
    return [step for step in steps if step.section not in slow and not installing.search(step.text)]


# ------------------------------------------------------------------------------------------------------- follow


def follow(steps: Sequence[Step], folder: Path, env: Mapping[str, str], *, tell: Callable[[str], None]) -> None:
    """Do what the steps say, in a folder. `tell` gets a line for each. Raises Misled."""
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
    """A shell whose folder and variables outlive a block."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.folder = folder
        terminal = {"TERM": "dumb", "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        self._env = dict(env) | terminal

    def run(self, text: str, step: Step) -> str:
        """What it prints. Raises Misled when it fails, or does not end."""
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
    """The exit status and what is printed, errors too, to a terminal: as a person would see it."""
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
            ended = process.poll() is not None  # asked before the terminal, so that nothing is left in it
            if select.select([seen], [], [], 0 if ended else 0.2)[0]:
                with contextlib.suppress(OSError):  # nobody holds the other end any more
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
    """What matches a text in which `...` is anything within a line, and a line of it any lines."""
    return "".join(
        r"(?:[^\n]*\n)*?"
        if line.strip() == "..."
        else r"[^\n]*".join(map(re.escape, line.rstrip().split("..."))) + r"\n"
        for line in text.strip("\n").splitlines()
    )


# ----------------------------------------------------------------------------------------------- a fresh beginning


def main() -> int:
    """Follow the tutorial; the exit status is 1 where it misleads."""
    parser = argparse.ArgumentParser(description="Follow the tutorial word by word in a fresh clone.")
    parser.add_argument("--uncommitted", action="store_true", help="the files as they are, not what is committed")
    parser.add_argument("--keep", action="store_true", help="do not delete the folder at the end")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="icedb-newcomer-"))
    try:
        env = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}
        paths = env["PATH"].split(os.pathsep)
        env["PATH"] = os.pathsep.join(path for path in paths if not Path(path).is_relative_to(ROOT))
        clone, own = folder / "clone", folder / "newcomer"
        own.mkdir()
        _say(f"a clone, and a wheel of it, in {folder}")
        (_copy if arguments.uncommitted else _clone)(clone)
        follow(steps_of((clone / TUTORIAL).read_text()), own, env | _wheel(clone, folder, env), tell=_say)
        _say("The tutorial does what it says.")
    except Misled as error:
        _say(f"{TUTORIAL}: {error}")
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
    """What a clone would have if all were committed."""
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def _wheel(clone: Path, folder: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Build the clone's wheel, and let pip find it: the variable that does."""
    wheels = folder / "wheels"
    builder = folder / "builder"
    subprocess.run([sys.executable, "-m", "venv", str(builder)], check=True, env=dict(env))
    build = [str(builder / "bin" / "pip"), "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels), str(clone)]
    subprocess.run(build, check=True, env=dict(env))
    return {"PIP_FIND_LINKS": f"{wheels} {env.get('PIP_FIND_LINKS', '')}".strip()}


def _end(folder: Path) -> None:
    """Stop the servers of a page that was left in the middle."""
    for stack in folder.rglob(".icedb-dagster"):
        for command in folder.rglob("bin/icedb-dagster"):
            subprocess.run([str(command), "down", "--project-dir", str(stack.parent)], capture_output=True)


if __name__ == "__main__":
    sys.exit(main())
