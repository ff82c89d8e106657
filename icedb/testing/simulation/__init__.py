"""Deterministic simulation of a table under concurrency and faults, driven by a seed.

    python -m icedb.testing.simulation --seeds 2000             random runs; `make simulate`
    python -m icedb.testing.simulation --seed 1234 --trace      repeat one of them, and print every request
    python -m icedb.testing.simulation --scene all              random runs with additional actors and circumstances
    python -m icedb.testing.simulation --exhaustive [--long]    a fault at every request of every operation

The library's own operations run as actors that take turns at every request to a simulated store. Processes crash,
responses get lost, requests are repeated or arrive hours later, actors sleep while cleanup runs, and clocks differ. An
independent model follows every log file that lands in the store. The table is compared with this model.

`random_runs` makes random runs, `scenes` adds actors to them, and `exhaustive` makes the runs at every point. In
`world`, `world` connects the parts of a run, `scheduler` gives turns, and `simulated_store` and `request_faults` are
the network. `operations` lists the operations, which run on the parts of `plain_parts`. `truth` is the model and
`invariants` compares the table with it. `recovery` ends every run.
"""

from icedb.testing.simulation.exhaustive import Story, pair_stories, run_story, single_stories, torn_stories
from icedb.testing.simulation.random_runs import CHUNK, Outcome, all_cells, run_seed
from icedb.testing.simulation.scenes import SCENES

__all__ = ["CHUNK", "Outcome", "SCENES", "Story", "all_cells", "pair_stories", "run_seed", "run_story",
           "single_stories", "torn_stories"]  # fmt: skip
