"""The results of the suite as JSON, and the page made from them: a row for each goal, then all figures.

A run of some rows replaces these in the JSON. The page is always made from the whole JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.harness.figures import OURS, Check, Finding, Way, ratio_to
from benchmarks.harness.machine import Machine
from benchmarks.harness.plots import draw
from benchmarks.harness.words import number, quantity, spread

__all__ = ["ROWS", "Entry", "Run", "page", "read_entries", "write_entries", "write_page"]

#: The rows by key, in the order of the page.
ROWS: Mapping[str, str] = {
    "insert": "insert 1M Arrow rows",
    "dicts": "insert 200k rows that are dicts",
    "appends": "20 appends of 50k rows",
    "commits": "commits per second, 8 writers",
    "merge": "merge 600 parts into 30",
    "upsert": "upsert rows by key",
    "open": "open a table with 1M live parts",
    "store": "open after 10,000 commits, over a network",
    "refresh": "refresh on a quiet table",
    "life": "merge and log merge cost over a long life",
    "overhead": "query overhead over bare Parquet",
    "import": "import of the library",
}


@dataclass(frozen=True, slots=True)
class Run:
    """The conditions of a run. `commit` is that of the code."""

    machine: Machine
    commit: str
    full: bool
    rounds: int
    latency_ms: float


@dataclass(frozen=True, slots=True)
class Entry:
    """The findings of one key, or the reason of the failure. `seconds` is the time of `module` for all of its keys."""

    run: Run
    findings: Sequence[Finding] = ()
    failed: str = ""
    module: str = ""
    seconds: float = 0.0


# ------------------------------------------------------------------------------------------ JSON


def read_entries(path: Path) -> dict[str, Entry]:
    """Read entries by key, none if the file does not exist. Raises msgspec.ValidationError for another format."""
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Entry]) if path.exists() else {}


def write_entries(path: Path, entries: Mapping[str, Entry]) -> None:
    """Write entries for `read_entries`, with one line for each value, so that differences are readable."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(entries), indent=1) + b"\n")


# ------------------------------------------------------------------------------------------ words


def _ratio(ours: Way, other: Way) -> str:
    """Format the ratio of the medians, with its range over the common rounds."""
    if not all(other.values):
        return ""
    ratio, rounds = ratio_to(ours, other)
    return f"{number(ratio)} ({spread(*rounds)})"


def _verdict(check: Check) -> str:
    rounds = f" ({spread(*check.spread)})" if check.spread is not None else ""
    return f"{number(check.value)}{rounds} **{'met' if check.met else 'missed'}**"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: int = 0) -> Iterator[str]:
    """Yield a table. Its last `right` columns are numbers."""
    yield _line(head)
    yield "|" + "|".join(["---"] * (len(head) - right) + ["---:"] * right) + "|"
    yield from map(_line, rows)
    yield ""


# ------------------------------------------------------------------------------------------ the page


def write_page(path: Path, entries: Mapping[str, Entry]) -> None:
    """Write the page, and its plots in the folder `plots` next to it."""
    plots = path.parent / "plots"
    plots.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, list[list[str]]] = {}
    for key, entry in entries.items():
        for old in plots.glob(f"{key}-[0-9]*.png"):
            old.unlink()
        drawn[key] = [
            [f"plots/{p.name}" for p in draw(finding, plots / f"{key}-{n}")]
            for n, finding in enumerate(entry.findings, 1)
        ]
    path.write_text(page(entries, drawn))


def page(entries: Mapping[str, Entry], drawn: Mapping[str, Sequence[Sequence[str]]]) -> str:
    """Return the page in Markdown. `drawn` has the paths of each finding's plots."""
    keys = [*ROWS, *(key for key in entries if key not in ROWS)]
    lines = [
        "# Results",
        "",
        "`make bench` (or `make bench-full`) writes this page. [README.md](README.md) describes how to read and repeat",
        "it. Times are medians of rounds in turns, with the least and the greatest, and are compared within one run",
        "only. A ratio is ours to theirs, with the least and the greatest of a round.",
        "",
        *_where(entries),
        "## All goals",
        "",
        *_grid(["work", "ours", "ours to theirs", "goal", "measured"], list(_summary(keys, entries))),
    ]
    for key in keys:
        if key in entries:
            lines += [f"## {ROWS.get(key, key)}", ""]
            lines += _section(entries[key], drawn.get(key, ()))
    return "\n".join(lines).rstrip() + "\n"


def _where(entries: Mapping[str, Entry]) -> Iterator[str]:
    runs: list[tuple[Run, list[str]]] = []
    for key, entry in entries.items():
        same = next((keys for run, keys in runs if run == entry.run), None)
        if same is None:
            runs.append((entry.run, [key]))
        else:
            same.append(key)
    for run, keys in runs:
        yield "## Where" if len(runs) == 1 else f"## Where: {', '.join(keys)}"
        yield ""
        machine = run.machine
        versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
        form = f"{'full' if run.full else 'short'}, {run.rounds} rounds after one that warms up"
        yield from _grid(
            ["", ""],
            [
                ["processor", f"{machine.processor}, {machine.cores} cores"],
                ["memory", f"{machine.memory_gib:g} GiB"],
                ["system", f"{machine.kernel}, {machine.python}"],
                ["versions", versions],
                ["commit", run.commit],
                ["form", f"{form}; {run.latency_ms:g} ms for each request to S3"],
                ["time", _took([entries[key] for key in keys])],
            ],
        )


