"""The tips: their tables equal the figures, their statements hold in them, and each experiment runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks import tips
from benchmarks.experiments import tips_rows, tips_tables
from benchmarks.experiments.lab import Lab
from benchmarks.tuning import by_experiment, draw, measure
from tests.support.site.pages import ROOT

FIGURES = tips.read_figures()


def figures(key: str, title: str, unit: str) -> dict[str, float]:
    """Return the stored median of each setting."""
    [by_key] = [f for f in FIGURES[key] if (f.title, f.unit) == (title, unit)]
    return {way.name: way.median for way in by_key.ways}


def test_the_tables_of_the_pages_equal_the_figures() -> None:
    assert list(FIGURES) == list(tips.TIPS)
    pages = [page.read_text() for page in tips.PAGES]
    for page in pages:
        assert tips.with_tables(page, FIGURES) == page
    for key, tip in tips.TIPS.items():
        [page] = [page for page in pages if f"<!-- figures: {key} -->" in page]
        assert tips.as_markdown(key, FIGURES[key]) in page
        assert (f"(images/tips-{key}.png)" in page) == tip.drawn
        assert (ROOT / "docs" / "images" / f"tips-{key}.png").is_file() == tip.drawn


def test_a_page_without_figures_is_detected() -> None:
    with pytest.raises(KeyError):
        tips.with_tables("<!-- figures: other -->\n<!-- end -->", FIGURES)


def test_the_statements_of_the_tips_hold_in_the_figures() -> None:
    rejected = "% of batches refused"
    assert max(figures("floats", "as JSON has them", rejected).values()) > 10
    for way in ("float() of each", "column declared DOUBLE"):
        assert set(figures("floats", way, rejected).values()) == {0}
    assert set(figures("nested", "text of JSON", rejected).values()) == {0}
    assert figures("nested", "nested objects", rejected)["500"] > 90

    batches = figures("batches", "10,000 rows", "requests to S3")
    assert batches["10"] > 2_000 > 200 > batches["10000"]  # "two thousand", "a handful"
    stored = figures("batches", "stored, log included", "bytes a row")
    assert stored["10"] > 9 * stored["10000"]  # "a tenth of the space"

    alone = figures("maintenance", "left alone", "requests of opening and one query")
    maintained = figures("maintenance", "merged and cleaned up every 50 commits", "requests of opening and one query")
    assert alone["400"] > 7 * alone["50"]
    assert maintained["400"] < 1.1 * maintained["50"]

    parts = figures("partitions", "the insert", "requests to S3")
    assert parts["hour"] > 700 > parts["day"] > 30 > parts["month"]
    for order, query in (("user, time", "one user"), ("kind, time", "one kind of event"), ("time", "one hour")):
        read = figures("sort", query, "MB read")
        assert read[order] == min(read.values()) < max(read.values()) / 5
    counts = figures("tables", "counts by day and kind", "MB read")
    assert counts["three"] < counts["one, by user"] / 1_000
    assert set(figures("opening", "append, kept open", "requests to S3").values()) == {2}
    assert set(figures("opening", "schema(), kept open", "requests to S3").values()) == {1}
    assert figures("cold", "memory of the process", "MB at most so far")["first query"] < 512  # "are enough"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    for module, name, value in (
        (tips_rows, "PRICES_TABLES", 3),
        (tips_rows, "PRICES_BATCHES", 3),
        (tips_rows, "PRICES_BATCH_ROWS", (2,)),
        (tips_rows, "FIELDS", (10,)),
        (tips_rows, "NESTED_BATCHES", 3),
        (tips_rows, "NESTED_ROWS", 50),
        (tips_rows, "BATCH_ROWS", (50, 100)),
        (tips_tables, "LOOK_EVERY", 4),
        (Lab, "PARTITION_FORMATS", {"month": "%Y-%m", "day": "%Y-%m-%d"}),
        (tips_tables, "DEPTHS", (1, 3)),
    ):
        monkeypatch.setattr(module, name, value)
    with ExitStack() as closing:
        yield Lab(tmp_path, 400, commits=8, rounds=1, latency_ms=0, on_step=lambda _: None, closing=closing)


def check_runs(lab: Lab, keys: list[str]) -> None:
    """Check that each experiment measures what the page shows, and that the first can be drawn."""
    pytest.importorskip("matplotlib")
    by_key = by_experiment(measure(lab, keys, experiments=tips.TIPS))
    assert list(by_key) == keys
    for key, findings in by_key.items():
        written = FIGURES[key]
        assert [f.unit for f in findings] == [f.unit for f in written]
        text = tips.as_markdown(key, findings)
        assert all(f.title in text for f in findings)
    draw(tips.TIPS[keys[0]], by_key[keys[0]], lab.folder / "drawn.png")
    assert (lab.folder / "drawn.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_experiments_in_a_folder_run(lab: Lab) -> None:
    check_runs(lab, ["floats", "nested", "sort", "tables", "cold"])


@pytest.mark.slow(seconds=4)
@pytest.mark.s3
def test_experiments_in_s3_run(lab: Lab) -> None:
    check_runs(lab, ["batches", "maintenance", "partitions", "opening"])
