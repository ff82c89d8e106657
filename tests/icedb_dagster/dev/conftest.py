"""The command `icedb-dagster` in the test's process, and an environment without the developer's Dagster."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from icedb_dagster.dev.command import main

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def _no_dagster_of_the_developer(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ICEDB_POSTGRES_URL", "DAGSTER_HOME", "ICEDB_DAGSTER_POSTGRES_URL", "LAKE_ROOT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return a function that runs the command in this process, because another one would import Dagster again."""

    def run(*arguments: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
        words = [str(argument) for argument in arguments]
        capsys.readouterr()
        with monkeypatch.context() as patch:
            for name, value in environ.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main(words)
        printed = capsys.readouterr()
        return subprocess.CompletedProcess(words, int(ended.value.code or 0), printed.out, printed.err)

    return run
