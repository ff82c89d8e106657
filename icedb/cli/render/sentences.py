"""Sentences about what a verb did, would do, or is about to do, and the words that they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from icedb.util.counts import count_text, size_text
from icedb.util.times import iso_text, moment

__all__ = [
    "Outcome",
    "act_if",
    "acts",
    "again",
    "in_brackets",
    "minute_text",
    "partitions_text",
    "rows_text",
    "series",
]

#: The verbs of the sentences, and their past tense.
PAST = {
    "change": "changed",
    "create": "created",
    "delete": "deleted",
    "drop": "dropped",
    "export": "exported",
    "import": "imported",
    "insert": "inserted",
    "merge": "merged",
    "move": "moved",
    "pin": "pinned",
    "publish": "published",
    "recompute": "recomputed",
    "remove": "removed",
    "repair": "repaired",
    "replace": "replaced",
    "restore": "restored",
    "rewrite": "rewrote",
    "update": "updated",
}
_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """The effect of an operation, or of its plan."""

    #: Each verb in the imperative, with its object.
    acts: tuple[tuple[str, str], ...] = ()
    #: If there are no acts: the whole sentence.
    nothing: str = ""
    #: A further sentence, such as the next step. Not in a dry run with acts.
    note: str = ""

    def sentence(self, *, dry_run: bool) -> str:
        """Return what was done, or what a dry run would have done."""
        if not self.acts:
            first = self.nothing
        elif dry_run:
            first = f"Dry run: would {series([f'{verb} {what}' for verb, what in self.acts])}."
        else:
            first = _capital(series([f"{PAST[verb]} {what}" for verb, what in self.acts])) + "."
        return f"{first} {self.note}" if self.note and not (dry_run and self.acts) else first

    @property
    def question(self) -> str:
        """The acts as a question to the user."""
        return _capital(series([f"{verb} {what}" for verb, what in self.acts])) + "?"


def acts(*acts: tuple[str, str], nothing: str = "", note: str = "") -> Outcome:
    """Return an outcome of these acts."""
    return Outcome(acts, nothing, note)


def act_if(count: int, act: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the act unless the count is 0."""
    return (act,) if count else ()


def again(remaining: int, noun: str) -> str:
    """Return the next step if a call has left something to do."""
    return f"Run it again for {count_text(remaining, f'more {noun}')}." if remaining else ""


def rows_text(rows: int | None) -> str:
    """Format a number of rows, which may be unknown."""
    return "an unknown number of rows" if rows is None else count_text(rows, "row")


def in_brackets(size: int | None) -> str:
    """Return a size in bytes for the end of a phrase; nothing if it is unknown."""
    return "" if size is None else f" ({size_text(size)})"


def partitions_text(partitions: Sequence[str], preposition: str) -> str:
    """Return the number of partitions; nothing for a table without partitions."""
    return "" if tuple(partitions) in ((), ("",)) else f" {preposition} {count_text(len(partitions), 'partition')}"


def series(items: Sequence[str]) -> str:
    """Join the items of a sentence: `a, b and c`."""
    return " and ".join(filter(None, (", ".join(items[:-1]), *items[-1:])))


def minute_text(unix_ms: int, now_ms: int) -> str:
    """Return a time in minutes, rounded up; the time of another day with its date."""
    at, now = moment(unix_ms + _MINUTE_MS - 1), moment(now_ms)
    if at is None or now is None:
        return iso_text(unix_ms)
    return at.strftime("%H:%M UTC" if at.date() == now.date() else "%Y-%m-%d %H:%M UTC")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
