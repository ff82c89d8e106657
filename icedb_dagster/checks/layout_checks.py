"""Checks of how a table is stored: objects, small parts, log depth, horizon."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import dagster as dg

import icedb
from icedb.operations.health.size_chart import PartSizes
from icedb.operations.health.table_health import PartitionHealth
from icedb.operations.integrity.verify import VerifyReport
from icedb.util.counts import count_text
from icedb.util.durations import duration_text
from icedb_dagster.checks.check_context import CheckContext, Verdict
from icedb_dagster.checks.check_settings import HorizonCheck, LogDepthCheck, ObjectsCheck, SmallPartsCheck
from icedb_dagster.metadata import markdown
from icedb_dagster.metadata.problem_list import problems_table
from icedb_dagster.metadata.size_chart import markdown_picture

__all__ = ["check_horizon", "check_log_depth", "check_objects", "check_small_parts"]

# An event is read on a screen. `icedb info` lists all partitions.
PARTITIONS_MAX = 20


def check_objects(context: CheckContext, settings: ObjectsCheck) -> Verdict:
    """Check that no object is missing, damaged or, unless allowed, foreign."""
    report = context.objects
    errors = [p for p in report.problems if p.severity == "error"]
    foreign = [p for p in report.problems if p.kind == "foreign_objects"] if settings.foreign == "fail" else []
    metadata = _objects_metadata(report, errors)
    if failing := [*errors, *foreign]:
        more = f" {count_text(len(failing) - 1, 'more problem')}." if len(failing) > 1 else ""
        return Verdict(False, f"{failing[0].message}{more} `icedb verify {report.table}` lists all.", metadata)
    notes = "".join(f" {p.message}" for p in report.problems)
    return Verdict(
        True,
        f"Nothing is missing: {count_text(report.live_parts, 'live part')} with the sizes in the log.{notes}",
        metadata,
    )


def _objects_metadata(report: VerifyReport, errors: Sequence[icedb.Problem]) -> dict[str, dg.MetadataValue]:
    metadata: dict[str, dg.MetadataValue] = {
        "errors": dg.MetadataValue.int(len(errors)),
        "warnings": dg.MetadataValue.int(len(report.problems) - len(errors)),
        "live parts": dg.MetadataValue.int(report.live_parts),
        "foreign objects": dg.MetadataValue.int(len(report.foreign)),
        "orphans": dg.MetadataValue.int(len(report.orphans)),
    }
    if report.problems:
        metadata["problems"] = problems_table(report.problems)
    return metadata


def check_small_parts(context: CheckContext, settings: SmallPartsCheck) -> Verdict:
    """Check that small parts are few, in the table and in each partition."""
    health, ratio = context.health, context.health.small_part_ratio
    crowded = [p for p in health.partitions if p.small_parts >= _threshold(context, p)]
    reasons = []
    if health.live_parts >= settings.parts_min and ratio >= settings.ratio_max:
        reasons.append(
            f"{health.small_parts:,} of {health.live_parts:,} live parts ({ratio:.0%}) are small enough to be "
            f"merged; it should be less than {settings.ratio_max:.0%}."
        )
    if crowded:
        worst = max(crowded, key=lambda p: (p.small_parts / _threshold(context, p), p.path))
        reasons.append(
            f"{_partition(worst)} has {count_text(worst.small_parts, 'small part')} and should have less than "
            f"{_threshold(context, worst):,}"
            + (f", and {len(crowded) - 1:,} more have too many." if crowded[1:] else ".")
        )
    metadata = _small_parts_metadata(context)
    if reasons:
        remedy = f"Start {context.job('merge_newest')} or {context.job('merge_oldest')}, or their schedules."
        return Verdict(False, " ".join([*reasons, remedy]), metadata)
    result = f"Of {count_text(health.live_parts, 'live part')}, a merge would take {health.small_parts:,}"
    return Verdict(True, f"{result}, and no partition has too many of them.", metadata)


def _threshold(context: CheckContext, partition: PartitionHealth) -> int:
    return context.thresholds.hot_parts if partition.hot else context.thresholds.cold_parts


def _partition(partition: PartitionHealth) -> str:
    return f"the partition '{partition.path}'" if partition.path else "the table"


def _small_parts_metadata(context: CheckContext) -> dict[str, dg.MetadataValue]:
    health = context.health
    metadata: dict[str, dg.MetadataValue] = {
        "small-part ratio": dg.MetadataValue.float(round(health.small_part_ratio, 4)),
        "small parts": dg.MetadataValue.int(health.small_parts),
        "live parts": dg.MetadataValue.int(health.live_parts),
        "partitions": dg.MetadataValue.int(len(health.partitions)),
    }
    worst = sorted((p for p in health.partitions if p.small_parts), key=lambda p: (-p.small_parts, p.path))
    if worst:
        rows = [
            (p.path or "(the table)", f"{p.small_parts:,}", f"{_threshold(context, p):,}", "hot" if p.hot else "cold")
            for p in worst[:PARTITIONS_MAX]
        ]
        more = f"\n\nand {len(worst) - PARTITIONS_MAX:,} more" if worst[PARTITIONS_MAX:] else ""
        names = ("partition", "small parts", "less than", "heat")
        metadata["worst partitions"] = dg.MetadataValue.md(markdown.table(names, rows) + more)
        parts = [context.table.handle.part(marker) for marker in context.state.live]
        sizes = PartSizes.of(parts, part_bytes_max=context.thresholds.part_bytes_max)
        metadata["part sizes"] = dg.MetadataValue.md(markdown_picture(sizes))
    return metadata


def check_log_depth(context: CheckContext, settings: LogDepthCheck) -> Verdict:
    """Check that opening the table is cheap."""
    health, threshold = context.health, context.thresholds.log_files
    metadata = {
        "log files": dg.MetadataValue.int(health.log_files),
        "log files to merge": dg.MetadataValue.int(health.small_log_files),
    }
    result = f"A reader that opens the table reads {count_text(health.log_files, 'log file')}"
    if health.log_files < threshold:
        return Verdict(True, f"{result}.", metadata)
    remedy = f"Start {context.job('merge_log')}, or its schedule."
    if not health.small_log_files:
        remedy = "None of them can be merged now: they are long, or their times are in the future."
    return Verdict(False, f"{result}; it should be less than {threshold:,}. {remedy}", metadata)


def check_horizon(context: CheckContext, settings: HorizonCheck) -> Verdict:
    """Check that snapshots reach back far enough, and that superseded parts are deleted in time."""
    health = context.health
    metadata: dict[str, dg.MetadataValue] = {"superseded parts": dg.MetadataValue.int(health.dead_parts)}
    if health.horizon_ms:
        metadata["oldest snapshot"] = dg.MetadataValue.timestamp(health.horizon_ms / 1000)
    if health.oldest_dead_ms is not None:
        metadata["oldest superseded"] = dg.MetadataValue.timestamp(health.oldest_dead_ms / 1000)
    reasons = [*_too_short(context, settings.min_age), *_too_long(context, settings.max_age)]
    if reasons:
        return Verdict(False, " ".join(reasons), metadata)
    result = f"Snapshots of the last {context.age(health.horizon_ms)} can be read"
    return Verdict(True, f"{result if health.horizon_ms else 'Every snapshot can be read'}.", metadata)


def _too_short(context: CheckContext, min_age: timedelta | None) -> list[str]:
    horizon_ms = context.health.horizon_ms
    if min_age is None or not horizon_ms or context.now_ms - horizon_ms >= _ms(min_age):
        return []
    return [
        f"Only snapshots of the last {context.age(horizon_ms)} can be read; min_age requires "
        f"{duration_text(_ms(min_age))}. "
        f"Give {context.job('cleanup')} a longer grace_ms, or pin snapshots to keep."
    ]


def _too_long(context: CheckContext, max_age: timedelta | None) -> list[str]:
    oldest_ms = context.health.oldest_dead_ms
    if max_age is None or oldest_ms is None or context.now_ms - oldest_ms <= _ms(max_age):
        return []
    return [
        f"Parts that were superseded {context.age(oldest_ms)} ago are still stored, with the deleted rows; "
        f"they should be gone after {duration_text(_ms(max_age))}. Start {context.job('cleanup')}, or its schedule; "
        f"`icedb pins {context.table.uri}` lists the pins that keep them."
    ]


def _ms(age: timedelta) -> int:
    return age // timedelta(milliseconds=1)
