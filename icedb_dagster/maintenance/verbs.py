"""The maintenance verbs: how each works on an open table, and the report it returns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any, Generic, TypeVar, get_args

import dagster as dg

import icedb
from icedb import Thresholds
from icedb.errors import InvalidOption
from icedb.operations.health.table_health import Due
from icedb.operations.integrity.log_audit import Problem
from icedb.operations.rewrite.delete import DeleteReport
from icedb.operations.rewrite.engine import Engine
from icedb.operations.rewrite.merge import Order, TieredMerge
from icedb.storage.parts import Part
from icedb.transaction.append import Commit
from icedb.util.times import parse_as_of
from icedb_dagster.locking.run_kinds import MAINTAIN, config_of, merging_limits
from icedb_dagster.maintenance.configs import (
    TABLE_DEFAULT,
    CleanupConfig,
    DeleteConfig,
    MaintainConfig,
    MergeConfig,
    MergeLogConfig,
    OrphansConfig,
    RestoreConfig,
    RewriteConfig,
    TtlConfig,
    VerifyConfig,
)
from icedb_dagster.maintenance.time_to_live import Expiry, TimeToLive, expired, reference_time

__all__ = ["VERBS", "MaintenanceReport", "MaintenanceTask", "MaintenanceVerb", "dry", "or_unknown", "ttl_verb"]

Config = TypeVar("Config", bound=dg.Config)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MaintenanceTask(Generic[Config]):
    """The input of a verb. `engine` rewrites parts; None: this process does."""

    table: icedb.Table
    config: Config
    engine: Engine | None


@dataclass(frozen=True, slots=True)
class MaintenanceReport:
    """The result of a verb, for display. If `failure` is not empty, the run fails with that reason.

    `idle`: there was nothing to do. `dropped` are the parts of dropped partitions; with `dry_run`, of those that would
    be dropped. `failed_kinds` are those of several kinds of maintenance that failed.
    """

    figures: Mapping[str, object]
    problems: Sequence[Problem] = ()
    failure: str = ""
    idle: bool = False
    dropped: Sequence[Part] = ()
    dry_run: bool = False
    failed_kinds: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class MaintenanceVerb(Generic[Config]):
    """A kind of maintenance. `exclusive`: it changes the table, so one run at a time does it.

    Of two runs that wait for a table, the one with the higher `priority` runs first. `rewrites`: an engine can do the
    work. `may_be_idle`: a dry run is cheap, and tells whether there is work.
    """

    name: str
    config: type[Config]
    work: Callable[[MaintenanceTask[Config]], MaintenanceReport]
    description: str
    exclusive: bool = True
    priority: int = 0
    rewrites: bool = False
    may_be_idle: bool = False

    @property
    def config_schema(self) -> Any:
        """The schema with which Dagster validates the run config."""
        return _config_schema(self.config)


@cache
def _config_schema(config: Any) -> Any:
    """Build the schema once for all tables."""
    return config.to_config_schema()


def _merge(task: MaintenanceTask[MergeConfig], *, order: Order) -> MaintenanceReport:
    table, config = task.table, task.config
    tiers = None if config.hot_ms < 0 else TieredMerge(config.hot_ms, config.hot_parts)
    report = table.merge(
        order=order,
        part_bytes_max=config.part_bytes_max,
        tiers=tiers,
        max_seconds=config.seconds_max,
        engine=task.engine,
        dry_run=config.dry_run,
    )
    if report.dry_run:
        return MaintenanceReport(
            {
                "parts to merge": report.merged_parts,
                "bytes to merge": report.merged_bytes,
                "rows": report.rows,
                "new parts": report.new_parts,
                "groups beyond one commit": report.remaining,
                **dry(dry_run=True),
            },
            idle=not report.merged_parts,
        )
    return MaintenanceReport(
        {
            "parts merged": report.merged_parts,
            "bytes merged": report.merged_bytes,
            "new parts": report.new_parts,
            "rows": report.rows,
            "groups lost to other commits": report.dropped_groups,
            "groups remaining": report.remaining,
            "log files": ", ".join(report.commit_keys) or "none: nothing to merge",
            **dry(dry_run=False),
        }
    )


def _merge_log(task: MaintenanceTask[MergeLogConfig]) -> MaintenanceReport:
    report = task.table.merge_log(
        lines_max=task.config.lines_max, files_min=task.config.files_min, dry_run=task.config.dry_run
    )
    return MaintenanceReport(
        {
            "log files merged": len(report.merged_log_files),
            "log files that readers open": report.log_files,
            "remaining": report.remaining,
            **_written(report.commit, dry_run=report.dry_run),
        },
        idle=not report.merged_log_files,
    )


def _ttl(task: MaintenanceTask[TtlConfig], *, ttl: TimeToLive | Expiry) -> MaintenanceReport:
    table, config = task.table, task.config
    reference = reference_time(table, config.reference_date)
    chosen, how = expired(ttl, table, reference, keep_days=config.keep_days)
    figures = {"reference": reference.isoformat(timespec="minutes"), **how}
    if not chosen and not isinstance(chosen, str):
        return MaintenanceReport({**figures, "partitions dropped": 0, **dry(dry_run=config.dry_run)}, idle=True)
    # In a re-executed run, the partitions may be gone already.
    report = table.drop_partitions(chosen, missing_ok=True, dry_run=config.dry_run)
    return MaintenanceReport(
        {
            **figures,
            "partitions dropped": len(report.partitions),
            "parts dropped": len(report.parts),
            "rows dropped": or_unknown(report.rows),
            "bytes to free": report.bytes,
            "parts of an earlier partitioning, not dropped": len(report.older_parts),
            **_written(report.commit, dry_run=report.dry_run),
        },
        idle=not report.parts and not report.older_parts,
        dropped=report.parts,
        dry_run=report.dry_run,
    )


def _cleanup(task: MaintenanceTask[CleanupConfig]) -> MaintenanceReport:
    config = task.config
    report = task.table.cleanup(
        grace_ms=_or_table_default(config.grace_ms),
        allow_short_grace=config.allow_short_grace,
        deletes_max=config.deletes_max,
        dry_run=config.dry_run,
    )
    return MaintenanceReport(
        {
            "parts deleted": len(report.deleted_parts),
            "bytes freed": report.deleted_bytes,
            "log files deleted": len(report.deleted_log_files),
            "claims deleted": len(report.deleted_claims),
            "expired pins deleted": len(report.deleted_pins),
            "parts kept for pins": report.kept_for_pins,
            "markers forgotten": report.forgotten,
            "remaining": report.remaining,
            "oldest snapshot that can be read": _utc(report.horizon_ms) if report.horizon_ms else "the first",
            **dry(dry_run=report.dry_run),
        },
        idle=not any(
            (
                report.deleted_parts,
                report.deleted_log_files,
                report.deleted_claims,
                report.deleted_pins,
                report.forgotten,
            )
        ),
    )


def _orphans(task: MaintenanceTask[OrphansConfig]) -> MaintenanceReport:
    config = task.config
    report = task.table.delete_orphans(
        min_age_ms=_or_table_default(config.min_age_ms), limit=config.limit, dry_run=config.dry_run
    )
    return MaintenanceReport(
        {
            "orphans deleted": len(report.deleted_parts),
            "bytes freed": report.deleted_bytes,
            "remaining": report.remaining,
            "young parts, possibly still being written": report.young_parts,
            "unfinished puts deleted": report.unfinished_puts,
            "foreign objects, never deleted": len(report.foreign),
            **dry(dry_run=report.dry_run),
        }
    )


def _rewrite(task: MaintenanceTask[RewriteConfig]) -> MaintenanceReport:
    config = task.config
    report = task.table.rewrite_partition(
        config.partition, config.query, new_columns=config.new_columns, dry_run=config.dry_run, engine=task.engine
    )
    return MaintenanceReport(
        {
            "partition": report.partition,
            "rows before": or_unknown(report.rows_before),
            "rows": report.rows,
            "parts replaced": report.replaced_parts,
            "new parts": report.new_parts,
            "bytes before": report.bytes_before,
            "bytes": report.bytes,
            **_written(report.commit, dry_run=report.dry_run),
        }
    )


def _delete(task: MaintenanceTask[DeleteConfig]) -> MaintenanceReport:
    config = task.config
    if config.passes_max < 1:
        raise InvalidOption(f"{task.table.uri}: passes_max is {config.passes_max}; give at least 1.")
    passes: list[DeleteReport] = []
    while not passes or (passes[-1].second_pass_needed and not config.dry_run and len(passes) < config.passes_max):
        passes.append(task.table.delete(config.where, dry_run=config.dry_run, engine=task.engine))
    complete = not passes[-1].second_pass_needed
    return MaintenanceReport(
        {
            "condition": config.where,
            "matching rows": passes[0].matching_rows,
            "rows deleted": sum(p.deleted_rows for p in passes),
            "parts rewritten": sum(p.rewritten_parts for p in passes),
            "parts removed": sum(p.removed_parts for p in passes),
            "bytes of these parts": sum(p.bytes for p in passes),
            "passes": len(passes),
            "no such row is left": "yes" if complete else "unknown: run the job again",
            "log files": ", ".join(p.commit.key for p in passes if p.commit.key is not None) or "none",
            **dry(dry_run=config.dry_run),
        }
    )


def _verify(task: MaintenanceTask[VerifyConfig]) -> MaintenanceReport:
    report = task.table.verify(deep=task.config.deep)
    figures: dict[str, object] = {
        "result": "sound" if report.ok else "DAMAGED",
        "errors": sum(p.severity == "error" for p in report.problems),
        "warnings": sum(p.severity == "warning" for p in report.problems),
        "live parts": report.live_parts,
        "live rows": or_unknown(report.live_rows),
        "live parts not compared with a digest": report.unchecked_parts,
        "log files": report.log_files,
        "orphans": len(report.orphans),
        "pins": report.pins,
    }
    failure = "" if report.ok else f"{report.table} is damaged: {report.problems[0].message}"
    return MaintenanceReport(figures, report.problems, failure)


def _restore(task: MaintenanceTask[RestoreConfig]) -> MaintenanceReport:
    moment_ms = parse_as_of(task.config.as_of, table=task.table.uri)
    report = task.table.restore(moment_ms, allow_empty=task.config.allow_empty, dry_run=task.config.dry_run)
    return MaintenanceReport(
        {
            "as of": _utc(report.as_of_ms),
            "parts restored": len(report.restored),
            "rows restored": or_unknown(report.rows),
            "bytes restored": report.bytes,
            "later parts, removed": len(report.tombstoned),
            "rows before": or_unknown(report.rows_before),
            "rows after": or_unknown(report.rows_after),
            **_written(report.commit, dry_run=report.dry_run),
        }
    )


def _maintain(task: MaintenanceTask[MaintainConfig]) -> MaintenanceReport:
    """Do several kinds of maintenance. The run fails after the last one, so an error of one does not hold up others."""
    table, config = task.table, task.config
    if unknown := sorted(set(config.kinds) - set(get_args(Due))):
        raise InvalidOption(f"{table.uri}: kinds has {unknown[0]!r}; give some of {', '.join(get_args(Due))}, or none.")
    kinds = config.kinds or [r.due for r in table.health(Thresholds(**merging_limits(config))).recommendations]
    reports: dict[str, MaintenanceReport] = {}
    errors: dict[str, Exception] = {}
    for verb in sorted((verb for verb in VERBS if verb.name in kinds), key=lambda verb: -verb.priority):
        try:
            of_verb = verb.config(**config_of(verb.name, config), dry_run=config.dry_run)
            reports[verb.name] = verb.work(replace(task, config=of_verb))
        except Exception as error:  # the report has it, after the other kinds
            logger.exception("%s of %s failed", verb.name, table.uri)
            errors[verb.name] = error
    return MaintenanceReport(
        {
            "kinds of maintenance": ", ".join([*reports, *errors]) or "none: nothing is due",
            **{
                f"{name}: {figure}": value
                for name, report in reports.items()
                for figure, value in report.figures.items()
                if figure not in dry(dry_run=config.dry_run)
            },
            **dry(dry_run=config.dry_run),
        },
        failure="; ".join(f"{name}: {type(e).__name__}: {' '.join(str(e).split())}" for name, e in errors.items()),
        failed_kinds=tuple(errors),
    )


def _or_table_default(ms: int) -> int | None:
    return None if ms == TABLE_DEFAULT else ms


def _written(commit: Commit, *, dry_run: bool) -> dict[str, object]:
    return {"log file": commit.key or "none", **dry(dry_run=dry_run)}


def dry(*, dry_run: bool) -> dict[str, object]:
    """Return the figure that states whether a run was a dry run."""
    return {"dry run": "yes: nothing was changed" if dry_run else "no"}


def or_unknown(rows: int | None) -> object:
    """Return a row count for display."""
    return "unknown" if rows is None else rows


def _utc(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, tz=UTC).isoformat(sep=" ", timespec="milliseconds")


def ttl_verb(ttl: TimeToLive | Expiry) -> MaintenanceVerb[TtlConfig]:
    """Return the verb for a table's own time to live."""
    return MaintenanceVerb(
        "ttl",
        TtlConfig,
        partial(_ttl, ttl=ttl),
        "Drops partitions that are older than their time to live.",
        may_be_idle=True,
    )


