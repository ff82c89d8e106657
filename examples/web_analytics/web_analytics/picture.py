"""The dashboard as a picture, `draw`, and as text, `in_words`. This module reads no table."""

import io
from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING

from web_analytics.figures import Figures, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw", "in_words"]

PAPER, PANEL, INK, FAINT, GRID = "#eef1f5", "#ffffff", "#1f2937", "#6b7280", "#e5e7eb"
COLOURS = ("#4f6bed", "#12a594", "#e5793a", "#a855c7", "#d6409f")
HEAT = ("#ffffff", "#c7d2fe", "#6d83f2", "#2b3a9e")
WIDTH_PX, HEIGHT_PX, DPI = 1400, 1000, 100
# A palette keeps the file small, with enough colors for smooth text and the shades of the hours.
PALETTE = 128
WEEK = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def in_words(figures: Figures) -> str:
    """Return the alternative text of the picture."""
    totals = figures.totals
    shops = "; ".join(
        f"{it.tenant} {sum(it.sessions):,} sessions and {sum(it.revenue):,.0f} euros" for it in figures.series
    )
    return (
        f"Web analytics from {figures.first} to {figures.last}: {totals['visitors']:,} visitors in "
        f"{totals['sessions']:,} sessions looked at {totals['page views']:,} pages; {totals['bounce rate']:.0%} of the "
        f"sessions saw one page; {totals['purchases']:,} purchases brought {totals['revenue']:,.0f} euros. "
        f"Of all days: {shops}."
    )


