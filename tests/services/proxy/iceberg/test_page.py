"""The examples of docs/iceberg-catalog.md: its configuration is served, and its programs run against it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.proxy.proxy_process import ProxyProcess, proxy_command
from tests.support.site.pages import DOCS, ROOT, blocks, execute, program_of, run_program
from tests.support.tables.delta_reading import extension_file

pytestmark = pytest.mark.process

PAGE = DOCS / "iceberg-catalog.md"
ADDRESS = "127.0.0.1:8080"
INSTALL = """\
    "INSTALL avro; INSTALL iceberg; INSTALL httpfs;"
    " LOAD avro; LOAD iceberg; LOAD httpfs"
"""
ENGINES = "from pyiceberg"


@pytest.mark.sampled(days=3)
def test_the_examples_of_the_page_give_their_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tenant's programs run in a separate process, as ClickHouse needs it."""
    monkeypatch.chdir(tmp_path)
    execute(program_of(PAGE, until=ENGINES), str(PAGE))
    config = blocks(PAGE, "toml")[0]
    assert ADDRESS in config
    (tmp_path / "proxy.toml").write_text(config.replace(ADDRESS, "127.0.0.1:0"))
    done = subprocess.run(
        proxy_command(tmp_path / "proxy.toml", "--check"), capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert re.search(r"acme +events +.*3 +72 +4 columns", done.stdout), done.stdout + done.stderr
    with ProxyProcess(tmp_path / "proxy.toml") as proxy:
        loads = "; ".join(f"LOAD '{extension_file(name)}'" for name in ("avro", "iceberg", "httpfs"))
        code = program_of(PAGE, since=ENGINES).replace(INSTALL, f'"{loads}"\n')
        assert "INSTALL" not in code
        code = code.replace(ADDRESS, proxy.endpoint.removeprefix("http://"))
        code = "import icedb\ntable = icedb.Table.open('lake/events')\nfrom datetime import UTC, datetime\n" + code
        run_program(PAGE, code, tmp_path)
