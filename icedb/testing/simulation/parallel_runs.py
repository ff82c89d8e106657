"""Many runs in several processes, which must find the functions that they run in a module other than `__main__`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import TypeVar

from icedb.testing.simulation.exhaustive import Story, run_story
from icedb.testing.simulation.random_runs import Outcome, run_seed

__all__ = ["run_seeds", "run_stories"]

#: A process gets so many at a time: enough to be busy, few enough to see progress.
PER_TASK = 10
_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


def run_seeds(seeds: Sequence[int], *, scene: str | None = None, processes: int) -> Iterator[Outcome]:
    """Run seeds; the outcomes in order."""
    return _spread(partial(_run_some, scene=scene), seeds, processes)


def run_stories(stories: Sequence[Story], *, processes: int) -> Iterator[tuple[Story, str | None]]:
    """Tell stories; each with the promise that it broke, in order."""
    return _spread(_tell_some, stories, processes)


def _run_some(seeds: Sequence[int], *, scene: str | None) -> list[Outcome]:
    return [run_seed(seed, scene=scene) for seed in seeds]


def _tell_some(stories: Sequence[Story]) -> list[tuple[Story, str | None]]:
    return [(story, run_story(story)) for story in stories]


def _spread(
    work: Callable[[Sequence[_Task]], list[_Result]], tasks: Sequence[_Task], processes: int
) -> Iterator[_Result]:
    some = [tasks[n : n + PER_TASK] for n in range(0, len(tasks), PER_TASK)]
    # An executor says so when a process dies, and a pool would wait for it.
    with ProcessPoolExecutor(
        processes, mp_context=get_context("spawn"), initializer=logging.disable, initargs=(logging.WARNING,)
    ) as executor:
        for results in executor.map(work, some):
            yield from results
