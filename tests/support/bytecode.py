"""Modules are compiled once, and not in each of the hundreds of processes that the tests start.

Python keeps compiled modules beside their sources, unless the environment forbids it (PYTHONDONTWRITEBYTECODE, as many
containers do): then importing Dagster or pandas takes three times as long, in every process again. The tests keep them
in the virtual environment instead, so that nothing comes to lie beside a source all the same.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def keep_bytecode() -> None:
    """Let this process, and all that are started below it, keep compiled modules where that harms nobody."""
    if sys.dont_write_bytecode and sys.pycache_prefix is None:
        sys.dont_write_bytecode = False
        sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(Path(sys.prefix, ".bytecode"))
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
