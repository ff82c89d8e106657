"""Measurements for docs/tuning.md, and of a cold start: tables, plots, and the figures in benchmarks/tips.json.

    python -m benchmarks.tips                  # all of it, some minutes
    python -m benchmarks.tips --only sort,floats

Most figures are counts (requests, bytes, objects), which are equal in each run, on any machine. Times are processor
times, measured in turns: compare them within one row. This program writes the tables of the pages, between
`<!-- figures: KEY -->` and `<!-- end -->`.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.experiments import tips_rows, tips_tables
from benchmarks.experiments.lab import Lab
from benchmarks.harness.figures import Finding, Way
from benchmarks.tuning import Experiment, as_grid, by_experiment, draw, measure, short

__all__ = ["FIGURES", "PAGES", "TIPS", "as_markdown", "measure", "read_figures", "with_tables"]

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "benchmarks" / "tips.json"
PAGES = (ROOT / "docs" / "tuning.md", ROOT / "docs" / "functions.md")
PLOTS = ROOT / "docs" / "images"

TIPS: Mapping[str, Experiment] = {
    "floats": Experiment(
        "Force floats", "rows of a batch", tips_rows.floats, grows=False,
        finding="No batch is refused if its floats are sent as floats, or the column is declared",
    ),
    "nested": Experiment(
        "Nested values as text", "different fields", tips_rows.nested, grows=False,
        finding="Text of JSON is never refused, and costs less than nested objects with many fields",
    ),
    "batches": Experiment(
        "Large batches", "rows of a batch", tips_rows.batches,
        finding="Large batches need fewer requests, bytes and processor time for the same rows",
    ),
    "maintenance": Experiment(
        "Merge and clean often", "commits so far", tips_tables.maintenance,
        finding="With merges and cleanup, requests and objects do not grow with the commits",
    ),
    "partitions": Experiment(
        "Few large partitions", "partitioned by", tips_tables.partitions, grows=False,
        finding="Few large partitions need fewer requests and a smaller log than many small ones",
    ),
    "sort": Experiment(
        "Sort as you query", "sorted by", tips_tables.orders, grows=False,
        finding="A query reads least if the rows are sorted by its column",
    ),
    "tables": Experiment(
        "One table per access path", "tables", tips_tables.tables, grows=False,
        finding="A table for each query reads least, and stores more",
    ),
    "opening": Experiment(
        "Keep the table open", "log files", tips_tables.opening, grows=False,
        finding="A table that is kept open sends few requests, however many log files it has",
    ),
    "cold": Experiment("A cold start", "step", tips_tables.cold, grows=False),
}  # fmt: skip


def as_markdown(key: str, findings: Sequence[Finding]) -> str:
    """Return the tables of a tip: a column for each setting, with medians."""
    page_lines = []
    for n, names in enumerate(dict.fromkeys(tuple(way.name for way in f.ways) for f in findings)):
        page_lines.append(f"| {'' if n else TIPS[key].setting} | {' | '.join(names)} |\n|---|{'---|' * len(names)}\n")
        page_lines += [
            f"| {f.title}: {f.unit} | {' | '.join(short(way.median) for way in f.ways)} |\n"
            for f in findings
            if tuple(way.name for way in f.ways) == names
        ]
        page_lines.append("\n")
    return "".join(page_lines)


def with_tables(page: str, findings_by_key: Mapping[str, Sequence[Finding]]) -> str:
    """Return the page with the tables of the tips that it names. Raises KeyError for a tip without figures."""

    def table(match: re.Match[str]) -> str:
        return f"{match[1]}\n{as_markdown(match['key'], findings_by_key[match['key']])}{match['end']}"

    return re.sub(r"(<!-- figures: (?P<key>\w+) -->\n).*?(?P<end><!-- end -->)", table, page, flags=re.DOTALL)


def read_figures(file: Path = FIGURES) -> dict[str, list[Finding]]:
    """Return the figures in the file, for each tip in its order."""
    written: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    findings = [
        Finding(f["key"], f["title"], f["unit"], [Way(w["name"], w["values"]) for w in f["ways"]]) for f in written
    ]
    return {key: [f for f in findings if f.key == key] for key in TIPS if any(f.key == key for f in findings)}


def _write_figures(findings_by_key: Mapping[str, Sequence[Finding]], file: Path) -> None:
    written = [
        {"key": f.key, "title": f.title, "unit": f.unit, "ways": [{"name": w.name, "values": w.values} for w in f.ways]}
        for key in TIPS
        for f in findings_by_key.get(key, ())
    ]
    lines = ",\n".join(json.dumps(f) for f in written)
    file.write_text(f"[\n{lines}\n]\n")


def main(
    only: Annotated[str, typer.Option(help="Measure these tips, separated by commas.")] = "",
    rows: Annotated[int, typer.Option(min=1_000, help="Rows of the largest tables.")] = 1_000_000,
    commits: Annotated[int, typer.Option(min=50, help="Commits of the longest log.")] = 400,
    rounds: Annotated[int, typer.Option(min=1, help="Measured rounds of times, after a warm-up round.")] = 5,
    folder: Annotated[Path | None, typer.Option(help="Folder for temporary files.")] = None,
) -> None:
    """Measure; write figures, plots and the tables of the pages."""
    chosen = [key for key in only.split(",") if key]
    if unknown := [key for key in chosen if key not in TIPS]:
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}. Choose from {', '.join(TIPS)}")
    console = Console()
    with (
        tempfile.TemporaryDirectory(prefix="icedb-tips-", dir=folder) as name,
        console.status("starting") as status,
        ExitStack() as closing,
    ):
        lab = Lab(Path(name), rows, commits, rounds, 0, status.update, closing)
        findings_by_key = by_experiment(measure(lab, chosen, experiments=TIPS))
    for key, of_key in findings_by_key.items():
        console.print(as_grid(TIPS[key], of_key))
        if TIPS[key].drawn:
            draw(TIPS[key], of_key, PLOTS / f"tips-{key}.png")
    everything = read_figures() | findings_by_key
    _write_figures(everything, FIGURES)
    for page in PAGES:
        page.write_text(with_tables(page.read_text(), everything))


if __name__ == "__main__":
    typer.run(main)
