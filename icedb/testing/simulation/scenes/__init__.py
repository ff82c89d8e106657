"""Scenes: additional actors and circumstances for random runs, each with its own invariants.

A scene runs on request (`--scene NAME`). It draws other random numbers than a run without a scene, so it does not
change the runs of plain seeds. `scene` has the base class. Every other module is one scene.
"""

from __future__ import annotations

from collections.abc import Mapping

from icedb.testing.simulation.scenes.clocks import Clocks
from icedb.testing.simulation.scenes.forgotten import Forgotten
from icedb.testing.simulation.scenes.group_commits import GroupCommits
from icedb.testing.simulation.scenes.imports import Imports
from icedb.testing.simulation.scenes.no_fencing import NoFencing
from icedb.testing.simulation.scenes.repairs import Repairs
from icedb.testing.simulation.scenes.scene import Scene
from icedb.testing.simulation.scenes.two_stores import TwoPlaces
from icedb.testing.simulation.scenes.v3_writers import V3Writers
from icedb.testing.simulation.scenes.views import Views

__all__ = ["SCENES", "Scene"]

#: Scene by name.
SCENES: Mapping[str, type[Scene]] = {
    "v3 writers": V3Writers,
    "clocks": Clocks,
    "forgotten transactions": Forgotten,
    "two stores": TwoPlaces,
    "imports": Imports,
    "group commits": GroupCommits,
    "no fencing": NoFencing,
    "repairs": Repairs,
    "views": Views,
}