def draw(figures: Figures) -> bytes:
    """Return the picture as PNG."""
    # Imported here because it takes a second, and without pyplot, whose state all threads share.
    from matplotlib.figure import Figure
    from PIL import Image

    figure = Figure(figsize=(WIDTH_PX / DPI, HEIGHT_PX / DPI), dpi=DPI, facecolor=PAPER)
    _heading(figure, figures)
    colours = dict(zip((it.tenant for it in figures.series), COLOURS * len(figures.series), strict=False))
    # Left, bottom, width and height of each panel, in pixels from the upper left.
    _sessions(_panel(figure, (30, 220, 880, 360), "Sessions a day", "logarithmic"), figures.series, colours)
    _revenue(_panel(figure, (930, 220, 440, 360), "Revenue", "thousands of euros a week"), figures.series, colours)
    _hours(_panel(figure, (30, 600, 430, 370), "When pages are viewed", "UTC, darker is more", left=46), figures)
    _pages(_panel(figure, (480, 600, 430, 370), "Most viewed pages", "thousands", left=140), figures, colours)
    _bounces(_panel(figure, (930, 600, 440, 175), "Bounce rate", "mean of seven days"), figures.series, colours)
    _origins(_panel(figure, (930, 795, 440, 175), "Where sessions come from", "", left=84), figures)
    raw, file = io.BytesIO(), io.BytesIO()
    figure.savefig(raw, format="rgba", facecolor=PAPER)
    drawn = Image.frombytes("RGBA", (WIDTH_PX, HEIGHT_PX), raw.getvalue()).convert("RGB")
    drawn.quantize(PALETTE, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return file.getvalue()


def _heading(figure: "Figure", figures: Figures) -> None:
    _write(figure, (30, 42), "Web analytics", size=23, weight="bold")
    _write(figure, (30, 70), f"{figures.first:%d %B} to {figures.last:%d %B %Y}, all tenants", size=11.5, colour=FAINT)
    tiles = {
        "visitors": f"{figures.totals['visitors']:,}",
        "sessions": f"{figures.totals['sessions']:,}",
        "page views": f"{figures.totals['page views']:,}",
        "bounce rate": f"{figures.totals['bounce rate']:.1%}",
        "purchases": f"{figures.totals['purchases']:,}",
        "revenue": f"€ {figures.totals['revenue']:,.0f}",
    }
    width, between = 206.67, 20
    for number, (name, value) in enumerate(tiles.items()):
        left = 30 + number * (width + between)
        _box(figure, (left, 95, width, 105))
        _write(figure, (left + 18, 148), value, size=21, weight="bold")
        _write(figure, (left + 18, 180), name, size=11, colour=FAINT)


def _sessions(axes: "Axes", series: Sequence[Series], colours: dict[str, str]) -> None:
    for it in series:
        axes.plot(it.days, it.sessions, color=colours[it.tenant], linewidth=2.2, solid_capstyle="round")  # type: ignore[arg-type]
    axes.set_yscale("log")
    _plain_numbers(axes)
    axes.grid(axis="y", color=GRID)
    _dates(axes, series[0].days, room=0.21)
    _labels(axes, [(it.tenant, it.days[-1], it.sessions[-1], colours[it.tenant]) for it in series], size=10.5)


def _revenue(axes: "Axes", series: Sequence[Series], colours: dict[str, str]) -> None:
    """Draw a stacked bar for each week."""
    days = series[0].days
    starts = [days[at] for at in range(len(days) % 7 if len(days) > 7 else 0, len(days), 7)]
    lower = [0.0] * len(starts)
    for it in series:
        of_day = dict(zip(it.days, it.revenue, strict=True))
        weeks = [
            sum(of_day.get(date.fromordinal(start.toordinal() + n), 0.0) for n in range(7)) / 1000 for start in starts
        ]
        axes.bar(range(len(starts)), weeks, bottom=lower, width=0.68, color=colours[it.tenant])
        lower = [a + b for a, b in zip(lower, weeks, strict=True)]
    for at, top in enumerate(lower):
        axes.annotate(f"{top:.0f}", (at, top), (0, 3), textcoords="offset points", ha="center", fontsize=9, color=INK)
    axes.set_xticks(range(len(starts)), [f"{start:%d %b}" for start in starts])
    axes.set_yticks([])


def _hours(axes: "Axes", figures: Figures) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    axes.imshow(figures.hours, cmap=LinearSegmentedColormap.from_list("heat", HEAT), aspect="auto")
    axes.set_yticks(range(7), WEEK)
    axes.set_xticks(range(0, 24, 3), [f"{hour:02d}" for hour in range(0, 24, 3)])
    axes.set_xticks([hour - 0.5 for hour in range(1, 24)], minor=True)
    axes.set_yticks([day - 0.5 for day in range(1, 7)], minor=True)
    axes.grid(which="minor", color=PANEL, linewidth=1.5)
    axes.tick_params(which="minor", length=0)


def _pages(axes: "Axes", figures: Figures, colours: dict[str, str]) -> None:
    for row, (_, views) in enumerate(figures.pages):
        left = 0.0
        for tenant, colour in colours.items():
            axes.barh(row, views.get(tenant, 0) / 1000, left=left, height=0.66, color=colour)
            left += views.get(tenant, 0) / 1000
        axes.annotate(
            f"{left:.1f}", (left, row), (4, 0), textcoords="offset points", va="center", fontsize=9, color=INK
        )
    axes.set_yticks(range(len(figures.pages)), [page for page, _ in figures.pages])
    axes.set_ylim(len(figures.pages) - 0.4, -0.6)
    axes.margins(x=0.1)
    axes.set_xticks([])


def _bounces(axes: "Axes", series: Sequence[Series], colours: dict[str, str]) -> None:
    ends = []
    for it in series:
        weeks = [it.bounce_rate[max(0, at - 6) : at + 1] for at in range(len(it.days))]
        means = [100 * sum(week) / len(week) for week in weeks]
        axes.plot(it.days, means, color=colours[it.tenant], linewidth=1.9)  # type: ignore[arg-type]
        ends.append((f"{means[-1]:.0f} %", it.days[-1], means[-1], colours[it.tenant]))
    axes.grid(axis="y", color=GRID)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0f} %")
    axes.margins(y=0.15)
    _dates(axes, series[0].days, room=0.1)
    _labels(axes, ends, size=9)


