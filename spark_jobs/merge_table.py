"""Merge (compact) a table's small parts in Spark's tasks, until nothing is left to merge.

    spark-submit merge_table.py --table s3://lake/events

Each pass is one commit. Readers and writers continue meanwhile.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import icedb
from icedb.operations.rewrite.engine import Engine
from icedb.operations.rewrite.merge import INPUT_BYTES_MAX, INPUT_PARTS_MAX, PART_BYTES_MAX, Order
from icedb.spark import SparkEngine
from spark_jobs.job import Job, JobResult, parser, positive, run

__all__ = ["Merged", "main", "merge_all", "plan"]

NAME = "merge_table"


@dataclass(frozen=True, slots=True)
class Merged:
    """Totals of all passes. Another run could merge the `groups_remaining`."""

    passes: int
    parts_merged: int
    new_parts: int
    rows: int
    groups_remaining: int


def merge_all(
    table: icedb.Table,
    engine: Engine,
    *,
    order: Order = "oldest",
    part_bytes_max: int = PART_BYTES_MAX,
    input_parts_max: int = INPUT_PARTS_MAX,
    input_bytes_max: int = INPUT_BYTES_MAX,
    on_pass: Callable[[int, icedb.MergeReport], None] | None = None,
) -> Merged:
    """Merge until a pass finds nothing, or loses all of its groups to other commits.

    Args:
        table: the table.
        engine: the engine that merges, such as `SparkEngine`.
        order: merge the oldest or the newest partitions first.
        part_bytes_max: merge parts below this number of bytes.
        input_parts_max: the maximum number of parts of a pass.
        input_bytes_max: the maximum bytes of a pass.
        on_pass: called with the number and the report of each pass.

    Returns:
        The totals of all passes.

    Raises:
        IceDBError: as for `Table.merge`.
    """
    done = Merged(0, 0, 0, 0, 0)
    while True:
        report = table.merge(
            order=order,
            part_bytes_max=part_bytes_max,
            input_parts_max=input_parts_max,
            input_bytes_max=input_bytes_max,
            engine=engine,
        )
        left = report.remaining + report.dropped_groups
        if not report.merged_parts:
            return Merged(done.passes, done.parts_merged, done.new_parts, done.rows, left)
        done = Merged(
            done.passes + 1,
            done.parts_merged + report.merged_parts,
            done.new_parts + report.new_parts,
            done.rows + report.rows,
            left,
        )
        if on_pass is not None:
            on_pass(done.passes, report)
        if not left:
            return done


def plan(table: icedb.Table, *, part_bytes_max: int = PART_BYTES_MAX) -> tuple[int, int, int]:
    """Return the groups, parts and bytes that could be merged."""
    planned = table.merge(
        part_bytes_max=part_bytes_max, input_parts_max=sys.maxsize, input_bytes_max=sys.maxsize, dry_run=True
    )
    return planned.new_parts, planned.merged_parts, planned.merged_bytes


# ------------------------------------------------------------------------------------------ the program


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the program's arguments."""
    made = parser(__doc__)
    made.add_argument(
        "--order",
        choices=["oldest", "newest"],
        default="oldest",
        help="merge the oldest or newest partitions first [default: %(default)s]",
    )
    made.add_argument(
        "--part-bytes-max",
        type=positive,
        default=PART_BYTES_MAX,
        metavar="N",
        help="merge parts below this size [default: %(default)s]",
    )
    made.add_argument(
        "--input-parts-max",
        type=positive,
        default=INPUT_PARTS_MAX,
        metavar="N",
        help="limit the parts of a pass [default: %(default)s]",
    )
    made.add_argument(
        "--input-bytes-max",
        type=positive,
        default=INPUT_BYTES_MAX,
        metavar="N",
        help="limit the bytes of a pass [default: %(default)s]",
    )
    made.add_argument(
        "--memory-bytes", type=positive, metavar="N", help="limit the memory of DuckDB in a task [default: 512 MiB]"
    )
    made.add_argument("--dry-run", action="store_true", help="print what could be merged, and change nothing")
    return made


def work(job: Job, args: argparse.Namespace) -> JobResult:
    """Run the program with its arguments."""
    table = icedb.Table.open(args.table, storage_options=args.storage_options)
    if args.dry_run:
        groups, parts, size = plan(table, part_bytes_max=args.part_bytes_max)
        return JobResult(table.snapshot(), {"groups_to_merge": groups, "parts_to_merge": parts, "bytes_to_merge": size})
    memory = {} if args.memory_bytes is None else {"memory_bytes": args.memory_bytes}
    done = merge_all(
        table,
        SparkEngine(job.spark, **memory),
        order=args.order,
        part_bytes_max=args.part_bytes_max,
        input_parts_max=args.input_parts_max,
        input_bytes_max=args.input_bytes_max,
        on_pass=lambda number, report: job.log.info(
            "%s: pass %d: %d parts became %d, %d groups remain",
            *(table.uri, number, report.merged_parts, report.new_parts, report.remaining),
        ),
    )
    figures: dict[str, int | str] = {
        "passes": done.passes,
        "parts_merged": done.parts_merged,
        "new_parts": done.new_parts,
        "rows_merged": done.rows,
        "groups_remaining": done.groups_remaining,
    }
    return JobResult(table.snapshot(), figures)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program from spark-submit, plain Python or Dagster. Return its exit status."""
    return run(NAME, arguments(), argv, work)


if __name__ == "__main__":
    sys.exit(main())
