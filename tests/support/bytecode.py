"""Keep compiled modules, so that the processes of the tests start quickly.

PYTHONDONTWRITEBYTECODE, which many containers set, makes the import of Dagster or pandas three times as slow in every
process. The tests keep compiled modules in the virtual environment instead, not beside the sources.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def keep_bytecode() -> None:
    """Let this process and its children keep compiled modules in the virtual environment."""
    if sys.dont_write_bytecode and sys.pycache_prefix is None:
        sys.dont_write_bytecode = False
        sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(Path(sys.prefix, ".bytecode"))
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
