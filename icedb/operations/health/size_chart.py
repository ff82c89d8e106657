"""The chart of a table's part sizes, which shows where a merge (compaction) would help.

It shows the number of parts by powers of two, the size below which a merge takes parts, and the partitions with most
parts to merge. These parts have a colour of their own. A small part that is alone in its partition is fine. A text with
the same content accompanies the picture.

A picture has a few kilobytes, because it is stored often. It has its own background, for light and dark pages.
"""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from icedb.operations.health.figures import shortened
from icedb.operations.rewrite.merge import PART_BYTES_MAX, plan_merge
from icedb.storage.parts import Part
from icedb.util.counts import binary_size_text, count_text, size_text
from icedb.util.optional_deps import import_optional
from icedb.util.plot_style import BLUE, GRID, INK, ORANGE, PAPER, TEXT_SIZE, annotate, plain, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FINE", "TO_MERGE", "PartSizes", "draw"]

FINE, TO_MERGE = BLUE, ORANGE
# The width of the dialog in which Dagster shows it.
WIDTH_PX, HEIGHT_PX, DPI = 860, 300, 100
PARTITIONS_MAX = 8
TICKS_MAX = 8
# The shades of each colour towards paper: few enough for a small file, and enough for smooth letters.
SHADES = 8


@dataclass(frozen=True, slots=True)
class PartSizes:
    """The data of the picture. A merge of all partitions would take `to_merge`."""

    parts: tuple[Part, ...]
    to_merge: tuple[Part, ...]
    part_bytes_max: int

    @classmethod
    def of(cls, parts: Sequence[Part], *, part_bytes_max: int = PART_BYTES_MAX) -> PartSizes:
        """Return the sizes of live parts, for merges with this limit."""
        no_limit = len(parts) + 1, sum(part.bytes for part in parts) + 1
        plan = plan_merge(
            parts, part_bytes_max=part_bytes_max, input_parts_max=no_limit[0], input_bytes_max=no_limit[1]
        )
        return cls(tuple(parts), tuple(part for group in plan.groups for part in group.inputs), part_bytes_max)

    @property
    def partitions_to_merge(self) -> list[tuple[str, int]]:
        """The partitions in which a merge would take parts, with their number, the largest first."""
        counts = Counter(part.partition for part in self.to_merge)
        return sorted(counts.items(), key=lambda counted: (-counted[1], counted[0]))

    @property
    def text(self) -> str:
        """The content of the picture as text."""
        small = sum(part.bytes < self.part_bytes_max for part in self.parts)
        partitions = Counter(part.partition for part in self.parts)
        sentences = [
            f"{count_text(len(self.parts), 'live part')} in {count_text(len(partitions), 'partition')}, "
            f"{size_text(sum(part.bytes for part in self.parts))} in all; "
            f"{small:,} {'is' if small == 1 else 'are'} below {binary_size_text(self.part_bytes_max)}."
        ]
        if self.to_merge:
            name, most = self.partitions_to_merge[0]
            sentences.append(
                f"A merge would take {len(self.to_merge):,} of them in "
                f"{count_text(len(self.partitions_to_merge), 'partition')}"
                + (f"; the most, {most:,}, are in {name}." if name else ".")
            )
        else:
            sentences.append("There is nothing to merge.")
        return " ".join(sentences)


def draw(sizes: PartSizes) -> bytes:
    """Return the picture as a PNG. There must be at least one part. Raises MissingExtra."""
    # Imported here, because it takes a second, and without pyplot, whose state all threads share.
    import_optional("matplotlib", extra="dagster")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_PX / DPI, HEIGHT_PX / DPI), dpi=DPI, facecolor=PAPER)
    taken = {part.key for part in sizes.to_merge}
    to_merge = Counter(part.bytes.bit_length() for part in sizes.to_merge)
    fine = Counter(part.bytes.bit_length() for part in sizes.parts if part.key not in taken)
    # Left, bottom, width and height as fractions, because computing the layout takes longer than drawing.
    if sizes.to_merge:
        _draw_sizes(plain(figure.add_axes((0.02, 0.11, 0.47, 0.74))), fine, to_merge, sizes.part_bytes_max)
        _draw_partitions(plain(figure.add_axes((0.73, 0.11, 0.25, 0.74))), sizes)
    else:
        _draw_sizes(plain(figure.add_axes((0.02, 0.11, 0.96, 0.74))), fine, to_merge, sizes.part_bytes_max)
    return _as_png(figure)


