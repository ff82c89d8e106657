"""The examples of docs/ingest.md: its configuration is served, and its programs and commands run against it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from icedb.services.ingest.config.config_file import load_config
from tests.support.ingest.ingest_process import KEY, SECRET, IngestProcess
from tests.support.site.pages import ROOT, blocks, whole_program

pytestmark = pytest.mark.process

PAGE = ROOT / "docs" / "ingest.md"
ADDRESS, ADMIN = "127.0.0.1:8080", "127.0.0.1:9090"
SECRETS = {"ACME_KEY": KEY, "ACME_WEBHOOK": SECRET}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    config = blocks(PAGE, "toml")[0]
    assert ADDRESS in config
    assert ADMIN in config
    (folder / "ingest.toml").write_text(config.replace(ADDRESS, "127.0.0.1:0").replace(ADMIN, "127.0.0.1:0"))
    return folder


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[IngestProcess]:
    with IngestProcess(folder / "ingest.toml", SECRETS) as service:
        yield service


def run(folder: Path, command: list[str]) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**clean, **SECRETS, "PYTHONPATH": str(ROOT), "PATH": path}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return done.stdout


def here(text: str, service: IngestProcess) -> str:
    """Replace the address of the page by that of the test's service."""
    admin = service.admin.removeprefix("http://")
    return text.replace(ADDRESS, service.endpoint.removeprefix("http://")).replace(ADMIN, admin)


def but_for_the_commit(text: str) -> Any:
    answer = json.loads(text)
    assert re.fullmatch(r"[0-9]{13}-[0-9a-f]{16}", answer.pop("commit"))
    return answer


def test_the_check_of_the_page_runs(folder: Path) -> None:
    check, serve = (line.partition("#")[0].split() for line in blocks(PAGE, "sh")[1].splitlines())
    assert serve == ["icedb", "ingest", "--config", "ingest.toml"]
    assert run(folder, check).split().count("acme") == 2


@pytest.mark.sampled(days=6)
def test_the_examples_of_the_page_give_their_output(folder: Path, service: IngestProcess) -> None:
    calls = [block for block in blocks(PAGE, "sh") if "curl" in block]
    answers = blocks(PAGE, "json")
    for call, answer in zip(calls, answers, strict=False):
        assert but_for_the_commit(run(folder, ["bash", "-euc", here(call, service)])) == but_for_the_commit(answer), (
            call
        )
    (folder / "program.py").write_text(here(whole_program(PAGE), service))
    runner = "from pathlib import Path; from tests.support.site.pages import execute; "
    run(folder, [sys.executable, "-c", runner + "execute(Path('program.py').read_text(), 'docs/ingest.md')"])
    [looking] = calls[len(answers) :]
    output = run(folder, ["bash", "-euc", here(looking, service)]).splitlines()
    assert json.loads(output[0]) == {"status": "ok"}
    assert 'icedb_ingest_committed_rows_total{table="events"} 1003.0' in output


@pytest.mark.sampled(days=3)
def test_the_table_of_several_tenants_can_be(tmp_path: Path) -> None:
    shared = blocks(PAGE, "toml")[1]
    tenants = "".join(
        f'[[tenant]]\nname = "{name}"\ntables = ["shared"]\nkeys = [{{ secret = "{name}-{KEY}" }}]\n' for name in "ab"
    )
    (tmp_path / "ingest.toml").write_text(shared + tenants)
    table = load_config(tmp_path / "ingest.toml").tables["shared"]
    assert (table.tenant_column, table.id_column) == ("tenant", "message_id")
