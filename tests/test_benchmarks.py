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


@pytest.mark.timeout(600)
def test_a_short_stream_is_measured_and_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    target, plot = tmp_path / "results.json", tmp_path / "images" / "plot.png"
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.stream", "--minutes", "1", "--every", "6", "--rows", "500", "--speedup", "6",
         "--maintain-every", "1", "--folder", str(work), "--plot", str(plot), "--json", str(target)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=580,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(target.read_text())
    assert (results["files"], results["rows"], len(results["latencies"])) == (10, 5000, 10)
    assert results["maintained"] > 0
    assert 0 < results["percentiles"]["50"] <= results["percentiles"]["90"] <= results["percentiles"]["100"]
    assert min(results["live_parts"] + results["log_files"]) > 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "seconds from arrival to visibility" in done.stdout
    assert list(work.iterdir()) == []  # nothing stays behind
