"""Runs the programs of a page: `python -m tests.support.site.pages docs/inputs.md`, in the current folder.

The blocks of a page are one program, Python and `icedb` commands in the order of the page. If the comment of an
expression begins with a value, or that of a `print` with its output, both are compared, and every such line must be
reached. The comment is on the last line of the expression, or on the lines below it. The commands run in the same
process, because starting one takes longer than most commands.

Tests run each page in a process that is forked from one that has imported the libraries, because importing them takes
longer than most pages.
"""

from __future__ import annotations

import ast
import atexit
import gc
import importlib
import io
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tokenize
import traceback
import uuid
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.processes import clean_environment, run_python

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
#: The separator of a value and the words after it.
GAP = "  "
#: A command with this is not run.
OPEN_END = r"s3:|--watch\b"
#: Modules that pages import. Importing them starts only threads that allow a fork.
IMPORTED = ("icedb.cli", "icedb_dagster", "dagster", "pyarrow.dataset", "pyarrow.parquet", "pandas", "boto3")


def blocks(page: Path, language: str) -> list[str]:
    """Return the page's blocks of that language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def program_of(page: Path, *, until: str = "", since: str = "") -> str:
    """Return the lines of the page's program before or after the line that has a text."""
    lines = whole_program(page).splitlines()
    number = next(n for n, line in enumerate(lines) if (until or since) in line)
    return "\n".join(lines[:number] if until else [""] * number + lines[number:])


def run_program(page: Path, program: str, folder: Path) -> None:
    """Run a program of a page in a folder and a new process, without our environment. Raises AssertionError."""
    (folder / "program.py").write_text(program)
    code = f"execute(Path('program.py').read_text(), {str(page.relative_to(ROOT))!r})"
    run_python(
        "-c", f"from pathlib import Path; from tests.support.site.pages import execute; {code}",
        cwd=folder, env=clean_environment(PYTHONPATH=str(ROOT)),
    )  # fmt: skip


def runnable_pages(*, spark: bool) -> list[Path]:
    """Return the pages with Python or commands that start Spark, or those that do not."""
    pages = [page for page in sorted(DOCS.rglob("*.md")) if blocks(page, "python") or commands(page)]
    return [page for page in pages if ("pyspark" in whole_program(page)) == spark]


