"""The command line of the simulation; see `icedb.testing.simulation`. Exit status 1 if an invariant was violated."""

from __future__ import annotations

import argparse
import logging
import sys
from time import monotonic

from icedb.testing.simulation.exhaustive import Story, pair_stories, run_story, single_stories, torn_stories
from icedb.testing.simulation.parallel_runs import run_seeds, run_stories
from icedb.testing.simulation.random_runs import run_seed
from icedb.testing.simulation.report import SimulationReport
from icedb.testing.simulation.scenes import SCENES

COMMAND = "python -m icedb.testing.simulation"
EVERY = "all"


def main() -> int:
    """Run the command line and return the exit status."""
    options = _parse()
    logging.disable(logging.WARNING)
    if options.seed is not None:
        if options.scene == EVERY:
            return max(_one(options.seed, scene=scene, trace=options.trace) for scene in SCENES)
        return _one(options.seed, scene=options.scene, trace=options.trace)
    if options.story is not None:
        return _verdict(run_story(Story.parse(options.story), trace=print if options.trace else None))
    if options.exhaustive:
        return _all_stories(long=options.long, processes=options.processes)
    seeds = range(options.first, options.first + options.seeds)
    if options.scene == EVERY:
        return max(_all_seeds(seeds, scene=scene, processes=options.processes) for scene in SCENES)
    return _all_seeds(seeds, scene=options.scene, processes=options.processes)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=COMMAND, description="Simulate a table under concurrency and faults.")
    parser.add_argument("--seeds", type=int, default=300, metavar="N", help="run this many seeds [default: 300]")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="begin with this seed [default: 0]")
    parser.add_argument("--seed", type=int, metavar="N", help="run this seed only")
    parser.add_argument(
        "--scene",
        choices=[*SCENES, EVERY],
        help=f"add the actors and circumstances of a scene to the runs; {EVERY}: run each scene in turn",
    )
    parser.add_argument("--exhaustive", action="store_true", help="inject a fault at every request of every operation")
    parser.add_argument("--long", action="store_true", help="with --exhaustive: crash the second operation too")
    parser.add_argument("--story", metavar="NAME", help="run this exhaustive story only")
    parser.add_argument("--trace", action="store_true", help="with --seed or --story: print every request")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="run this many processes [default: 2]")
    return parser.parse_args()


def _one(seed: int, *, scene: str | None, trace: bool) -> int:
    return _verdict(run_seed(seed, scene=scene, trace=print if trace else None).violation)


def _verdict(violation: str | None) -> int:
    print(f"VIOLATION: {violation}" if violation else "No invariant was violated.")
    return 1 if violation else 0


def _all_seeds(seeds: range, *, scene: str | None, processes: int) -> int:
    if scene is not None:
        print(f"Scene: {scene}")
    report = SimulationReport(len(seeds), scene=scene)
    option = f"--scene '{scene}' " if scene is not None else ""
    for outcome in run_seeds(seeds, scene=scene, processes=processes):
        report.add(outcome)
        if outcome.violation is not None:
            print(f"\nseed {outcome.seed}: {outcome.violation}\n  {COMMAND} {option}--seed {outcome.seed} --trace")
        if report.runs % 50 == 0:
            print(f"\r{report.progress()}", end="", file=sys.stderr, flush=True)
    print(f"\n{report}")
    return 1 if report.failures else 0


def _all_stories(*, long: bool, processes: int) -> int:
    stories = [*single_stories(), *torn_stories(), *pair_stories(long=long)]
    began, failures = monotonic(), 0
    for count, (story, violation) in enumerate(run_stories(stories, processes=processes), start=1):
        if violation is not None:
            failures += 1
            print(f"\nstory {story}: {violation}\n  {COMMAND} --story '{story}' --trace")
        if count % 200 == 0:
            progress = f"\r{count} of {len(stories)} stories, {failures} failed, {monotonic() - began:.0f} s"
            print(progress, end="", file=sys.stderr, flush=True)
    print(f"\n{len(stories)} stories in {monotonic() - began:.0f} s, {failures} violated an invariant.")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
