"""The checks of a table as Dagster's asset checks: one op, which looks at the table once.

Definitions are made without a look at the store, and cheaply, for assets of any kind: materialized here, filled by
others, observed. A check that cannot be made says so: a table that is not there, or whose log cannot be read, fails
every check. What says nothing of the table (no answer from the store, no access) fails the run.
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
from icedb_dagster.resource import IceDBResource

__all__ = ["build_table_checks", "judge"]

# What each does, and what the UI shows of it beside its name.
_CHECKS: Mapping[str, tuple[Callable[[CheckContext, Any], Verdict], str]] = {
    "objects": (check_objects, "No object of the table is missing, damaged or foreign."),
    "small_parts": (check_small_parts, "Few parts are so small that a merge would take them."),
    "log_depth": (check_log_depth, "Whoever opens the table reads few log files."),
    "schema": (check_schema, "The columns are as declared."),
    "quarantine": (check_quarantine, "Few rows did not fit lately."),
    "freshness": (check_freshness, "The newest rows are not too old."),
    "horizon": (
        check_horizon,
        "Snapshots can be read as far back as promised, and deleted rows are not kept for ever.",
    ),
}


def build_table_checks(
    table: dg.AssetKey | Sequence[str] | str, checks: TableChecks | None = None, *, resource_key: str = "icedb"
) -> dg.AssetChecksDefinition:
    """The asset checks of a table, named as the fields of `TableChecks`; None: those that need not be told anything.

    `table` is the key of the asset, which may be defined elsewhere; its table is opened with the `IceDBResource` under
    `resource_key`. All or some of them can be run.
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

    def look_and_judge(
        context: dg.OpExecutionContext, inputs: Mapping[str, object]
    ) -> Iterator[dg.AssetCheckResult | dg.Output[None]]:
        resource: IceDBResource = getattr(context.resources, resource_key)
        wanted = {selected.name for selected in context.selected_asset_check_keys}
        chosen = {n: settings for n, settings in checks.chosen.items() if n in wanted}
        for check, verdict in _verdicts(resource, key, checks, chosen).items():
            context.log.info("%s: %s", check, verdict.description)
            yield _result(check, chosen[check], verdict)

    return dg.OpDefinition(
        compute_fn=look_and_judge,
        name=f"{name}_checks_work",
        description="Looks at the table once, and tells what each check says of it. Changes nothing.",
        ins={"asset": dg.In(dg.Nothing)},
        outs={check: dg.Out(dg.Nothing, is_required=False) for check in checks.chosen},
        required_resource_keys={resource_key},
        tags={"icedb/table": name},
    )


def _verdicts(
    resource: IceDBResource, key: dg.AssetKey, checks: TableChecks, chosen: Mapping[str, Check]
) -> dict[str, Verdict]:
    """What each check says. Raises what is no statement about the table."""
    try:
        look = CheckContext(resource.table(key), checks.thresholds, name=key.to_python_identifier())
    except (TableNotFound, CorruptionError) as error:
        return dict.fromkeys(chosen, Verdict(False, str(error)))
    return {name: judge(look, name, settings) for name, settings in chosen.items()}


def judge(look: CheckContext, name: str, settings: Check) -> Verdict:
    """What one check says. Raises what is no statement about the table: StoreUnavailable, AccessDenied and the like."""
    try:
        return _CHECKS[name][0](look, settings)
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
