"""A reader made from docs/format.md alone, without the library, which must agree with it.

It computes the live parts, now and at a time, from the objects of one listing. It fetches nothing, so a listing can be
torn only by a missing epoch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

#: The defaults that a reader needs to know.
MAX_SKEW_MS = 60_000
COMMIT_TIMEOUT_MS = 5 * 60_000
GRACE_MS = 60 * 60_000


@dataclass
class PageReading:
    """The state of the log. `log_files` are in the order of their names."""

    log_files: list[str]
    epoch: int
    ignored: set[str]
    markers: dict[str, dict[str, Any]]
    schema: dict[str, str]
    horizon: int
    spec: dict[str, Any]
    txn: dict[str, int]
    pinned: set[int] = field(default_factory=set)
    #: Column -> when it came; 0: not known.
    came: dict[str, int] = field(default_factory=dict)
    #: Time of a commit -> the names that log files record for it.
    operations: dict[int, set[str]] = field(default_factory=dict)

    def columns(self, at: int) -> set[str]:
        """Return the columns of a snapshot: those of the log, and those that were declared by then."""
        from_log = max(at, min(self.came.values(), default=at))
        declared_ms = self.spec.get("declared_ms", {})
        declared = {c for c in self.spec.get("columns", {}) if declared_ms.get(c, 0) <= at}
        dropped = self._spec_at(at).get("dropped", {})
        return ({column for column, t in self.came.items() if t <= from_log} | declared) - dropped.keys()

    def partition_by(self, at: int) -> list[str]:
        """Return the partition expressions of a snapshot."""
        expressions: list[str] = self._spec_at(at).get("partition_by", [])
        return expressions

    def _spec_at(self, at: int) -> dict[str, Any]:
        return next((e for e in self.spec.get("earlier", []) if at < e["until"]), self.spec)

    def live(self, at: int | None = None) -> set[str]:
        """Return the keys of the live parts. Raises LookupError for a time that has expired."""
        if at is None:
            return {p for p, m in self.markers.items() if "tmb" not in m}
        if at < self.horizon and at not in self.pinned:
            raise LookupError("expired")
        return {p for p, m in self.markers.items() if m["t"] <= at and ("tmb" not in m or m["tmb"] > at)}


def read_as_the_page_says(
    store: Mapping[str, bytes],
    prefix: str,
    *,
    log_store: Mapping[str, bytes] | None = None,
    log_prefix: str = "",
    stored_ms: Mapping[str, int] | None = None,
    now_ms: int = 0,
) -> PageReading:
    """Read the objects of one listing. Prefixes are empty or end in a slash.

    `log_store` and `log_prefix`: of log and claims, when they are in a store of their own. `stored_ms` and `now_ms` are
    for the pins.
    """
    if log_store is None:
        log_store, log_prefix = store, prefix
    files = {key: _parse(body) for key, body in sorted(log_store.items()) if key.startswith(f"{log_prefix}_log/")}
    epochs = {header["e"]: key for key, (header, *_) in files.items() if "e" in header}
    assert len(epochs) == sum("e" in header for header, *_ in files.values()), "two log files of one epoch"
    head = max(epochs, default=0)
    live_epochs = set(files[epochs[head]][0]["le"]) if epochs else set()
    assert live_epochs <= epochs.keys(), "a torn listing"
    ignored = {key for e, key in epochs.items() if e not in live_epochs}
    ignored |= {dead["p"] for e in live_epochs for dead in files[epochs[e]][2]}
    headers = [header for header, *_ in files.values()]
    reading = PageReading(
        log_files=list(files),
        epoch=head,
        ignored=ignored,
        markers={},
        schema={},
        horizon=max((h.get("hz", 0) for h in headers), default=0),
        spec=json.loads(store[f"{prefix}_table.json"]) if f"{prefix}_table.json" in store else {},
        txn={},
    )
    for key, (header, columns, dead, parts) in ((k, f) for k, f in files.items() if k not in ignored):
        assert header["t"] > 0
        _replay(reading, columns, parts)
        counted = dead and all(d["p"] in files and d["p"] not in ignored for d in dead)
        carries = key.rsplit("/", 1)[-1].split("_")[1] == "m" and not counted
        since = header.get("st", 0 if carries else header["t"])
        for column in columns:
            t = header.get("ct", {}).get(column, since)
            reading.came[column] = min(t, reading.came.get(column, t))
        for name, times in [(header.get("op", ""), [header["t"]]), *header.get("ops", {}).items()]:
            for t in times:
                reading.operations.setdefault(t, set()).add(name)
        for application, (sequence, _) in header.get("txn", {}).items():
            reading.txn[application] = max(sequence, reading.txn.get(application, 0))
        if header.get("spec", {}).get("revision", 0) > reading.spec.get("revision", 0):
            reading.spec = header["spec"]
    if stored_ms is not None:
        reading.pinned = set(_pinned(log_store, f"{log_prefix}_claims/pin-", stored_ms, now_ms))
    return reading


def _replay(reading: PageReading, columns: dict[str, str], parts: list[dict[str, Any]]) -> None:
    for column, type_ in columns.items():
        assert reading.schema.setdefault(column, type_) == type_, "a column has two types"
    for part in parts:
        earlier = reading.markers.setdefault(part["p"], part)
        both = {**part, **earlier}
        times = {k: min(m[k] for m in (earlier, part) if k in m) for k in both if k in ("t", "tmb")}
        reading.markers[part["p"]] = both | times


def _pinned(store: Mapping[str, bytes], pins: str, stored_ms: Mapping[str, int], now_ms: int) -> Iterator[int]:
    """Return the times of the pins in force."""
    for key in (k for k in store if k.startswith(pins)):
        pin = json.loads(store[key])
        assert key == f"{pins}{pin['name']}.json"
        in_time = stored_ms[key] - pin["created"] <= COMMIT_TIMEOUT_MS
        if in_time and (pin["expires"] is None or pin["expires"] > now_ms):
            yield pin["as_of"]


def _parse(body: bytes) -> tuple[dict[str, Any], dict[str, str], list[dict[str, Any]], list[dict[str, Any]]]:
    """Parse the header, the schema, the log tombstones and the part markers."""
    lines = [json.loads(line) for line in body.decode().split("\n")]
    header = lines[0]
    assert header["v"] in (1, "1")
    assert header.get("n", len(lines)) == len(lines), "a truncated log file"
    parts_at = header.get("f", len(lines))
    return header, lines[header["sch"]], lines[header["tmb"] : parts_at] if "tmb" in header else [], lines[parts_at:]


#: The page's table of times.
DEFAULT_MS = {
    "max_skew_ms": 60_000, "commit_timeout_ms": 300_000, "grace_ms": 3_600_000, "part_timeout_ms": 43_200_000,
    "late_ms": 86_400_000, "min_age_ms": 86_400_000, "txn_retention_ms": 30 * 86_400_000,
}  # fmt: skip


def counting_times(spec: Mapping[str, Any], now_ms: int) -> dict[str, int]:
    """Return each time of a table as it counts at a moment."""
    times = DEFAULT_MS | spec.get("timing", {})
    for known_ms, then in _earlier_times(spec):
        times |= {name: max(value, times[name]) for name, value in then.items() if known_ms + value > now_ms}
    return times


def publishable_age(spec: Mapping[str, Any], oldest_part_ms: int) -> int:
    """Return the age up to which a part may be published."""
    own = DEFAULT_MS | spec.get("timing", {})
    timeouts = [t["part_timeout_ms"] for known_ms, t in _earlier_times(spec) if known_ms > oldest_part_ms]
    return min([own["part_timeout_ms"], *timeouts])


def deleted_until(spec: Mapping[str, Any], pin_ms: int) -> int:
    """Return the time until which tombstoned parts count as deleted for a pin, without skew and precision."""
    own = DEFAULT_MS | spec.get("timing", {})
    limits = [min(pin_ms, known_ms) - then["grace_ms"] for known_ms, then in _earlier_times(spec)]
    return max([pin_ms - own["grace_ms"], *limits])


def _earlier_times(spec: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, int]]]:
    for entry in spec.get("earlier_timing", []):
        then = DEFAULT_MS | entry["timing"]
        yield entry["until"] + then["grace_ms"] + 2 * (then["commit_timeout_ms"] + then["max_skew_ms"]), then


@dataclass
class Refresher:
    """The log files of a reader that lists only possibly new ones. It keeps the others, because they never change."""

    log_files: dict[str, bytes] = field(default_factory=dict)
    listed_at: int = 0
    listed_whole_at: int = 0
    whole: int = 0
    partly: int = 0

    def refresh(self, store: Mapping[str, bytes], log: str, now_ms: int) -> dict[str, bytes]:
        """Return the log files to read. `log` is the prefix of their keys."""
        has_epochs = any(b'"e":' in body.split(b"\n", 1)[0] for body in self.log_files.values())
        if has_epochs and 0 <= now_ms - self.listed_whole_at <= GRACE_MS:
            after = f"{log}{min(self.listed_at, now_ms) - 2 * (COMMIT_TIMEOUT_MS + MAX_SKEW_MS):013d}"
            self.partly += 1
        else:
            after, self.listed_whole_at = "", now_ms
            self.whole += 1
        self.listed_at = now_ms
        older = {key: body for key, body in self.log_files.items() if key <= after}
        self.log_files = older | {key: body for key, body in store.items() if key.startswith(log) and key > after}
        return self.log_files

    def forget(self, ignored: set[str]) -> None:
        """Forget ignored log files, which may be deleted."""
        self.log_files = {key: body for key, body in self.log_files.items() if key not in ignored}
