"""The steps of quickstart.md, tutorial.md and tutorial-dagster.md, except their installation.

`make newcomer` follows all steps.
"""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.newcomer import DAGSTER, OURS, QUICKSTART, ROOT, TUTORIAL, Misled, follow, quick, steps_of
from tests.support.processes import serving

pytestmark = pytest.mark.process

BIN = Path(sys.executable).parent


def do(page: str, folder: Path) -> list[str]:
    """Follow a page, and return the reports of its steps."""
    lines: list[str] = []
    follow(steps_of(page), folder, environment(), tell=lines.append)
    return lines


def environment() -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}
    return clean | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}


def sh(commands: str, printed: str | None = None) -> str:
    return f"```sh\n{commands}\n```\n" + ("" if printed is None else f"\n```text\n{printed}\n```\n")


@pytest.mark.process
@pytest.mark.parametrize(
    "pages",
    [
        pytest.param([QUICKSTART], marks=pytest.mark.slow(seconds=12), id="quickstart"),
        pytest.param([TUTORIAL], marks=pytest.mark.slow(seconds=12), id="tutorial"),
        pytest.param([TUTORIAL, DAGSTER], marks=[pytest.mark.slow(seconds=60), pytest.mark.dagster], id="dagster"),
    ],
)
def test_pages_print_the_documented_output(pages: list[Path], tmp_path: Path) -> None:
    steps = [step for page in pages for step in quick(steps_of((ROOT / page).read_text()))]
    lines: list[str] = []
    try:
        follow(steps, tmp_path, environment(), tell=lines.append)
    finally:
        if DAGSTER in pages:  # a failed step leaves the services running
            subprocess.run([BIN / "icedb-dagster", "down", "--project-dir", tmp_path], capture_output=True, check=False)
    assert sum(step.printed is not None for step in steps) >= 2
    assert len(lines) == len(steps) + 1


@pytest.mark.parametrize("page", [QUICKSTART, TUTORIAL, DAGSTER], ids=lambda page: page.stem)
def test_the_omitted_steps_of_a_page_install(page: Path) -> None:
    steps = steps_of((ROOT / page).read_text())
    omitted = [step for step in steps if step not in quick(steps)]
    assert [step.section.lower().strip("1. ") for step in omitted] == ["install"]


def test_folder_and_variables_are_kept_for_the_next_step(tmp_path: Path) -> None:
    page = sh("mkdir in && cd in\nexport SHOP='north\nsouth'") + 'Save `say.py`:\n\n```python\nprint("hi")\n```\n'
    do(page + sh('pwd; echo "$SHOP"; python say.py', "...in\nnorth\nsouth\nhi"), tmp_path)
    assert (tmp_path / "in" / "say.py").exists()


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        (sh("true\nfalse\ntrue"), "ended with status 1"),
        (sh("echo a", "b"), "is said to print"),
        (sh("echo a; echo b", "a"), "is said to print"),
        (sh("echo a >&2; exit 3"), "printed:\na"),
        (sh("printf 'x\\ny\\n'", "...x..."), "is said to print"),
        ("```text\nnobody prints this\n```\n", "there are none"),
        (sh("true", "...") + "```text\nand this\n```\n", "there are none"),
        ("Here it is:\n\n```python\n1\n```\n", "must name its file"),
        ("In `a.py` or `b.py`:\n\n```python\n1\n```\n", "must name its file"),
        ("See `a.py`.\n\n```python\n1\n```\n", "must name its file"),
        ("```rust\n1\n```\n", "nobody knows what to do"),
        ("```sh\ntrue\n", "has no end"),
    ],
)
def test_a_misleading_page_is_detected(page: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(Misled, match=problem):
        do(page, tmp_path)


def test_ellipses_match_any_text(tmp_path: Path) -> None:
    do(sh("echo 'took 12 s'; seq 9", "took ... s\n1\n...\n9"), tmp_path)
    do(sh("echo one; echo two", "one\n...\ntwo\n..."), tmp_path)
    do(sh("printf '\\033[1mbold\\033[0m  \\n'", "bold"), tmp_path)


class _Quiet(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        type(self).requested.append(self.path)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""

    requested: list[str] = []  # noqa: RUF012 - of the one server of this file


@pytest.fixture
def server() -> Iterator[str]:
    with serving(http.server.HTTPServer(("127.0.0.1", 0), _Quiet)) as listening:
        yield f"http://127.0.0.1:{listening.server_port}"


@pytest.mark.sampled(days=3)
def test_a_printed_address_is_opened(server: str, tmp_path: Path) -> None:
    do(sh(f"echo open {server}"), tmp_path)
    assert _Quiet.requested == ["/"]


def test_a_printed_address_without_a_server_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Misled, match="does not answer"):
        do(sh("echo open http://127.0.0.1:1"), tmp_path)
