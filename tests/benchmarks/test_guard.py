"""The guard against growing costs: what the code takes now is what is committed, and it tells when that is not so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import guard
from benchmarks.guard import FILE, Change, Figures, Kind, changes, environment, read_figures, report, write_figures
from benchmarks.slow_store import BUCKET

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


def said(file: Path, figures: Figures) -> tuple[bool, str]:
    console = Console(width=200)
    with console.capture() as text:
        fine = report(console, file, figures)
    return fine, text.get()


def with_figure(kind: Kind, name: str, value: float) -> Figures:
    return {**FIGURES, kind: {**FIGURES[kind], name: value}}


@pytest.mark.s3
def test_nothing_costs_more_than_is_committed(s3_server: object, tmp_path: Path) -> None:
    options: dict[str, str] = s3_server.storage_options  # type: ignore[attr-defined]
    s3_server.client().create_bucket(Bucket=BUCKET)  # type: ignore[attr-defined]
    figures = guard.measure(options, tmp_path)
    fine, text = said(FILE, figures)
    assert fine, text
    # The very same run fails beside a file that says less, and names what it is.
    _, committed = read_figures(FILE)
    less = {kind: dict(counts) for kind, counts in committed.items()}
    less[Kind.REQUESTS]["open and snapshot: GET"] -= 1
    doctored = tmp_path / "guard.json"
    write_figures(doctored, less)
    fine, text = said(doctored, figures)
    assert not fine
    now = figures[Kind.REQUESTS]["open and snapshot: GET"]
    assert f"open and snapshot: GET (requests) {now - 1:g} {now:g}" in " ".join(text.split())


def test_the_same_figures_are_fine(file: Path) -> None:
    assert said(file, FIGURES) == (True, "4 figures: none has grown.\n")
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
    assert said(file, with_figure(kind, name, within))[0]
    fine, text = said(file, with_figure(kind, name, beyond))
    assert not fine
    assert f"{name} ({kind.value})" in text
    assert "Grown" in text


def test_what_nobody_counted_before_is_told_and_fails(file: Path) -> None:
    fine, text = said(file, with_figure(Kind.REQUESTS, "open: HEAD", 1))
    assert not fine
    assert "open: HEAD" in text


def test_gains_and_what_is_gone_are_told_and_do_no_harm(file: Path) -> None:
    fine, text = said(file, with_figure(Kind.REQUESTS, "open: GET", 2))
    assert fine
    assert "Less than before" in text
    assert "open: GET" in text
    fine, text = said(file, {**FIGURES, Kind.BYTES: {}})
    assert fine
    assert "Not measured any more" in text
    assert "open: down" in text


def test_with_other_libraries_only_requests_are_compared(file: Path) -> None:
    content = json.loads(file.read_text())
    content["environment"]["pyarrow"] = "1.0"
    file.write_text(json.dumps(content))
    fine, text = said(file, with_figure(Kind.BYTES, "open: down", 10_000))
    assert fine
    assert "Only requests are compared" in text
    assert not said(file, with_figure(Kind.REQUESTS, "open: GET", 4))[0]


def test_changes_are_those_that_differ() -> None:
    assert changes(FIGURES, FIGURES) == []
    new = with_figure(Kind.REQUESTS, "open: GET", 4)
    assert changes(FIGURES, new) == [Change(Kind.REQUESTS, "open: GET", 3, 4)]
