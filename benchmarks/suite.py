"""The benchmarks with goals, and the page of their results.

    python -m benchmarks.suite --only insert,appends

Each module measures in a new process, with its own memory and threads, and in an empty folder. If a module fails, the
page has the reason, the other modules run, and the exit status is 1. A missed goal is no failure.

A run of some rows replaces these rows of the page only.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as Grid

from benchmarks.harness.figures import Finding, Measure, Plan, Step
from benchmarks.harness.machine import commit_now, machine_now
from benchmarks.harness.results import ROWS, Entry, Run, read_entries, write_entries, write_page
from benchmarks.harness.words import number

__all__ = ["MODULES", "Failure", "Measured", "measure_all"]

#: The rows that each module measures, in the order of running.
MODULES: Mapping[str, Sequence[str]] = {
    "benchmarks.writes.inserting": ("insert", "dicts", "appends"),
    "benchmarks.writes.commits": ("commits",),
    "benchmarks.writes.merging": ("merge",),
    "benchmarks.writes.upserting": ("upsert",),
    "benchmarks.opening.opening_costs": ("open", "store", "refresh", "overhead", "import"),
    "benchmarks.life": ("life",),
}

_ROOT = Path(__file__).parents[1]
# The minimum interval between two printed steps of a module, if the output is no terminal.
_QUIET_SECONDS = 15


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure of a module: the reason in one line for the page, and the output of the process."""

    why: str
    printed: str


@dataclass(frozen=True, slots=True)
class Measured:
    """The findings of a key, or the failure. `seconds` is the time of the module for all of its keys."""

    module: str
    seconds: float
    answer: Sequence[Finding] | Failure


def measure_all(modules: Mapping[str, Sequence[str]], plan: Plan, folder: Path, on_step: Step) -> dict[str, Measured]:
    """Run the modules of the selected keys, and return the results by key. `folder` is empty before and after."""
    measured_by_key: dict[str, Measured] = {}
    chosen = {name: keys for name, keys in modules.items() if any(map(plan.wants, keys))}
    for n, (name, keys) in enumerate(chosen.items(), 1):
        started = time.monotonic()

        def step(text: str, prefix: str = f"{n} of {len(chosen)}: ", started: float = started) -> None:
            on_step(f"{prefix}{text} ({time.monotonic() - started:.0f} s)")

        step(name)
        answer = _in_a_process(name, plan, folder / str(n), step)
        seconds = time.monotonic() - started
        measured_by_key |= {
            key: Measured(name, seconds, about) for key, about in _by_key(name, keys, plan, answer).items()
        }
    return measured_by_key


def _by_key(
    name: str, keys: Sequence[str], plan: Plan, answer: Sequence[Finding] | Failure
) -> dict[str, Sequence[Finding] | Failure]:
    """Divide a module's findings among its selected keys."""
    if isinstance(answer, Failure):
        return dict.fromkeys(filter(plan.wants, keys), answer)
    about: dict[str, Sequence[Finding] | Failure] = {
        key: [finding for finding in answer if finding.key == key]
        or Failure(f"{name} returned no finding for {key}", "")
        for key in filter(plan.wants, keys)
    }
    for finding in answer:
        if finding.key not in keys:  # the page would not show it
            about[finding.key] = Failure(
                f"{name} returned a finding for {finding.key}, which is not one of its rows", ""
            )
    return about


def _in_a_process(name: str, plan: Plan, folder: Path, on_step: Step) -> Sequence[Finding] | Failure:
    folder.mkdir(parents=True)
    log = folder.with_suffix(".log")
    spawning = multiprocessing.get_context("spawn")
    receiver, sender = spawning.Pipe(duplex=False)
    process = spawning.Process(target=_child, args=(name, plan, folder, log, sender))
    process.start()
    sender.close()  # so that the pipe ends with the child
    try:
        while isinstance(message := receiver.recv(), str):
            on_step(message)
        process.join()
        findings, why = message
        return findings if why is None else Failure(why, log.read_text(errors="replace"))
    except EOFError:
        process.join()
        return Failure(f"{name} ended with exit status {process.exitcode}", log.read_text(errors="replace"))
    finally:
        process.kill()
        shutil.rmtree(folder, ignore_errors=True)
        log.unlink(missing_ok=True)