def run_page(
    page: Path,
    folder: Path,
    *,
    env: Mapping[str, str] | None = None,
    number: int | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a page, or one block of its Python, in a folder and a process of its own, without our environment."""
    server, printed = _server(os.getpid()), [folder / "stdout", folder / "stderr"]
    request = {"page": str(page), "folder": str(folder), "env": dict(env or {}), "number": number}
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(f"{json.dumps(request)}\n")
    server.stdin.flush()
    status = int(server.stdout.readline())
    out, error = (path.read_text() for path in printed)
    for path in printed:
        path.unlink()
    return subprocess.CompletedProcess(str(page), status, out, error)


@cache
def _server(of_pid: int) -> subprocess.Popen[str]:
    """Return the process that is forked for each page. It ends with its standard input, so with this process."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.site.pages"],
        cwd=ROOT,
        env=clean_environment(PYTHONPATH=str(ROOT)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def bucket_of(page: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    """Return the environment of a page that uses a bucket. It is empty for other pages."""
    if "BUCKET" not in whole_program(page):
        return {}
    server = request.getfixturevalue("s3_server")
    name = f"icedb-page-{uuid.uuid4().hex[:8]}"
    server.client().create_bucket(Bucket=name)
    return {**server.storage_options, "BUCKET": name}


def execute(code: str, name: str) -> int:
    """Run a program and compare the results in its comments. Returns their number. Raises AssertionError."""
    checks = _Checks(code)
    tree = ast.fix_missing_locations(checks.visit(ast.parse(code, name)))
    program = compile(tree, name, "exec", dont_inherit=True)  # the page has none of our `from __future__`
    names = {"_value": checks.value, "_said": checks.said, "_command": run_command}
    exec(program, {"__name__": "__main__", **names})
    assert not checks.left, f"{name}: lines {sorted(checks.left)} state a value, and were not reached"
    return checks.comparisons


class _Checks(ast.NodeTransformer):
    """Replaces expressions with a comment by calls that compare them."""

    def __init__(self, code: str) -> None:
        tokens = [t for t in tokenize.generate_tokens(io.StringIO(code).readline) if t.type == tokenize.COMMENT]
        self._comments = {t.start[0]: t.string.lstrip("# ") for t in tokens}
        self._whole_lines = {t.start[0] for t in tokens if t.line.lstrip().startswith("#")}
        self.left: set[int] = set()
        self.comparisons = 0

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        comments = self._comments_of(node.end_lineno or 0)
        if not comments:
            return node
        comment = next(filter(_is_value, comments), comments[-1])
        call = node.value
        line = ast.Constant(node.end_lineno)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print":
            checked = ast.Call(ast.Name("_said", ast.Load()), [line, ast.Constant(comments[-1]), *call.args], [])
        elif _is_value(comment):
            checked = ast.Call(ast.Name("_value", ast.Load()), [line, ast.Constant(comment), call], [])
        else:
            return node
        self.left.add(node.end_lineno or 0)
        self.comparisons += 1
        return ast.copy_location(ast.Expr(checked), node)

    def _comments_of(self, line: int) -> list[str]:
        """Return the comment on a line of code, or else the first line, two lines, ... of the comment below it."""
        if line in self._comments:
            return [self._comments[line]]
        below = itertools.takewhile(self._whole_lines.__contains__, itertools.count(line + 1))
        return list(itertools.accumulate((self._comments[n] for n in below), "{} {}".format))

    def value(self, line: int, text: str, value: Any) -> None:
        """Compare an expression with its comment."""
        self.left.discard(line)
        assert repr(value) == repr(ast.literal_eval(text.partition(GAP)[0])), f"line {line}: {value!r} is not {text}"

    def said(self, line: int, text: str, *values: Any) -> None:
        """Compare a `print` with its comment, in which `...` matches any text, and a space also the end of a line."""
        self.left.discard(line)
        printed = " ".join(map(str, values))
        pattern = ".*".join(map(re.escape, text.split("..."))).replace(r"\ ", r"\s")
        assert re.fullmatch(pattern, printed, re.DOTALL), f"line {line}: {printed!r} is not {text!r}"


def _is_value(comment: str) -> bool:
    try:
        ast.literal_eval(comment.partition(GAP)[0])
    except (ValueError, SyntaxError):
        return False
    return True


def whole_program(page: Path) -> str:
    """Return all Python of a page, on its lines of the page."""
    lines, inside = [], False
    for line in page.read_text().splitlines():
        inside = line == "```python" or (inside and line != "```")
        lines.append(line if inside and line != "```python" else "")
    return "\n".join(lines)


def commands(page: Path) -> dict[int, str]:
    """Return the `icedb` commands of a page by line, without those that use a bucket or run until they are stopped."""
    lines, inside, number = {}, False, 0
    for n, line in enumerate(page.read_text().splitlines()):
        inside = line == "```sh" or (inside and line != "```")
        if inside:
            number = number if lines.get(number, "").endswith("\\") else n
            lines[number] = lines.get(number, "").removesuffix("\\") + line
    runs = re.compile(r"icedb\s(?!(proxy|ingest)\b)")
    return {n: line for n, line in lines.items() if runs.match(line) and not re.search(OPEN_END, line)}


def with_commands(page: Path) -> str:
    """Return the page's program, in which its commands are calls, all on their lines of the page."""
    lines = whole_program(page).splitlines()
    for n, line in commands(page).items():
        lines[n] = f"_command({line!r})"
    return "\n".join(lines)


def run_command(line: str) -> None:
    """Run a line that begins with `icedb`, in this process unless a shell is needed. Raises AssertionError."""
    words = shlex.split(line, comments=True)
    if any(re.fullmatch(r"[|<>&]+", word) for word in words):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        subprocess.run(["bash", "-euo", "pipefail", "-c", line], env=os.environ | {"PATH": path}, check=True)
        return
    from icedb.cli import main as icedb

    sys.argv = words
    try:
        icedb()
    except SystemExit as stopped:
        if stopped.code:
            raise AssertionError(f"{line}: exit status {stopped.code}") from None


def run(page: Path, number: int | None = None) -> None:
    """Run a page in order, or a block of its Python."""
    execute(with_commands(page) if number is None else blocks(page, "python")[number], str(page))


def serve() -> dict[str, Any] | None:
    """Fork a process for each request, and write its exit status. Returns the request in that process."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # or each process would copy all of it
    for request in map(json.loads, sys.stdin):
        child = os.fork()
        if child == 0:
            return dict(request)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()
    return None


def begin(request: Mapping[str, Any]) -> None:
    """Become the process of a page: its folder, its environment, and files for what it prints."""
    os.chdir(request["folder"])
    os.environ.update(request["env"])
    sys.path[0] = request["folder"]
    for number, name, mode in ((0, os.devnull, os.O_RDONLY), (1, "stdout", os.O_WRONLY), (2, "stderr", os.O_WRONLY)):
        opened = os.open(name, mode | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(Path(sys.argv[1]))
    elif (request := serve()) is not None:
        begin(request)
        status = 0
        try:
            run(Path(request["page"]), request["number"])
        except BaseException:
            traceback.print_exc()
            status = 1
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(status)  # taking all modules down would take as long as most pages
