"""The kinds of maintenance that a run of `<table>_maintain` does, and those of them that failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import dagster as dg

from icedb.operations.health.table_health import Due

__all__ = ["FAILED_TAG", "MAINTAIN", "failed_kinds", "kinds_of"]

#: The verb of such a run.
MAINTAIN = "maintain"
#: The tag of such a run with the kinds that failed. A run whose worker died has none.
FAILED_TAG = "icedb/failed"


def kinds_of(run: dg.DagsterRun) -> Sequence[str]:
    """Return the kinds that a run of `<table>_maintain` does. A run without kinds in its config may do each."""
    ops: Any = run.run_config.get("ops", {})
    kinds: Sequence[str] = ops.get(f"{run.job_name}_work", {}).get("config", {}).get("kinds") or ()
    return [kind for kind in kinds if kind in get_args(Due)] or get_args(Due)


def failed_kinds(run: dg.DagsterRun) -> Sequence[str]:
    """Return the kinds that failed in a failed run of `<table>_maintain`; each of its kinds if it reported none."""
    failed = run.tags.get(FAILED_TAG)
    return failed.split(",") if failed else kinds_of(run)
