"""The guard against growing costs: no figure exceeds the committed one, and a change is reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import guard
from benchmarks.guard import FILE, Change, Figures, Kind, changes, environment, read_figures, report, write_figures
from benchmarks.harness.slow_store import BUCKET

FIGURES: Figures = {
    Kind.REQUESTS: {"open: LIST": 1, "open: GET": 3},
    Kind.BYTES: {"open: down": 1_000},
    Kind.ALLOCATIONS: {"open: peak bytes": 50.5},
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "guard.json"
    write_figures(path, FIGURES)
    return path


def reported(file: Path, figures: Figures) -> tuple[bool, str]:
    console = Console(width=200)
    with console.capture() as text:
        passes = report(console, file, figures)
    return passes, text.get()


def with_figure(kind: Kind, name: str, value: float) -> Figures:
    return {**FIGURES, kind: {**FIGURES[kind], name: value}}


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_no_figure_exceeds_the_committed_one(s3_server: object, tmp_path: Path) -> None:
    options: dict[str, str] = s3_server.storage_options  # type: ignore[attr-defined]
    s3_server.client().create_bucket(Bucket=BUCKET)  # type: ignore[attr-defined]
    figures = guard.measure(options, tmp_path)
    passes, text = reported(FILE, figures)
    assert passes, text
    # The same run fails when compared with a smaller figure, and names it.
    _, committed = read_figures(FILE)
    less = {kind: dict(counts) for kind, counts in committed.items()}
    less[Kind.REQUESTS]["open and snapshot: GET"] -= 1
    doctored = tmp_path / "guard.json"
    write_figures(doctored, less)
    passes, text = reported(doctored, figures)
    assert not passes
    now = figures[Kind.REQUESTS]["open and snapshot: GET"]
    assert f"open and snapshot: GET (requests) {now - 1:g} {now:g}" in " ".join(text.split())


def test_equal_figures_pass(file: Path) -> None:
    assert reported(file, FIGURES) == (True, "4 figures: none has grown.\n")
    assert read_figures(file) == (environment(), FIGURES)


@pytest.mark.parametrize(
    ("kind", "name", "within", "beyond"),
    [
        (Kind.REQUESTS, "open: GET", 3, 4),
        (Kind.BYTES, "open: down", 1_020, 1_021),
        (Kind.ALLOCATIONS, "open: peak bytes", 56, 56.1),
    ],
)
def test_a_figure_that_grows_beyond_its_tolerance_is_named(
    kind: Kind, name: str, within: float, beyond: float, file: Path
) -> None:
    assert reported(file, with_figure(kind, name, within))[0]
    passes, text = reported(file, with_figure(kind, name, beyond))
    assert not passes
    assert f"{name} ({kind.value})" in text
    assert "Grown" in text


def test_a_new_figure_fails(file: Path) -> None:
    passes, text = reported(file, with_figure(Kind.REQUESTS, "open: HEAD", 1))
    assert not passes
    assert "open: HEAD" in text


def test_smaller_and_missing_figures_are_reported_and_pass(file: Path) -> None:
    passes, text = reported(file, with_figure(Kind.REQUESTS, "open: GET", 2))
    assert passes
    assert "Less than before" in text
    assert "open: GET" in text
    passes, text = reported(file, {**FIGURES, Kind.BYTES: {}})
    assert passes
    assert "Not measured any more" in text
    assert "open: down" in text


def test_only_requests_are_compared_with_other_libraries(file: Path) -> None:
    content = json.loads(file.read_text())
    content["environment"]["pyarrow"] = "1.0"
    file.write_text(json.dumps(content))
    passes, text = reported(file, with_figure(Kind.BYTES, "open: down", 10_000))
    assert passes
    assert "Only requests are compared" in text
    assert not reported(file, with_figure(Kind.REQUESTS, "open: GET", 4))[0]


def test_changes_are_the_different_figures() -> None:
    assert changes(FIGURES, FIGURES) == []
    new = with_figure(Kind.REQUESTS, "open: GET", 4)
    assert changes(FIGURES, new) == [Change(Kind.REQUESTS, "open: GET", 3, 4)]
