"""The benchmarks run: a small round of each, whose answers they check themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

ROOT = Path(__file__).parents[1]

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.timeout(600)
def test_a_small_round_of_everything_is_measured(tmp_path: Path) -> None:
    target = tmp_path / "results.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.spark", "--rows", "20000", "--rounds", "1",
         "--folder", str(tmp_path / "cache"), "--json", str(target)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=580,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(target.read_text())["results"]
    assert {(r["group"], r["goal"]) for r in results if r["goal"]} == {
        ("write", 0.55),
        ("write", 0.75),
        ("read, aggregated", 1.05),
        ("read, whole", 1.05),
        ("merge", 1.5),
    }
    written = {r["case"]: r for r in results if r["group"] == "write"}
    assert written["icedb, distributed"]["files"] < written["icedb, not distributed"]["files"]
    assert all(len(r["seconds"]) == 1 and r["seconds"][0] > 0 for r in results)
    assert all(r["worker_bytes_max"] > 0 for name, r in written.items() if name.startswith("icedb"))
    assert all(r["case"] in done.stdout for r in results)
    assert [p.name for p in (tmp_path / "cache").iterdir()] == ["events-20000-v1"]  # nothing else stays behind