def _child(name: str, plan: Plan, folder: Path, log: Path, sender: Connection) -> None:
    """Send the text of each step, then the findings and None, or no findings and the reason."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)  # libraries print, which would garble the display of steps
    os.dup2(output, 2)
    try:
        measure: Measure = import_module(name).measure
        sender.send((list(measure(plan, folder, sender.send)), None))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 -- a missing peer raises SystemExit, which the page reports too
        traceback.print_exc()
        sender.send(([], f"{type(error).__name__}: {error}".splitlines()[0].replace(str(folder), "")))


@contextmanager
def _step_display(console: Console) -> Iterator[Step]:
    """Show the current step at a terminal. Otherwise print the first step of each module, then one at intervals."""
    if console.is_terminal:
        with console.status("starting") as status:
            yield status.update
        return
    module, message = "", float("-inf")

    def step(text: str) -> None:
        nonlocal module, message
        number, now = text.partition(":")[0], time.monotonic()
        if number != module or now - message >= _QUIET_SECONDS:
            module, message = number, now
            console.print(text, markup=False, highlight=False, soft_wrap=True)

    yield step


def _summary(measured_by_key: Mapping[str, Measured]) -> Grid:
    grid = Grid("work", "goal", "measured", title="Results of this run", title_justify="left")
    for key, measured in measured_by_key.items():
        if isinstance(measured.answer, Failure):
            grid.add_row(ROWS.get(key, key), "", f"failed: {measured.answer.why}", style="bold red")
            continue
        for finding in measured.answer:
            for check in finding.checks:
                verdict = f"{number(check.value)}, {'met' if check.met else 'missed'}"
                grid.add_row(finding.short or finding.title, check.goal, verdict, style=None if check.met else "red")
    return grid


def _keys(only: str) -> frozenset[str]:
    keys = frozenset(filter(None, (key.strip() for key in only.split(","))))
    if unknown := keys - {key for keys in MODULES.values() for key in keys}:
        raise typer.BadParameter(f"unknown row {', '.join(sorted(unknown))}. The rows are {', '.join(ROWS)}.")
    return keys


def main(
    full: Annotated[bool, typer.Option("--full", help="Run the long form, with larger sizes.")] = False,
    only: Annotated[str, typer.Option(help=f"Measure these rows, separated by commas: {', '.join(ROWS)}.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Measured rounds, after a warm-up round.")] = 5,
    latency_ms: Annotated[float, typer.Option(min=0, help="Delay of each request to S3.")] = 20,
    out: Annotated[Path, typer.Option(help="File of the page. Its plots are in a folder next to it.")] = _ROOT
    / "benchmarks"
    / "RESULTS.md",
    json_file: Annotated[
        Path | None, typer.Option("--json", help="File of the results from which the page is made.")
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="Folder for temporary files, on a fast local disk.")] = None,
    shrink: Annotated[int, typer.Option(min=1, hidden=True)] = 1,
) -> None:
    """Measure all rows, or some, and write the page of results."""
    plan = Plan(full, rounds, latency_ms, shrink, _keys(only))
    source = json_file or out.with_suffix(".json")
    entries = read_entries(source)
    run = Run(machine_now(), commit_now(), full, rounds, latency_ms)
    console = Console()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="icedb-bench-", dir=folder) as name, _step_display(console) as step:
        measured_by_key = measure_all(MODULES, plan, Path(name), step)
    for key, measured in measured_by_key.items():
        entries[key] = _entry(run, measured)
    write_entries(source, entries)
    write_page(out, entries)
    answers = [measured.answer for measured in measured_by_key.values()]
    failures = dict.fromkeys(answer for answer in answers if isinstance(answer, Failure))
    for failure in failures:
        console.print(failure.printed, markup=False, highlight=False)
    console.print(_summary(measured_by_key))
    console.print(f"{time.monotonic() - started:.0f} s; {out}")
    if failures:
        raise typer.Exit(1)


def _entry(run: Run, measured: Measured) -> Entry:
    if isinstance(measured.answer, Failure):
        return Entry(run, failed=measured.answer.why, module=measured.module, seconds=measured.seconds)
    return Entry(run, measured.answer, module=measured.module, seconds=measured.seconds)


if __name__ == "__main__":
    typer.run(main)
