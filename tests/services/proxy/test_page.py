"""The examples of docs/proxy.md: its configuration is served, and its programs and commands run against it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.proxy.proxy_process import ProxyProcess
from tests.support.site.pages import ROOT, blocks, execute, program_of, run_program
from tests.support.tables.delta_reading import extension_file

pytestmark = pytest.mark.process

PAGE = ROOT / "docs" / "proxy.md"
ADDRESS = "127.0.0.1:8080"
INSTALL = "INSTALL httpfs; LOAD httpfs"
SERVE = "icedb proxy --config proxy.toml"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    execute(program_of(PAGE, until="import duckdb"), str(PAGE))
    config = blocks(PAGE, "toml")[0]
    assert ADDRESS in config
    (tmp_path / "proxy.toml").write_text(config.replace(ADDRESS, "127.0.0.1:0"))
    return tmp_path


@pytest.mark.sampled(days=3)
def test_the_examples_of_the_page_give_their_output(folder: Path) -> None:
    """The tenant's programs run in a separate process, as ClickHouse and pyarrow need it."""
    with ProxyProcess(folder / "proxy.toml") as proxy:
        code = program_of(PAGE, since="import duckdb").replace(INSTALL, f"LOAD '{extension_file('httpfs')}'")
        code = "import icedb\ntable = icedb.Table.open('lake/events')\nfrom datetime import UTC, datetime\n" + code
        code = code.replace(ADDRESS, proxy.endpoint.removeprefix("http://"))
        assert INSTALL not in code
        run_program(PAGE, code, folder)


@pytest.mark.sampled(days=3)
def test_the_commands_of_the_page_run(folder: Path) -> None:
    check, serve = (line.partition("#")[0].split() for line in blocks(PAGE, "sh")[1].splitlines())
    assert " ".join(serve) == SERVE
    assert check[:1] == ["icedb"]
    done = subprocess.run(
        [sys.executable, "-m", "icedb.cli", *check[1:]], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"acme +events +.*3 +72", done.stdout), done.stdout
    (aws := folder / "programs" / "aws").parent.mkdir()
    aws.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m awscli "$@"\n')
    aws.chmod(0o700)
    with ProxyProcess(folder / "proxy.toml") as proxy:
        script = next(b for b in blocks(PAGE, "sh") if "aws s3" in b).replace(f"http://{ADDRESS}", proxy.endpoint)
        path = f"{aws.parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [shutil.which("bash") or "sh", "-euc", script], cwd=folder, env=dict(os.environ) | {"PATH": path},
            capture_output=True, text=True, timeout=180,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert len(re.findall(r"u=42/d=2026-11-\d\d/\w+\.parquet", done.stdout)) >= 3
        assert "u=41" not in done.stdout
        assert len(list((folder / "today").glob("*.parquet"))) == 1
