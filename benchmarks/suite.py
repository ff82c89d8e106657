"""All benchmarks that hold the project to its goals, one after another; what they find goes into a page.

    python -m benchmarks.suite --only insert,appends

Each module measures in a process of its own, so that none has another's memory or threads, and in an empty folder. One
that fails is told in the page, the others go on; then the exit status is 1. A goal that is missed is no failure.

A run of some rows replaces these in the page, and leaves the others as they are.
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

from benchmarks.figures import Finding, Measure, Plan, Step
from benchmarks.machine import commit_now, machine_now
from benchmarks.results import ROWS, Entry, Run, read_entries, write_entries, write_page
from benchmarks.words import number

__all__ = ["MODULES", "Failure", "Measured", "measure_all"]

#: What measures which rows, in the order of running.
MODULES: Mapping[str, Sequence[str]] = {
    "benchmarks.inserting": ("insert", "dicts", "appends"),
    "benchmarks.commits": ("commits",),
    "benchmarks.merging": ("merge",),
    "benchmarks.opening": ("open", "store", "refresh", "overhead", "import"),
    "benchmarks.life": ("life",),
}

_ROOT = Path(__file__).parents[1]
# Between two steps that are told where nothing can be overwritten.
_QUIET_SECONDS = 15


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there are no findings: a line for the page, and what the process printed, for whoever looks into it."""

    why: str
    printed: str


@dataclass(frozen=True, slots=True)
class Measured:
    """What a module found about one key; it took so many seconds for all of its keys."""

    module: str
    seconds: float
    answer: Sequence[Finding] | Failure


def measure_all(modules: Mapping[str, Sequence[str]], plan: Plan, folder: Path, on_step: Step) -> dict[str, Measured]:
    """What each module finds, by key. Modules that nobody asked for do not run.

    `folder` is empty, and is empty again afterwards.
    """
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
    """What a module's answer says of each key that was asked for."""
    if isinstance(answer, Failure):
        return dict.fromkeys(filter(plan.wants, keys), answer)
    about: dict[str, Sequence[Finding] | Failure] = {
        key: [finding for finding in answer if finding.key == key] or Failure(f"{name} found nothing about {key}", "")
        for key in filter(plan.wants, keys)
    }
    for finding in answer:
        if finding.key not in keys:  # nobody would see it otherwise
            about[finding.key] = Failure(f"{name} found something about {finding.key}, which is no row of its own", "")
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
    """Sends texts, steps, and then findings, or why there are none."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)  # libraries print, and would do so across what is shown
    os.dup2(output, 2)
    try:
        measure: Measure = import_module(name).measure
        sender.send((list(measure(plan, folder, sender.send)), None))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 -- a missing peer exits: that is told, too
        traceback.print_exc()
        sender.send(([], f"{type(error).__name__}: {error}".splitlines()[0].replace(str(folder), "")))


@contextmanager
def _telling(console: Console) -> Iterator[Step]:
    """Steps over one another at a terminal; elsewhere a line for the first of each module, and then for one every now
    and then, so that whoever waits, or reads it later, sees how it goes."""
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
    grid = Grid("work", "goal", "measured", title="What was measured now", title_justify="left")
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
        raise typer.BadParameter(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    return keys


def main(
    full: Annotated[bool, typer.Option("--full", help="The long form: more of everything.")] = False,
    only: Annotated[str, typer.Option(help=f"Some rows, by comma: {', '.join(ROWS)}.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Measured rounds; one more comes first.")] = 5,
    latency_ms: Annotated[float, typer.Option(min=0, help="What each request to S3 waits.")] = 20,
    out: Annotated[Path, typer.Option(help="The page; its plots are in a folder beside it.")] = _ROOT
    / "benchmarks"
    / "RESULTS.md",
    json_file: Annotated[Path | None, typer.Option("--json", help="What the page is made from.")] = None,
    folder: Annotated[Path | None, typer.Option(help="For everything that is made: a fast local disk.")] = None,
    shrink: Annotated[int, typer.Option(min=1, hidden=True)] = 1,
) -> None:
    """Measure all, or some rows, and write the page of results."""
    plan = Plan(full, rounds, latency_ms, shrink, _keys(only))
    source = json_file or out.with_suffix(".json")
    entries = read_entries(source)
    run = Run(machine_now(), commit_now(), full, rounds, latency_ms)
    console = Console()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="icedb-bench-", dir=folder) as name, _telling(console) as step:
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
