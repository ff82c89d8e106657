"""Draws the plots again from the stored figures, without measuring: `python -m benchmarks.redraw`.

Run it after a change of the plots. The figures are in RESULTS.json and tips.json. Those of `benchmarks.scale` are
computed. The other programs draw what they have just measured.
"""

from __future__ import annotations

from benchmarks import tips
from benchmarks.harness.results import read_entries, write_page
from benchmarks.tuning import draw

__all__ = ["redraw"]

RESULTS = tips.ROOT / "benchmarks" / "RESULTS.md"


def redraw() -> None:
    """Write RESULTS.md with its plots, and the plots of docs/tips.md."""
    write_page(RESULTS, read_entries(RESULTS.with_suffix(".json")))
    for key, findings in tips.read_figures().items():
        if tips.TIPS[key].drawn:
            draw(tips.TIPS[key], findings, tips.PLOTS / f"tips-{key}.png")


if __name__ == "__main__":
    redraw()