def _as_png(figure: Figure) -> bytes:
    """Return a figure as a small PNG, in the colours of this module and their shades."""
    from PIL import Image

    raw, file = io.BytesIO(), io.BytesIO()
    figure.savefig(raw, format="rgba")
    drawn = Image.frombytes("RGBA", (WIDTH_PX, HEIGHT_PX), raw.getvalue())
    palette = Image.new("P", (1, 1))
    palette.putpalette([value for colour in (INK, FINE, TO_MERGE) for value in _shades(colour)])
    drawn.convert("RGB").quantize(palette=palette, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return file.getvalue()


def _shades(colour: str) -> list[int]:
    """Return red, green and blue of the shades between a colour and paper."""
    values = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return [value + (255 - value) * shade // (SHADES - 1) for shade in range(SHADES) for value in values]


def _draw_sizes(axes: Axes, fine: Counter[int], to_merge: Counter[int], part_bytes_max: int) -> None:
    """Draw a bar for each power of two. Bar n has the parts from 2 ** (n - 1) bytes on, and ends at n + 0.5.

    `to_merge` counts the parts of each bar that a merge would take, and `fine` the others.
    """
    limit = math.log2(part_bytes_max) + 0.5
    at = range(max(0, min(*fine, *to_merge, int(limit)) - 1), max(*fine, *to_merge, int(limit) + 1) + 1)
    lower = [fine[n] for n in at]
    axes.bar(at, lower, width=0.86, color=FINE, label="as it should be" if fine else "")
    axes.bar(
        at, [to_merge[n] for n in at], width=0.86, bottom=lower, color=TO_MERGE, label="to merge" if to_merge else ""
    )
    for n in at:
        if whole := fine[n] + to_merge[n]:
            annotate(axes, f"{whole:,}", (n, whole), (0, 2), ha="center")
    top = 1.15 * max(fine[n] + to_merge[n] for n in at)
    axes.set_ylim(0, top)
    axes.axhline(0, color=GRID, linewidth=1.5)
    axes.axvline(limit, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    annotate(axes, f"below {binary_size_text(part_bytes_max)}", (limit, top), (-4, -3), ha="right", va="top")
    edges = [n for n in at if (n - int(limit)) % math.ceil(len(at) / TICKS_MAX) == 0]
    axes.set_xticks([n + 0.5 for n in edges], [binary_size_text(1 << n) for n in edges])
    axes.set_yticks([])
    title(
        axes,
        f"{count_text(fine.total() + to_merge.total(), 'live part')} by size{'' if to_merge else ', nothing to merge'}",
    )
    axes.legend(
        loc="lower right", bbox_to_anchor=(1, 0.97), ncols=2, frameon=False, fontsize=TEXT_SIZE, labelcolor=INK,
        handlelength=0.9, handleheight=0.9,
    )  # fmt: skip


def _draw_partitions(axes: Axes, sizes: PartSizes) -> None:
    """Draw a bar for each of the partitions in which a merge would take most parts."""
    partitions = sizes.partitions_to_merge
    first = partitions[:PARTITIONS_MAX]
    axes.barh(range(len(first)), [count for _, count in first], height=0.72, color=TO_MERGE)
    for row, (_, count) in enumerate(first):
        annotate(axes, f"{count:,}", (count, row), (3, 0), va="center")
    axes.set_yticks(range(len(first)), [shortened(name) for name, _ in first], parse_math=False)
    axes.set_xticks([])
    axes.set_ylim(PARTITIONS_MAX - 0.5, -0.5)  # the first at the top, and bars of one height however few
    axes.set_xlim(0, 1.15 * first[0][1])
    more = f", the first {len(first)} of {len(partitions):,} partitions" if len(partitions) > len(first) else ""
    title(axes, f"{len(sizes.to_merge):,} to merge{more}", side="right")
