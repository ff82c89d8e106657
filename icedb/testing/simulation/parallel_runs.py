"""Runs in several processes. Worker processes import the functions that they run, so these cannot be in `__main__`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import TypeVar

from icedb.storage.object_store import chunks
from icedb.testing.simulation.exhaustive import Story, run_story
from icedb.testing.simulation.random_runs import Outcome, run_seed

__all__ = ["run_seeds", "run_stories"]

#: Runs per task of a process: enough to keep it busy, few enough to report progress.
PER_TASK = 10
_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


def run_seeds(seeds: Sequence[int], *, scene: str | None = None, processes: int) -> Iterator[Outcome]:
    """Run seeds, and yield their outcomes in order."""
    return _spread(partial(_run_some, scene=scene), seeds, processes)


def run_stories(stories: Sequence[Story], *, processes: int) -> Iterator[tuple[Story, str | None]]:
    """Run stories, and yield each with the invariant that it violated or None, in order."""
    return _spread(_run_some_stories, stories, processes)


def _run_some(seeds: Sequence[int], *, scene: str | None) -> list[Outcome]:
    return [run_seed(seed, scene=scene) for seed in seeds]


def _run_some_stories(stories: Sequence[Story]) -> list[tuple[Story, str | None]]:
    return [(story, run_story(story)) for story in stories]


def _spread(
    work: Callable[[Sequence[_Task]], list[_Result]], tasks: Sequence[_Task], processes: int
) -> Iterator[_Result]:
    # An executor raises an error if a process dies, and a pool would wait forever.
    with ProcessPoolExecutor(
        processes, mp_context=get_context("spawn"), initializer=logging.disable, initargs=(logging.WARNING,)
    ) as executor:
        for results in executor.map(work, chunks(tasks, PER_TASK)):
            yield from results
