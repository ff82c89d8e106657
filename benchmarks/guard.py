"""A guard against growing costs: it compares requests, bytes and allocations with the committed figures.

    python -m benchmarks.guard             # compare; exit with status 1 if a figure has grown
    python -m benchmarks.guard --update    # write benchmarks/guard.json

It measures no time, so every run has the same figures. Requests and bytes are counted on the wire to a real S3 server.
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

from benchmarks.guarded.allocations import allocations
from benchmarks.guarded.requests import requests
from benchmarks.harness.slow_store import s3_server, storage_options

__all__ = ["FILE", "Change", "Figures", "Kind", "as_grid", "changes", "main", "measure", "read_figures"]

FILE = Path(__file__).with_name("guard.json")


class Kind(Enum):
    """The kind of a figure, which decides how far two runs of the same code may differ."""

    #: Equal in every run.
    REQUESTS = "requests"
    #: They depend a little on encoders, and on the digits of sizes and times in a log.
    BYTES = "bytes"
    #: They depend a little on caches and on growth by doubling.
    ALLOCATIONS = "allocations"


#: The tolerance: a share of the old figure, and an absolute amount, because half a byte or block of each item is noise.
TOLERANCES = {Kind.REQUESTS: (0.0, 0.0), Kind.BYTES: (0.02, 0.0), Kind.ALLOCATIONS: (0.1, 0.5)}
#: Libraries that affect bytes and allocations. With other versions, only requests are compared.
_DECISIVE = ("duckdb", "msgspec", "pyarrow")

#: The figures of each operation, by name.
Figures = Mapping[Kind, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Change:
    """A changed figure. None: the figure is new, or was removed."""

    kind: Kind
    name: str
    old: float | None
    new: float | None

    @property
    def is_growth(self) -> bool:
        """True if the figure is new or grew beyond its tolerance."""
        return self.old is None or (self.new is not None and self.new > self.old + self._tolerated(self.old))

    @property
    def is_gain(self) -> bool:
        """True if it shrank beyond its tolerance."""
        return self.old is not None and self.new is not None and self.new < self.old - self._tolerated(self.old)

    def _tolerated(self, old: float) -> float:
        share, besides = TOLERANCES[self.kind]
        return share * old + besides


def environment() -> dict[str, str]:
    """Return the versions that affect bytes and allocations."""
    return {"python": ".".join(platform.python_version_tuple()[:2])} | {name: version(name) for name in _DECISIVE}


def measure(options: Mapping[str, str], folder: Path, *, on_step: Callable[[str], None] = lambda _: None) -> Figures:
    """Measure all figures, with a server that has the benchmarks' bucket, in an empty folder."""
    counted, sizes = requests(options, folder / "proxy", on_step=on_step)
    on_step("allocations")
    return {Kind.REQUESTS: counted, Kind.BYTES: sizes, Kind.ALLOCATIONS: allocations()}


def read_figures(path: Path) -> tuple[dict[str, str], Figures]:
    """Return the committed figures, and their environment. Raises FileNotFoundError, ValueError."""
    content = json.loads(path.read_text())
    return content["environment"], {kind: content[kind.value] for kind in Kind}


def write_figures(path: Path, figures: Figures) -> None:
    """Write the figures to the file."""
    content = {"environment": environment()} | {kind.value: dict(changed) for kind, changed in figures.items()}
    path.write_text(json.dumps(content, indent=2) + "\n")


def changes(old: Figures, new: Figures, *, same_environment: bool = True) -> list[Change]:
    """Return all changed figures. Bytes and allocations are compared in the same environment only."""
    kinds = [k for k in Kind if same_environment or k is Kind.REQUESTS]
    return [
        Change(kind, name, old[kind].get(name), new[kind].get(name))
        for kind in kinds
        for name in {**old[kind], **new[kind]}
        if old[kind].get(name) != new[kind].get(name)
    ]


def as_grid(changed: list[Change], title: str) -> Grid:
    """Return a table of changes."""
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
    """Compare with a file, print the changes, and return whether nothing has grown."""
    where, old = read_figures(file)
    same = where == environment()
    changed = changes(old, figures, same_environment=same)
    if not same:
        console.print(f"Only requests are compared: the committed figures are from {where}, not {environment()}.")
    grown, gained = [c for c in changed if c.is_growth], [c for c in changed if c.is_gain]
    gone = [c for c in changed if c.new is None]
    if gained:
        console.print(as_grid(gained, "Less than before. `--update` commits to it"))
    if gone:
        console.print(as_grid(gone, "Not measured any more. `--update` removes them"))
    if grown:
        console.print(as_grid(grown, "Grown, or new"))
        console.print(
            "If intended, run `python -m benchmarks.guard --update`, and give the reason in the commit message."
        )
        return False
    console.print(f"{sum(map(len, figures.values()))} figures: none has grown.")
    return True


def main(
    update: Annotated[bool, typer.Option(help="Write the current figures.")] = False,
    file: Annotated[Path, typer.Option(help="File of the figures.")] = FILE,
) -> None:
    """Count requests, bytes and allocations, and compare them with the committed figures."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="icedb-guard-") as name, console.status("starting") as status:
        folder = Path(name)
        with s3_server(folder / "server") as endpoint:
            figures = measure(storage_options(endpoint), folder, on_step=status.update)
    if update:
        write_figures(file, figures)
        console.print(f"Wrote {file}: {sum(map(len, figures.values()))} figures.")
    elif not report(console, file, figures):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
