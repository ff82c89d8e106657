"""A simulation of everything that can happen to a table, driven by one number.

    python -m icedb.testing.simulation --seeds 2000             random runs; `make simulate`
    python -m icedb.testing.simulation --seed 1234 --trace      one of them again, request by request
    python -m icedb.testing.simulation --scene all              random runs with what the others do not have
    python -m icedb.testing.simulation --exhaustive [--long]    a fault at every request of every operation

The library's own operations run as actors that take turns at every request to a simulated store. Processes die,
responses get lost, requests are repeated or arrive hours later, actors sleep while cleanup runs, clocks differ. A
plain model is told of every log file that lands, and everything that a table promises is compared with it.

`scheduler` takes turns, `store` and `faults` are the network, `world` holds a run together, `truth` is the model and
`invariants` what must always hold; `operations` is the table of what runs, on the parts of `plain`; `seeds` makes
random runs, `scenes` adds actors to them, `exhaustive` makes those at every point, `recovery` ends all.
"""

from icedb.testing.simulation.exhaustive import Story, pair_stories, run_story, single_stories, torn_stories
from icedb.testing.simulation.random_runs import CHUNK, Outcome, all_cells, run_seed
from icedb.testing.simulation.scenes import SCENES

__all__ = [
    "CHUNK",
    "Outcome",
    "SCENES",
    "Story",
    "all_cells",
    "pair_stories",
    "run_seed",
    "run_story",
    "single_stories",
    "torn_stories",
]