#: The verbs of every table. Hot partitions get small parts fastest, so their merge has the highest priority.
VERBS: tuple[MaintenanceVerb[Any], ...] = (
    MaintenanceVerb(
        "merge_newest",
        MergeConfig,
        partial(_merge, order="newest"),
        "Merges small parts (compaction), newest rows first.",
        priority=1,
        rewrites=True,
        may_be_idle=True,
    ),
    MaintenanceVerb(
        "merge_oldest",
        MergeConfig,
        partial(_merge, order="oldest"),
        "Merges small parts (compaction), oldest rows first.",
        priority=-1,
        rewrites=True,
        may_be_idle=True,
    ),
    MaintenanceVerb(
        "merge_log",
        MergeLogConfig,
        _merge_log,
        "Merges small log files, so that opening the table stays cheap.",
        may_be_idle=True,
    ),
    MaintenanceVerb(
        "cleanup",
        CleanupConfig,
        _cleanup,
        "Deletes objects superseded longer ago than the grace period (VACUUM).",
        may_be_idle=True,
    ),
    MaintenanceVerb(
        MAINTAIN,
        MaintainConfig,
        _maintain,
        "Does all merges and the cleanup that are due, or those that its config names.",
        priority=1,
        rewrites=True,
    ),
    MaintenanceVerb(
        "orphans", OrphansConfig, _orphans, "Deletes orphans: parts of crashed writes, which no log file names."
    ),
    MaintenanceVerb(
        "rewrite",
        RewriteConfig,
        _rewrite,
        "Replaces the rows of a partition with the result of a query.",
        rewrites=True,
    ),
    MaintenanceVerb("delete", DeleteConfig, _delete, "Deletes the rows for which a condition is true.", rewrites=True),
    MaintenanceVerb(
        "verify", VerifyConfig, _verify, "Checks every object of the table. Changes nothing.", exclusive=False
    ),
    MaintenanceVerb("restore", RestoreConfig, _restore, "Restores the table to an earlier time."),
)
