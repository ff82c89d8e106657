"""A table's maintenance as Dagster jobs: merge, time to live, cleanup.

Each job first makes sure of the table's pool and then does all its work in one step that holds it, so runs of one
table queue up behind each other however they were started. Schedules come stopped: somebody decides to start them.
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of functions as objects.
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import dagster as dg

import icedb
from icedb.clock import SystemClock
from icedb.engine import quote_name
from icedb.errors import InvalidOption
from icedb_dagster.locks import check_pool_held, ensure_pool, icedb_pool
from icedb_dagster.metadata import markdown_table, table_metadata
from icedb_dagster.resource import IceDBResource

__all__ = ["CleanupConfig", "MergeConfig", "TimeToLive", "TtlConfig", "build_table_definitions"]

Work = Callable[[dg.OpExecutionContext, icedb.Table, Any], Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class TimeToLive:
    """Partitions whose date, in `partition_column`, is more than `keep_days` before the reference date are dropped."""

    partition_column: str
    keep_days: int


class MergeConfig(dg.Config):
    """`order`: "newest" or "oldest" partitions first. `part_bytes_max`: parts below this size are merged."""

    order: str = "oldest"
    part_bytes_max: int = 128 * 1024 * 1024


class TtlConfig(dg.Config):
    """`keep_days`: 0 takes the table's. `reference_date`: YYYY-MM-DD, empty for today (UTC). `dry_run` only reports."""

    keep_days: int = 0
    reference_date: str = ""
    dry_run: bool = False


class CleanupConfig(dg.Config):
    """`grace_ms`: -1 takes the table's. `allow_short_grace`: nothing else uses the table now. See `Table.cleanup`."""

    grace_ms: int = -1
    allow_short_grace: bool = False
    dry_run: bool = False


def build_table_definitions(
    table: dg.AssetKey | Sequence[str] | str,
    *,
    ttl: TimeToLive | None = None,
    merge_cron: str = "*/15 * * * *",
    ttl_cron: str = "0 3 * * *",
    cleanup_cron: str = "30 * * * *",
    resource_key: str = "icedb",
) -> dg.Definitions:
    """Jobs and (stopped) schedules that maintain an asset's table: `<table>_merge`, `_ttl` (with `ttl`), `_cleanup`.

    They need an `IceDBResource` under `resource_key`, and hold the pool `icedb_pool(table)`.
    """
    key = dg.AssetKey.from_coercible(table)
    jobs = [
        (_job(key, "merge", MergeConfig, _merge, resource_key), merge_cron),
        (_job(key, "cleanup", CleanupConfig, _cleanup, resource_key), cleanup_cron),
    ]
    if ttl is not None:
        jobs.append((_job(key, "ttl", TtlConfig, _ttl(ttl), resource_key), ttl_cron))
    schedules = [
        dg.ScheduleDefinition(
            name=f"{job.name}_schedule",
            job=job,
            cron_schedule=cron,
            default_status=dg.DefaultScheduleStatus.STOPPED,
            description=f"Starts {job.name}. Stopped until you start it.",
        )
        for job, cron in jobs
    ]
    return dg.Definitions(jobs=[job for job, _ in jobs], schedules=schedules)


def _job(key: dg.AssetKey, verb: str, config: type[dg.Config], work: Work, resource_key: str) -> dg.JobDefinition:
    name = key.to_python_identifier()
    pool = icedb_pool(key)

    @dg.op(
        name=f"{name}_{verb}_lock",
        description=f"Makes sure that the pool {pool} lets one run at a time in.",
        out=dg.Out(dg.Nothing),
    )
    def lock(context: dg.OpExecutionContext) -> None:
        ensure_pool(context.instance, pool)

    def body(context: dg.OpExecutionContext, config: Any) -> None:
        check_pool_held(context, pool)
        resource: IceDBResource = getattr(context.resources, resource_key)
        opened = resource.table(key)
        figures = work(context, opened, config)
        context.log.info("%s of %s: %s", verb, opened.uri, ", ".join(f"{n}: {v}" for n, v in figures.items()))
        context.log_event(
            dg.AssetObservation(key, metadata={verb: markdown_table(figures), **table_metadata(opened.snapshot())})
        )

    body.__annotations__ = {"context": dg.OpExecutionContext, "config": config, "return": None}
    op = dg.op(
        name=f"{name}_{verb}_work",
        description=str(work.__doc__).splitlines()[0],
        pool=pool,
        ins={"locked": dg.In(dg.Nothing)},
        required_resource_keys={resource_key},
        tags={"icedb/table": name},
    )(body)

    # In one process: a step of its own process takes seconds to start, and the work is DuckDB's.
    @dg.job(
        name=f"{name}_{verb}",
        description=f"{str(work.__doc__).splitlines()[0]} Holds the pool {pool}.",
        executor_def=dg.in_process_executor,
        tags={"icedb/table": name, "icedb/verb": verb},
    )
    def job() -> None:
        op(lock())

    return job


