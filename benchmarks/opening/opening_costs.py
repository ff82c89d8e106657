"""The costs of opening a table, refreshing it and querying it, and of importing the library.

`measure` returns the rows "open", "store", "refresh", "overhead" and "import".
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from benchmarks.harness.figures import OURS, Check, Finding, Plan, Step, Way, ratio_to
from benchmarks.opening.long_log import measure_store
from benchmarks.opening.made_logs import make_delta, make_table
from benchmarks.opening.quiet_table import measure_overhead, measure_refresh

__all__ = ["measure", "measure_import", "measure_open"]

PARTS = 1_000_000
#: The size of the table that is opened first, so that one-time costs are not counted.
SMALL_PARTS = 100
DECODINGS_MAX = 3.0
PART_BYTES_MAX = 200.0
IMPORT_MS_MAX = 100.0
#: Rounds of processes that take a quarter of a second.
IMPORTS_MIN = 5

_WHY = (
    "by profile, three quarters of the time decode lines into columns, batch by batch, with a digest and a key of each "
    "part, which the bare decoding omits. A sixth reads the file, and the rest sorts the parts. An improvement would "
    "decode lines into columns without an object for each"
)
_WHY_MEMORY = (
    "a part's line is some 230 bytes. Its path and digest, which are incompressible, are half of the memory, and "
    "statistics, which stay encoded, most of the rest. An improvement would compress them"
)

#: Measures one row in a new folder.
Measured = Callable[[Plan, Path, Step], Finding]

_ROOT = Path(__file__).parents[2]
_DECODING = "decoding the lines alone"
_UNCOLLECTED = "decoding them, no garbage collection"
_DELTA = "deltalake, from a checkpoint"
_TABLE = f"{OURS}, and what a table needs"


def measure(plan: Plan, folder: Path, on_step: Step) -> list[Finding]:
    """Measure the selected rows in an empty folder."""
    rows: dict[str, Measured] = {
        "open": measure_open,
        "store": measure_store,
        "refresh": measure_refresh,
        "overhead": measure_overhead,
        "import": measure_import,
    }
    return [row(plan, folder / key, on_step) for key, row in rows.items() if plan.wants(key)]


# ------------------------------------------------------------------------------------------ a million parts


def measure_open(plan: Plan, folder: Path, on_step: Step) -> Finding:
    """Measure `Table.open` and `snapshot()` of a million live parts in one log file, in a new process each."""
    parts = plan.size(PARTS)
    on_step(f"open: a log of {parts:,} parts")
    make_table(folder / "table", parts)
    make_table(folder / "small", SMALL_PARTS)
    make_delta(folder / "delta", parts)
    make_delta(folder / "small-delta", SMALL_PARTS)
    of: dict[str, list[dict[str, float]]] = {"decode": [], "open": [], "delta": []}
    for number in range(plan.rounds + 1):
        for program, rounds in of.items():
            if program == "delta" and number > plan.rounds_beside():
                continue
            on_step(f"open, {program}: " + (f"round {number}" if number else "warm-up"))
            target = folder / ("delta" if program == "delta" else "table")
            measurement = _child(["-m", "benchmarks.opening.open_process", program, str(target)])
            if number:
                rounds.append(measurement)
    on_step("open, prune")
    pruned = _child(["-m", "benchmarks.opening.open_process", "prune", str(folder / "table")])
    ours = Way(OURS, [r["open"] + r["snapshot"] for r in of["open"]])
    decoding = Way(_DECODING, [r["seconds"] for r in of["decode"]])
    ratio, spread = ratio_to(ours, decoding)
    held = [r["held"] / parts for r in of["open"]]
    later = {step: [r[step] for r in of["open"]] for step in ("snapshot again", "snapshot after a commit")}
    later |= {step: [pruned[step]] for step in ("files of a day", "files by statistics")}
    return Finding(
        "open",
        f"open a table with {parts:,} live parts",
        "s",
        [
            ours,
            decoding,
            Way(_UNCOLLECTED, [r["seconds, no collector"] for r in of["decode"]]),
            Way(_DELTA, [r["open"] + r["snapshot"] for r in of["delta"]]),
            *(Way(f"{OURS}, {step}", values, ours="") for step, values in later.items()),
        ],
        [
            Check("at most 3 times decoding the lines alone", ratio, DECODINGS_MAX, spread=spread, why=_WHY),
            Check(
                "at most 200 bytes of memory a part",
                median(held),
                PART_BYTES_MAX,
                spread=(min(held), max(held)),
                why=_WHY_MEMORY,
            ),
        ],
        counts={"bytes a line": _log_bytes(folder) / parts},
        notes=[
            "One log file with statistics, a process for each round, files in the page cache. Ours is `Table.open` and "
            "`snapshot()`. The lines alone are decoded by msgspec into a struct at once, with raw statistics.",
            "Memory is the growth of the process with the snapshot in use. Its peak was "
            f"{max(r['peak'] for r in of['open']) / parts:,.0f} bytes a part, including the whole program and the "
            "bytes of the log file.",
            f"deltalake opens a checkpoint of as many files and returns their paths. It uses "
            f"{median(r['held'] for r in of['delta']) / parts:,.0f} bytes a file.",
            "Beside it: a repeated snapshot, one after another commit, and the files of the snapshot for a day or by "
            "statistics (measured once).",
        ],
        short=f"{parts:,} parts",
    )


def _log_bytes(folder: Path) -> int:
    (path,) = (folder / "table" / "_log").iterdir()
    return path.stat().st_size


def _child(arguments: Sequence[str]) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=_ROOT, env=os.environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    measurement: dict[str, float] = json.loads(done.stdout)
    return measurement


# ------------------------------------------------------------------------------------------ the import


def measure_import(plan: Plan, _: Path, on_step: Step) -> Finding:
    """Measure `import icedb` in a new process, beside its dependencies."""
    rounds = max(plan.rounds, IMPORTS_MIN) if plan.shrink == 1 else plan.rounds
    imports = {
        OURS: "import icedb",
        _TABLE: "from icedb import Table",
        "pyarrow": "import pyarrow",
        "duckdb": "import duckdb",
    }
    of: dict[str, list[float]] = {name: [] for name in imports}
    loaded: list[str] = []
    for number in range(rounds + 1):
        on_step("import: " + (f"round {number}" if number else "warm-up"))
        for name, statement in imports.items():
            measurement = _child(["-c", _IMPORT.format(statement=statement)])
            if number:
                of[name].append(measurement["seconds"] * 1000)
            if name == OURS:
                loaded = [m for m in ("pyarrow", "duckdb", "obstore", "boto3", "msgspec") if measurement[m]]
    ways = [Way(name, values, ours="" if name == _TABLE else OURS) for name, values in of.items()]
    return Finding(
        "import",
        "import of the library",
        "ms",
        ways,
        [
            Check(
                "`import icedb` under 100 ms",
                ways[0].median,
                IMPORT_MS_MAX,
                spread=(min(ways[0].values), max(ways[0].values)),
            )
        ],
        notes=[
            "A new process each, in turns, without the start of the interpreter. Large libraries that are loaded: "
            f"{', '.join(loaded) or 'none'}."
        ],
        short="import",
    )


_IMPORT = """
import json, sys, time
started = time.perf_counter()
{statement}
seconds = time.perf_counter() - started
loaded = {{m: float(m in sys.modules) for m in ("pyarrow", "duckdb", "obstore", "boto3", "msgspec")}}
print(json.dumps({{"seconds": seconds}} | loaded))
"""
