"""Write what the library makes of the worked example into docs/format.md: `python -m tests.support.update_format_page`.

For when the log's bytes change on purpose: blocks of objects, the void, and the two tables of what a reader sees.
tests/pages/test_format_page.py then compares the page with the library and with a reader made from the page alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from icedb.format.codec import encode
from icedb.format.keys import Keys
from icedb.format.records import LogFile
from icedb.testing import ManualClock
from tests.support.site.page_reader import PageReading, read_as_the_page_says

PAGE = Path(__file__).parents[2] / "docs" / "format.md"
PREFIX = "lake/clicks"
KEYS = Keys(PREFIX)
#: The events, and the number of log files after each. Cleanup leaves the last two.
MOMENTS = ["the first insert", "the second insert", "the exactly-once append", "the merge", "the drop"]


def updated(text: str, written: Mapping[str, bytes]) -> str:
    """Return the page with these objects."""
    log_files = sorted(k for k in written if k.startswith(KEYS.log_prefix))
    by_time = {log_time(k): k for k in log_files}

    def block(match: re.Match[str]) -> str:
        key = by_time[log_time(match[1])] if match[1].startswith(KEYS.log_prefix) else match[1]
        return f"`{key}`\n\n```{match[2]}\n{written[key].decode()}\n```"

    text = re.sub(rf"^`({PREFIX}/\S+)`\n\n```(jsonl?)\n.*?\n```$", block, text, flags=re.DOTALL | re.MULTILINE)
    void = encode(LogFile(int(log_time(log_files[-1])), {}, epoch=4, live_epochs=(3, 4), void=True)).decode()
    text = re.sub(r"(?<=^```jsonl void\n).*?(?=\n```$)", lambda _: void, text, flags=re.DOTALL | re.MULTILINE)
    for heading, lines in (("after", after(written, log_files)), ("snapshot at", past(written, log_files))):
        rows = "".join(f"| {' | '.join(cells)} |\n".replace("|  |", "| |") for cells in lines)
        text = re.sub(rf"(^\| {heading} \|.*\n\|[-|]+\|\n)(?:\|.*\n)+", rf"\g<1>{rows}", text, flags=re.MULTILINE)
    return text


def after(written: Mapping[str, bytes], log_files: list[str]) -> Iterable[list[str]]:
    """Return the state after each commit."""
    views = [(moment, log_files[: n + 1]) for n, moment in enumerate(MOMENTS)]
    for moment, listed in [*views, ("the cleanup", log_files[-2:])]:
        reading = read(written, listed)
        ignored = " ".join(log_time(k) for k in listed if k in reading.ignored)
        rows = sum(reading.markers[p]["r"] for p in reading.live())
        yield [moment, " ".join(map(log_time, listed)), str(reading.epoch), ignored, short(reading.live()), str(rows)]


def past(written: Mapping[str, bytes], log_files: list[str]) -> Iterable[list[str]]:
    """Return snapshots of the past, read after the drop and after the cleanup."""
    times = [int(log_time(k)) for k in log_files[:-1]]
    for at in [times[0] - 1, *times[:-1], times[-1] - 1, times[-1]]:
        yield [str(at), live_at(read(written, log_files[:-1]), at), live_at(read(written, log_files[-2:]), at)]


def read(written: Mapping[str, bytes], listed: list[str]) -> PageReading:
    return read_as_the_page_says({k: written[k] for k in listed}, f"{PREFIX}/")


def live_at(reading: PageReading, at: int) -> str:
    try:
        return short(reading.live(at)) or "none"
    except LookupError:
        return "expired"


def log_time(key: str) -> str:
    return key.removeprefix(KEYS.log_prefix)[:13]


def short(keys: Iterable[str]) -> str:
    """Parts by the first digits of their names."""
    return " ".join(sorted(key.rsplit("/", 1)[1][:4] for key in keys))


if __name__ == "__main__":
    from tests.pages.test_format_page import write_examples

    PAGE.write_text(updated(PAGE.read_text(), write_examples(ManualClock())[0]))