def _merge(context: dg.OpExecutionContext, table: icedb.Table, config: MergeConfig) -> Mapping[str, object]:
    """Merges small parts into larger ones."""
    if config.order not in ("newest", "oldest"):
        raise InvalidOption(f"{table.uri}: order is '{config.order}'; give 'newest' or 'oldest'.")
    report = table.merge(order="newest" if config.order == "newest" else "oldest", part_bytes_max=config.part_bytes_max)
    return {
        "parts merged": report.merged_parts,
        "new parts": report.new_parts,
        "rows": report.rows,
        "groups lost to other commits": report.dropped_groups,
        "groups remaining": report.remaining,
        "log file": report.commit.key or "none: nothing to merge",
    }


def _ttl(ttl: TimeToLive) -> Work:
    def drop_old(context: dg.OpExecutionContext, table: icedb.Table, config: TtlConfig) -> Mapping[str, object]:
        """Drops partitions that are older than their time to live."""
        cutoff = _cutoff(table, _reference(table, config), config.keep_days or ttl.keep_days)
        _check_dated(table, ttl.partition_column)
        where = f"TRY_CAST({quote_name(ttl.partition_column)} AS DATE) < DATE '{cutoff.isoformat()}'"
        report = table.drop_partitions(where, dry_run=config.dry_run)
        return {
            "older than": cutoff.isoformat(),
            "partitions dropped": len(report.partitions),
            "parts dropped": len(report.parts),
            "rows dropped": report.rows if report.rows is not None else "unknown",
            "bytes to free": report.bytes,
            "parts of an earlier partitioning, not dropped": len(report.older_parts),
            "dry run": "yes" if report.dry_run else "no",
            "log file": report.commit.key or "none",
        }

    return drop_old


def _reference(table: icedb.Table, config: TtlConfig) -> date:
    if not config.reference_date:
        return datetime.fromtimestamp(SystemClock().now_ms() / 1000, tz=UTC).date()
    try:
        return date.fromisoformat(config.reference_date)
    except ValueError:
        raise InvalidOption(
            f"{table.uri}: reference_date is '{config.reference_date}'; write it as YYYY-MM-DD."
        ) from None


def _cutoff(table: icedb.Table, reference: date, keep_days: int) -> date:
    if not 0 < keep_days < reference.toordinal():
        raise InvalidOption(
            f"{table.uri}: keep_days is {keep_days}; give at least 1, and no more than there are dates."
        )
    return reference - timedelta(days=keep_days)


def _check_dated(table: icedb.Table, column: str) -> None:
    """Nothing of a column without dates would ever expire: better refused than kept in silence."""
    snapshot = table.snapshot()
    name = quote_name(column)
    named = snapshot.partitions(f"{name} IS NOT NULL") if snapshot.parts else []
    if named and not snapshot.partitions(f"TRY_CAST({name} AS DATE) IS NOT NULL"):
        raise InvalidOption(
            f"{table.uri}: the time to live looks at '{column}', where no value is a date (one is '{named[0]}'). "
            "Name a partition column of whole dates, YYYY-MM-DD."
        )


def _cleanup(context: dg.OpExecutionContext, table: icedb.Table, config: CleanupConfig) -> Mapping[str, object]:
    """Deletes what was superseded longer than the grace period ago."""
    report = table.cleanup(
        grace_ms=None if config.grace_ms < 0 else config.grace_ms,
        allow_short_grace=config.allow_short_grace,
        dry_run=config.dry_run,
    )
    return {
        "parts deleted": len(report.deleted_parts),
        "bytes freed": report.deleted_bytes,
        "log files deleted": len(report.deleted_log_files),
        "claims deleted": len(report.deleted_claims),
        "markers forgotten": report.forgotten,
        "oldest snapshot that can be read": _utc(report.horizon_ms) if report.horizon_ms else "the first",
        "dry run": "yes" if report.dry_run else "no",
    }


def _utc(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, tz=UTC).isoformat(sep=" ", timespec="milliseconds")
