"""Experiments with settings: each runs, its answers are compared, and its counts are right."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import tuning
from benchmarks.experiments import tuning_layouts
from benchmarks.experiments.lab import Lab, bytes_read
from benchmarks.harness.figures import Finding

#: The experiments that need no S3 server.
OF_FOLDERS = [key for key in tuning.EXPERIMENTS if key not in ("part-size", "row-groups", "commits")]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as closing:
        yield Lab(tmp_path, 400, commits=10, rounds=1, latency_ms=0, on_step=lambda _: None, closing=closing)


def counts(findings: list[Finding], key: str, title: str, unit: str) -> dict[str, float]:
    """Return the only value of each setting."""
    [finding] = [f for f in findings if (f.key, f.title, f.unit) == (key, title, unit)]
    assert all(len(way.values) == 1 for way in finding.ways)
    return {way.name: way.median for way in finding.ways}


def check_output(findings: list[Finding], keys: list[str], folder: Path) -> None:
    """Check that each experiment has its table and its plot."""
    pytest.importorskip("matplotlib")
    by_key = tuning.by_experiment(findings)
    assert list(by_key) == keys
    for key, of_key in by_key.items():
        console = Console(width=500, record=True, file=io.StringIO())
        console.print(tuning.as_grid(tuning.EXPERIMENTS[key], of_key))
        text = console.export_text()
        assert all(f.title in text and all(way.name in text and min(way.values) > 0 for way in f.ways) for f in of_key)
        if tuning.EXPERIMENTS[key].drawn:
            tuning.draw(tuning.EXPERIMENTS[key], of_key, folder / f"{key}.png")
            assert (folder / f"{key}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_experiments_in_a_folder_run_and_are_drawn(lab: Lab, tmp_path: Path) -> None:
    findings = tuning.measure(lab, OF_FOLDERS)
    check_output(findings, OF_FOLDERS, tmp_path / "images")
    assert counts(findings, "partitions", "parts", "") == {"1": 1, "10": 10}
    parts = counts(findings, "divisions", "parts", "")
    assert parts["month"] == 1 < parts["day"] <= 30 < parts["hour"]
    opened = counts(findings, "statistics", "one user: opened", "parts")
    assert opened["1"] == opened["2"] == opened["all 10"] < opened["none"]
    of_an_hour = counts(findings, "statistics", "one hour: opened", "parts")
    assert of_an_hour["2"] == of_an_hour["all 10"] < of_an_hour["1"] == of_an_hour["none"]
    size = counts(findings, "statistics", "the log", "bytes a part")
    assert size["none"] < size["1"] < size["2"] < size["all 10"]


@pytest.mark.slow(seconds=6)
@pytest.mark.s3
def test_experiments_in_s3_run_and_are_drawn(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning_layouts, "ROW_GROUPS", {"10k": 10_240, "31k": 30_720})  # each starts a process
    keys = [key for key in tuning.EXPERIMENTS if key not in OF_FOLDERS]
    findings = tuning.measure(lab, keys)
    check_output(findings, keys, tmp_path / "images")
    requests = counts(findings, "commits", "opening, not merged, S3", "requests")
    merged = counts(findings, "commits", "opening, log merged, S3", "requests")
    assert requests["10"] == merged["10"] + 9  # a log file for each commit, or one
    assert not (tmp_path / "tables").exists()


def test_different_answers_are_detected(lab: Lab) -> None:
    answers = {"one": [(1, 2)], "other": [(1, 3)]}
    with pytest.raises(AssertionError, match="the results differ"):
        lab.turns("key", "title", {name: lambda name=name: answers[name] for name in answers})  # type: ignore[misc]
    with pytest.raises(AssertionError, match="or are empty"):
        lab.turns("key", "title", {"one": list, "other": list})


def test_read_bytes_are_counted(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(3_000_000))
    once = bytes_read(lambda: (tmp_path / "file").read_bytes())
    assert 3_000_000 <= once < 3_100_000
