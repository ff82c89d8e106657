"""The examples of docs/iceberg-catalog.md: its configuration is served, and its programs run against it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.proxy.proxy_process import ProxyProcess, proxy_command
from tests.support.site.pages import DOCS, ROOT, blocks, execute, whole_program

pytestmark = pytest.mark.process

PAGE = DOCS / "iceberg-catalog.md"
ADDRESS = "127.0.0.1:8080"
INSTALL = "INSTALL avro; INSTALL iceberg; INSTALL httpfs; LOAD avro; LOAD iceberg; LOAD httpfs"
ENGINES = "from pyiceberg"


def load_extensions() -> str:
    """Return SQL that loads DuckDB's extensions from their packages."""
    loads = []
    for name in ("avro", "iceberg", "httpfs"):
        code = f"from duckdb_extension_{name} import __file__; print(__file__)"
        at = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        loads.append(f"LOAD '{next(Path(at).parent.rglob(f'{name}.duckdb_extension'))}'")
    return "; ".join(loads)


@pytest.mark.sampled(days=3)
def test_the_examples_of_the_page_give_their_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tenant's programs run in a separate process, as ClickHouse needs it."""
    monkeypatch.chdir(tmp_path)
    lines = whole_program(PAGE).splitlines()
    number = next(n for n, line in enumerate(lines) if ENGINES in line)
    execute("\n".join(lines[:number]), str(PAGE))
    config = blocks(PAGE, "toml")[0]
    assert ADDRESS in config
    (tmp_path / "proxy.toml").write_text(config.replace(ADDRESS, "127.0.0.1:0"))
    done = subprocess.run(
        proxy_command(tmp_path / "proxy.toml", "--check"), capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert re.search(r"acme +events +.*3 +72 +4 columns", done.stdout), done.stdout + done.stderr
    with ProxyProcess(tmp_path / "proxy.toml") as proxy:
        code = "\n".join([""] * number + lines[number:]).replace(INSTALL, load_extensions())
        assert "INSTALL" not in code
        code = code.replace(ADDRESS, proxy.endpoint.removeprefix("http://"))
        code = "import icedb\ntable = icedb.Table.open('lake/events')\nfrom datetime import UTC, datetime\n" + code
        (tmp_path / "tenant.py").write_text(code)
        runner = "import sys; from pathlib import Path; from tests.support.site.pages import execute; "
        runner += "execute(Path('tenant.py').read_text(), 'docs/iceberg-catalog.md')"
        clean = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
        done = subprocess.run(
            [sys.executable, "-c", runner], cwd=tmp_path, env=clean | {"PYTHONPATH": str(ROOT)}, capture_output=True,
            text=True, timeout=180,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
