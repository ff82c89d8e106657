"""The Dagster definitions: everything in the folder `defs`, Python and YAML."""

from pathlib import Path

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    """Load all definitions of the project. Accesses neither the store nor Spark."""
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
