"""Twelve processes on one table, killed with SIGKILL at random, by tests/support/programs/mixed_load.py."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = "tests.support.programs.mixed_load"
# `make torture` asks for more, and may repeat a seed.
SECONDS = float(os.environ.get("ICEDB_MIXED_LOAD_SECONDS", "8"))
SEED = int(os.environ.get("ICEDB_MIXED_LOAD_SEED", random.SystemRandom().randrange(1_000_000)))


@pytest.mark.process
@pytest.mark.sampled(cases=1)
@pytest.mark.timeout(900 + 2 * SECONDS)
def test_processes_killed_at_random_lose_and_double_nothing(shared_place: Any) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", PROGRAM, "--uri", shared_place.uri, "--seconds", str(SECONDS), "--seed", str(SEED)],
        cwd=Path(__file__).parents[2],
        env=os.environ | (shared_place.storage_options or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        out, _ = process.communicate()
    finally:
        process.terminate()  # it kills its own
        process.wait()
    sys.stdout.write(f"\n{shared_place.kind}: {out}")
    assert process.returncode == 0, out
    assert f"seed {SEED}" in out.splitlines()[-1]
