"""A table's checks as Dagster asset checks: one op, which opens the table once.

Building definitions does not access the store, and is cheap. It works for assets of any kind: materialized here, filled
by other programs, observed. If the table is missing or its log cannot be read, every check fails. An error that is
not about the table (no response from the store, access denied) fails the run.

Dagster runs the checks of an asset with each of its materializations. The checks of the table's health do nothing then,
because they have a job of their own.
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of functions as objects.
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from icedb.errors import CorruptionError, SchemaConflict, TableNotFound
from icedb_dagster.checks.check_context import CheckContext, Verdict
from icedb_dagster.checks.check_settings import Check, TableChecks
from icedb_dagster.checks.content_checks import check_freshness, check_quarantine, check_schema
from icedb_dagster.checks.layout_checks import check_horizon, check_log_depth, check_objects, check_small_parts
from icedb_dagster.locking.table_lock import TABLE_TAG
from icedb_dagster.resource import IceDBResource

__all__ = ["build_table_checks", "judge"]

# The function of each check, and its description in the UI.
_CHECKS: Mapping[str, tuple[Callable[[CheckContext, Any], Verdict], str]] = {
    "objects": (check_objects, "No object of the table is missing, damaged or foreign."),
    "small_parts": (check_small_parts, "Few parts are small enough to be merged."),
    "log_depth": (check_log_depth, "Opening the table reads few log files."),
    "schema": (check_schema, "The table has the declared columns."),
    "quarantine": (check_quarantine, "Few rows were quarantined recently."),
    "freshness": (check_freshness, "The newest rows are not too old."),
    "horizon": (
        check_horizon,
        "Snapshots reach back far enough, and deleted rows are not stored for too long.",
    ),
}

#: Checks of the state of the whole table, which a materialization hardly changes.
_OF_HEALTH = frozenset({"objects", "small_parts", "log_depth", "horizon"})


def build_table_checks(
    table: dg.AssetKey | Sequence[str] | str, checks: TableChecks | None = None, *, resource_key: str = "icedb"
) -> dg.AssetChecksDefinition:
    """Return the asset checks of a table, named as the fields of `TableChecks`. All or some of them can be run.

    Args:
        table: The asset key, in any form that Dagster accepts. The asset may be defined elsewhere.
        checks: The checks and their settings; None: the checks that need no settings.
        resource_key: The key of the `IceDBResource`.

    Example:
        fresh = FreshnessCheck(max_age=timedelta(hours=26))
        checks = build_table_checks("events", TableChecks(freshness=fresh))
    """
    key, chosen = dg.AssetKey.from_coercible(table), checks or TableChecks()
    specs = {
        name: dg.AssetCheckSpec(name, asset=key, description=_CHECKS[name][1], blocking=settings.blocking)
        for name, settings in chosen.chosen.items()
    }
    made: dg.AssetChecksDefinition = dg.AssetChecksDefinition.create(
        keys_by_input_name={"asset": key},
        node_def=_op(key, chosen, resource_key),
        check_specs_by_output_name=specs,
        can_subset=True,
    )
    return made


def _op(key: dg.AssetKey, checks: TableChecks, resource_key: str) -> dg.OpDefinition:
    name = key.to_python_identifier()

    def run_checks(
        context: dg.OpExecutionContext, inputs: Mapping[str, object]
    ) -> Iterator[dg.AssetCheckResult | dg.Output[None]]:
        resource: IceDBResource = getattr(context.resources, resource_key)
        wanted = {selected.name for selected in context.selected_asset_check_keys}
        is_materialization = key in context.job_def.asset_layer.selected_asset_keys
        skipped = _OF_HEALTH if is_materialization and not checks.with_materializations else frozenset()
        chosen = {n: s for n, s in checks.chosen.items() if n in wanted and (s.blocking or n not in skipped)}
        if not chosen:
            context.log.info("the checks of the table's health run in the job %s_checks", name)
            return
        for check, verdict in _verdicts(resource, key, checks, chosen).items():
            context.log.info("%s: %s", check, verdict.description)
            yield _result(check, chosen[check], verdict)

    return dg.OpDefinition(
        compute_fn=run_checks,
        name=f"{name}_checks_work",
        description="Opens the table once and runs the selected checks. Changes nothing.",
        ins={"asset": dg.In(dg.Nothing)},
        outs={check: dg.Out(dg.Nothing, is_required=False) for check in checks.chosen},
        required_resource_keys={resource_key},
        tags={TABLE_TAG: name},
    )


def _verdicts(
    resource: IceDBResource, key: dg.AssetKey, checks: TableChecks, chosen: Mapping[str, Check]
) -> dict[str, Verdict]:
    """Return the verdict of each check. Raises errors that are not about the table."""
    try:
        context = CheckContext(resource.table(key), checks.thresholds, name=key.to_python_identifier())
    except (TableNotFound, CorruptionError) as error:
        return dict.fromkeys(chosen, Verdict(False, str(error)))
    return {name: judge(context, name, settings) for name, settings in chosen.items()}


def judge(context: CheckContext, name: str, settings: Check) -> Verdict:
    """Return the verdict of one check. Raises errors that are not about the table, such as StoreUnavailable."""
    try:
        return _CHECKS[name][0](context, settings)
    except (TableNotFound, CorruptionError, SchemaConflict) as error:
        return Verdict(False, str(error))


def _result(name: str, settings: Check, verdict: Verdict) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        passed=verdict.passed,
        check_name=name,
        severity=dg.AssetCheckSeverity(settings.severity),
        description=verdict.description,
        metadata=verdict.metadata,
    )
