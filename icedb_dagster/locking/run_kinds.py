"""The kinds of maintenance that can be due: the config of their runs, and which of them a run does, or failed to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import dagster as dg

from icedb.operations.health.table_health import Due

__all__ = ["FAILED_TAG", "MAINTAIN", "config_of", "failed_kinds", "kinds_of", "merging_limits"]

#: The verb of such a run.
MAINTAIN = "maintain"
#: The tag of such a run with the kinds that failed. A run whose worker died has none.
FAILED_TAG = "icedb/failed"


def merging_limits(limits: object) -> dict[str, int]:
    """Return what a merge takes from thresholds, or from a run's config: with others it could find nothing to do."""
    return {name: getattr(limits, name) for name in ("part_bytes_max", "hot_ms", "hot_parts")}


def config_of(kind: str, limits: object) -> Mapping[str, object]:
    """Return the run config of a kind of maintenance that is due by these limits."""
    if kind in ("merge_newest", "merge_oldest"):
        return merging_limits(limits)
    return {"files_min": 2} if kind == "merge_log" else {}  # the thresholds decide, not the usual minimum


def kinds_of(run: dg.DagsterRun) -> Sequence[str]:
    """Return the kinds that a run of `<table>_maintain` does. A run without kinds in its config may do each."""
    ops: Any = run.run_config.get("ops", {})
    kinds: Sequence[str] = ops.get(f"{run.job_name}_work", {}).get("config", {}).get("kinds") or ()
    return [kind for kind in kinds if kind in get_args(Due)] or get_args(Due)


def failed_kinds(run: dg.DagsterRun) -> Sequence[str]:
    """Return the kinds that failed in a failed run of `<table>_maintain`; each of its kinds if it reported none."""
    failed = run.tags.get(FAILED_TAG)
    return failed.split(",") if failed else kinds_of(run)