def _origins(axes: "Axes", figures: Figures) -> None:
    whole = sum(count for _, count in figures.origins)
    shares = [100 * count / whole for _, count in figures.origins]
    axes.barh(range(len(shares)), shares, height=0.62, color=HEAT[2])
    for row, share in enumerate(shares):
        axes.annotate(
            f"{share:.0f} %", (share, row), (4, 0), textcoords="offset points", va="center", fontsize=9, color=INK
        )
    axes.set_yticks(range(len(shares)), [name for name, _ in figures.origins])
    axes.set_ylim(len(shares) - 0.4, -0.6)
    axes.margins(x=0.12)
    axes.set_xticks([])


# ------------------------------------------------------------------------------------ what all panels share


def _panel(
    figure: "Figure", place: tuple[float, float, float, float], title: str, unit: str, *, left: float = 52
) -> "Axes":
    """Add a white box with a title and axes. `left`: pixels for the labels."""
    x, y, width, height = place
    _box(figure, place)
    _write(figure, (x + 18, y + 27), title, size=12.5, weight="bold")
    _write(figure, (x + width - 18, y + 27), unit, size=9.5, colour=FAINT, align="right")
    axes = figure.add_axes(_of_whole((x + left, y + 46, width - left - 18, height - 76)))
    axes.set_facecolor(PANEL)
    axes.set_axisbelow(True)
    axes.tick_params(colors=FAINT, labelsize=9, length=0)
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    return axes


def _box(figure: "Figure", place: tuple[float, float, float, float]) -> None:
    from matplotlib.patches import FancyBboxPatch

    x, y, width, height = _of_whole(place)
    box = FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.006", zorder=-1)
    box.set(facecolor=PANEL, edgecolor=GRID, linewidth=1, transform=figure.transFigure)
    box.set_mutation_aspect(WIDTH_PX / HEIGHT_PX)
    figure.add_artist(box)


def _write(
    figure: "Figure", at: tuple[float, float], text: str, *, size: float, colour: str = INK, weight: str = "normal",
    align: str = "left",
) -> None:  # fmt: skip
    x, y = at[0] / WIDTH_PX, 1 - at[1] / HEIGHT_PX
    figure.text(x, y, text, fontsize=size, color=colour, weight=weight, ha=align, parse_math=False)


def _of_whole(place: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    """Convert pixels from the upper left to fractions from the lower left."""
    x, y, width, height = place
    return x / WIDTH_PX, 1 - (y + height) / HEIGHT_PX, width / WIDTH_PX, height / HEIGHT_PX


def _labels(axes: "Axes", ends: Sequence[tuple[str, date, float, str]], *, size: float) -> None:
    """Label the end of each line. A label moves up if it would overlap the one below."""
    points_per_px, lowest = 72 / DPI, float("-inf")
    for text, day, value, colour in sorted(ends, key=lambda end: end[2]):
        y = float(axes.transData.transform((0, value))[1]) * points_per_px
        label_y = max(y, lowest + 1.3 * size)
        axes.annotate(text, (day, value), (8, label_y - y), textcoords="offset points", va="center", fontsize=size,
                      color=colour, weight="bold")  # fmt: skip
        lowest = label_y


def _plain_numbers(axes: "Axes") -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(which="minor", length=0)


def _dates(axes: "Axes", days: Sequence[date], *, room: float) -> None:
    """Set a tick for each Monday. `room`: space for a label on the right, as a fraction of the days."""
    weeks = [day for day in days if day.weekday() == 0] or list(days)
    axes.set_xticks(weeks, [f"{day:%d %b}" for day in weeks])  # type: ignore[arg-type]
    begin, end = axes.dataLim.intervalx
    axes.set_xlim(begin - 0.3, end + (end - begin) * room + 1)
