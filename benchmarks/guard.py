"""A guard against growing costs: counted requests, bytes and allocations beside those that are committed.

    python -m benchmarks.guard             # compare; 1 when a figure has grown
    python -m benchmarks.guard --update    # write benchmarks/guard.json

No clock is in it, so every run gives the same. Requests and bytes are counted on the wire to a real S3 server.
"""

from __future__ import annotations

import json
import platform
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid

from benchmarks.guard_allocations import allocations
from benchmarks.guard_requests import requests
from benchmarks.slow_store import s3_server, storage_options

__all__ = ["FILE", "Change", "Figures", "Kind", "as_grid", "changes", "main", "measure", "read_figures"]

FILE = Path(__file__).with_name("guard.json")


class Kind(Enum):
    """What a figure counts, and so how far two runs of the same code may differ."""

    #: There is nothing that could make them differ.
    REQUESTS = "requests"
    #: A column's encoder decides some, and the digits of a size or a time in a log.
    BYTES = "bytes"
    #: What is cached, or grows by doubling, moves them a little.
    ALLOCATIONS = "allocations"


#: A share of the old figure, and what may be more besides: half a byte or block of each of many things is noise.
TOLERANCES = {Kind.REQUESTS: (0.0, 0.0), Kind.BYTES: (0.02, 0.0), Kind.ALLOCATIONS: (0.1, 0.5)}
#: Of libraries that decide bytes and allocations; with others, only requests are compared.
_DECISIVE = ("duckdb", "msgspec", "pyarrow")

#: By what was done: what it took.
Figures = Mapping[Kind, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Change:
    """A figure that is not what it was. None: it was, or is, not there."""

    kind: Kind
    name: str
    old: float | None
    new: float | None

    @property
    def is_growth(self) -> bool:
        """Whether it is to be explained: it grew beyond its tolerance, or nobody knows what it was."""
        return self.old is None or (self.new is not None and self.new > self.old + self._tolerated(self.old))

    @property
    def is_gain(self) -> bool:
        """Whether it shrank beyond its tolerance."""
        return self.old is not None and self.new is not None and self.new < self.old - self._tolerated(self.old)

    def _tolerated(self, old: float) -> float:
        share, besides = TOLERANCES[self.kind]
        return share * old + besides


def environment() -> dict[str, str]:
    """What decides bytes and allocations besides our own code."""
    return {"python": ".".join(platform.python_version_tuple()[:2])} | {name: version(name) for name in _DECISIVE}


def measure(options: Mapping[str, str], folder: Path, *, on_step: Callable[[str], None] = lambda _: None) -> Figures:
    """Everything that is guarded, with a server that has the benchmarks' bucket, and an empty folder."""
    counted, sizes = requests(options, folder / "proxy", on_step=on_step)
    on_step("allocations")
    return {Kind.REQUESTS: counted, Kind.BYTES: sizes, Kind.ALLOCATIONS: allocations()}


def read_figures(path: Path) -> tuple[dict[str, str], Figures]:
    """The committed figures, and where they are from. Raises FileNotFoundError, ValueError."""
    content = json.loads(path.read_text())
    return content["environment"], {kind: content[kind.value] for kind in Kind}


def write_figures(path: Path, figures: Figures) -> None:
    """Commit to these."""
    content = {"environment": environment()} | {kind.value: dict(changed) for kind, changed in figures.items()}
    path.write_text(json.dumps(content, indent=2) + "\n")


def changes(old: Figures, new: Figures, *, same_environment: bool = True) -> list[Change]:
    """All figures that differ; those that an environment decides only if it is the same."""
    kinds = [k for k in Kind if same_environment or k is Kind.REQUESTS]
    return [
        Change(kind, name, old[kind].get(name), new[kind].get(name))
        for kind in kinds
        for name in {**old[kind], **new[kind]}
        if old[kind].get(name) != new[kind].get(name)
    ]


def as_grid(changed: list[Change], title: str) -> Grid:
    """Figures for people, old -> new."""
    grid = Grid(title=title, title_justify="left", box=SIMPLE_HEAD)
    grid.add_column("figure")
    for name in ("old", "new", "ratio"):
        grid.add_column(name, justify="right")
    for change in changed:
        ratio = f"{change.new / change.old:.2f}" if change.old and change.new is not None else ""
        grid.add_row(f"{change.name} ({change.kind.value})", *map(_text, (change.old, change.new)), ratio)
    return grid


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:,.10g}"


def report(console: Console, file: Path, figures: Figures) -> bool:
    """Compare with a file, and say what differs; whether nothing has grown."""
    where, old = read_figures(file)
    same = where == environment()
    changed = changes(old, figures, same_environment=same)
    if not same:
        console.print(f"Only requests are compared: the committed figures are from {where}, this is {environment()}.")
    grown, gained = [c for c in changed if c.is_growth], [c for c in changed if c.is_gain]
    gone = [c for c in changed if c.new is None]
    if gained:
        console.print(as_grid(gained, "Less than before; `--update` keeps it so"))
    if gone:
        console.print(as_grid(gone, "Not measured any more; `--update` forgets them"))
    if grown:
        console.print(as_grid(grown, "Grown, or new"))
        console.print("If that is meant: `python -m benchmarks.guard --update`, and say why in the commit.")
        return False
    console.print(f"{sum(map(len, figures.values()))} figures: none has grown.")
    return True


def main(
    update: Annotated[bool, typer.Option(help="Write the figures as they are now.")] = False,
    file: Annotated[Path, typer.Option(help="Where the figures are.")] = FILE,
) -> None:
    """Count requests, bytes and allocations, and compare them with those that are committed."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="icedb-guard-") as name, console.status("starting") as status:
        folder = Path(name)
        with s3_server(folder / "server") as endpoint:
            figures = measure(storage_options(endpoint), folder, on_step=status.update)
    if update:
        write_figures(file, figures)
        console.print(f"{file} is written: {sum(map(len, figures.values()))} figures.")
    elif not report(console, file, figures):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