def _took(entries: Sequence[Entry]) -> str:
    """Return the time of each module, and their sum."""
    of = {entry.module: entry.seconds for entry in entries if entry.module}
    each = ", ".join(f"{name.rpartition('.')[2]} {seconds:.0f} s" for name, seconds in of.items())
    return f"{each}; in total {sum(of.values()):.0f} s" if of else "unknown"


def _summary(keys: Sequence[str], entries: Mapping[str, Entry]) -> Iterator[list[str]]:
    for key in keys:
        entry = entries.get(key)
        if entry is None:
            yield [ROWS.get(key, key), "", "", "", "not measured"]
        elif entry.failed:
            yield [ROWS.get(key, key), "", "", "", f"**failed**: {entry.failed}"]
        else:
            for finding in entry.findings:
                yield from _summary_rows(finding)


def _summary_rows(finding: Finding) -> Iterator[list[str]]:
    ratios = [
        _of_peer(way, ours)
        for way in finding.ways
        if not way.name.startswith(OURS) and (ours := finding.compared(way)) is not None
    ]
    title = f"[{finding.short or finding.title}](#{_anchor(finding.title)})"
    first = [title, "<br>".join(_ours(finding)), "<br>".join(ratios)]
    if not finding.checks:
        yield [*first, "", ""]
    for check in finding.checks:
        yield [*first, check.goal, _verdict(check)]
        first = ["", "", ""]


def _ours(finding: Finding) -> list[str]:
    """Return the figure of our way, or of all ways if none is the main one."""
    of = {way.name: way for way in finding.ways if way.ours}
    return [
        f"{name} {value_text}" if (name := way.name.removeprefix(OURS).removeprefix(", ")) else value_text
        for way in ([of[OURS]] if OURS in of else of.values())
        for value_text in [_median(way, finding.unit)]
    ]


def _median(way: Way, unit: str) -> str:
    """Format the median with its unit, and the range if the values differ."""
    value_text = quantity(way.median, unit)
    value_text = value_text if value_text.endswith(" ms") else f"{value_text} {unit}"
    least, greatest = min(way.values), max(way.values)
    return value_text if least == greatest else f"{value_text} ({spread(least, greatest, unit)})"


def _of_peer(way: Way, ours: Way) -> str:
    of = "" if ours.name == OURS else f"{ours.name} to "
    return f"{of}{way.name} {_ratio(ours, way)}"


def _anchor(title: str) -> str:
    return "".join(c for c in title.lower() if c.isalnum() or c in " -_").replace(" ", "-")


def _section(entry: Entry, drawn: Sequence[Sequence[str]]) -> Iterator[str]:
    if entry.failed:
        yield from [f"Failed: {entry.failed}", ""]
    for n, finding in enumerate(entry.findings):
        yield from [f"### {finding.title}", ""]
        for picture in drawn[n] if n < len(drawn) else ():
            yield from [f"![{finding.title}]({picture})", ""]
        yield from _figures(finding)
        yield from [*(f"- {check.goal}: {_verdict(check)}" for check in finding.checks), ""]
        for why in dict.fromkeys(check.why for check in finding.checks if check.why and not check.met):
            yield from [f"Why missed: {why}", ""]
        yield from [*(f"- {note}" for note in finding.notes), ""]


def _figures(finding: Finding) -> Iterator[str]:
    more = ", more is better" if finding.is_rate else ""
    head = [f"median, {finding.unit}{more}", "least to greatest"]
    if ways := [way for way in finding.ways if way.ours]:
        if any(map(finding.compared, ways)):
            rows = [[*_row(way, finding.unit), _of_ours(way, finding)] for way in ways]
            yield from _grid(["way", *head, "ours to it"], rows, right=3)
        else:
            yield from _grid(["way", *head], [_row(way, finding.unit) for way in ways], right=2)
    if steps := [way for way in finding.ways if not way.ours]:
        yield from _grid(["beside it", *head], [_row(way, finding.unit) for way in steps], right=2)
    yield from _counted(finding.counts)


def _row(way: Way, unit: str) -> list[str]:
    return [way.name, quantity(way.median, unit), spread(min(way.values), max(way.values), unit)]


def _of_ours(way: Way, finding: Finding) -> str:
    ours = finding.compared(way)
    if ours is None:
        return ""
    return _ratio(ours, way) + ("" if ours.name == OURS else f", by {ours.name}")


def _counted(counts: Mapping[str, float]) -> Iterator[str]:
    """Yield counts in one column, or a column for each group if all are named `group: count`."""
    cells = {tuple(name.split(": ", 1)): number(count) for name, count in counts.items()}
    if counts and all(len(name) == 2 for name in cells):
        groups = list(dict.fromkeys(group for group, _ in cells))
        whats = dict.fromkeys(what for _, what in cells)
        rows = [[what, *(cells.get((group, what), "") for group in groups)] for what in whats]
        yield from _grid(["counted", *groups], rows, right=len(groups))
    elif counts:
        yield from _grid(["counted", ""], [[name, number(count)] for name, count in counts.items()], right=1)
