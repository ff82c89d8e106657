"""What Dagster loads: all that is in the folder `defs`, Python and YAML."""

from pathlib import Path

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    """Everything of the project. Neither store nor Spark are asked."""
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
