"""The sensor that tells Dagster of commits that others made: Spark streams, other programs, a shell.

A tick reads the table's change feed from where the last one ended, and gives an event for each commit that brought
rows: once, in order. Merges, drops and deletions bring none. When nothing is new that is one LIST, for each thousand
log files that are stored. A commit is told when it is `settle_s` old: a step of Dagster's that made it has stored its
own materialization by then, which says so, and the commit is not told again. The same look at the events of the asset,
made only when there are new commits, keeps a tick that is evaluated again from repeating what it had told.

What is relied on in Dagster's sensor daemon: it evaluates one tick of a sensor at a time; it stores the events of an
answer one by one, in their order, and then the cursor. Killed in between, it evaluates the tick again with the old
cursor. The cursor of a tick that failed is not stored. Two sensors of one asset in one instance would be evaluated at
the same time, and both tell: there must be one only.
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of functions as objects.
import dagster as dg

from icedb.errors import InvalidOption, SnapshotExpired, TableNotFound, UncoordinatedMaintenance
from icedb.format.change_feed import at_time
from icedb.format.timing import Timing
from icedb.transaction.table_handle import Handle
from icedb.util.clock import SystemClock
from icedb_dagster.sensors.commit_events import Event, commit_events, gap_event
from icedb_dagster.sensors.feed_position import FeedPosition, decode, encode
from icedb_dagster.sensors.new_commits import CommitBatch, read_new_commits
from icedb_dagster.sensors.open_tables import open_tables
from icedb_dagster.sensors.partition_keys import PartitionKeys
from icedb_dagster.sensors.recorded_commits import RecordedCommits, is_gap_recorded, read_recorded_commits
from icedb_dagster.sensors.sensor_settings import CommitsSensor

__all__ = ["commits_sensor"]


def commits_sensor(key: dg.AssetKey, settings: CommitsSensor, *, resource_key: str) -> dg.SensorDefinition:
    """The sensor `<table>_commits_sensor`: each commit that brought rows, once, as an event of the asset `key`.

    `resource_key`: of the `IceDBResource`. Of an asset with partitions and a `partition_expr`, the event is of the
    partition that the rows are in. Nothing is opened or asked until the first tick. An asset has one such sensor in
    an instance. A tick raises InvalidOption when `settle_s` is not well below the table's grace period.
    """

    def tick(context: dg.SensorEvaluationContext, **_: object) -> dg.SensorResult:
        lake = getattr(context.resources, resource_key)
        position = _stored(context)
        try:
            with open_tables.use(lake, key) as table:
                look = _CommitsTick(context, key, settings, table.handle)
                answer = look.answer(position)
        except TableNotFound as error:
            # Whatever it will have is new. Its first commit may be by a clock that is behind this one.
            since = at_time(SystemClock().now_ms() - Timing().max_skew_ms)
            return dg.SensorResult(
                skip_reason=f"there are no commits yet. {error}", cursor=encode(position or FeedPosition(since))
            )
        if look.log_is_empty:
            open_tables.forget(lake, key)
        return answer

    return dg.SensorDefinition(
        name=f"{key.to_python_identifier()}_commits_sensor",
        evaluation_fn=tick,
        minimum_interval_seconds=settings.interval_s,
        description=f"Tells of the commits to {key.to_user_string()} that Dagster did not make.",
        default_status=dg.DefaultSensorStatus.RUNNING if settings.running else dg.DefaultSensorStatus.STOPPED,
        required_resource_keys={resource_key},
    )


def _stored(context: dg.SensorEvaluationContext) -> FeedPosition | None:
    """Where the last tick ended; None when there was none, or when the cursor is of no use."""
    if not context.cursor:
        return None
    position = decode(context.cursor)
    if position is None:
        context.log.warning("the cursor %r is of no use here, and is begun anew", context.cursor[:80])
    return position


def _check_settle_s(settings: CommitsSensor, handle: Handle) -> None:
    """Cleanup must not forget commits while they wait; half of the grace period is left for looks that come late."""
    grace_ms = handle.timing.grace_ms
    if settings.settle_s * 1000 > grace_ms // 2:
        raise InvalidOption(
            f"{handle.table}: the commits sensor's settle_s is {settings.settle_s} s, and what is superseded may be "
            f"forgotten after the table's grace period (grace_ms) of {grace_ms // 1000} s; give at most half of it, "
            f"{grace_ms // 2000}."
        )


class _CommitsTick:
    """One look at a table, and what it tells."""

    def __init__(
        self, context: dg.SensorEvaluationContext, key: dg.AssetKey, settings: CommitsSensor, handle: Handle
    ) -> None:
        self._context = context
        self._key = key
        self._settings = settings
        self._handle = handle
        self.log_is_empty = False

    def answer(self, position: FeedPosition | None) -> dg.SensorResult:
        """Events of what is new, and where the next tick goes on. Raises InvalidOption and the errors of the log."""
        _check_settle_s(self._settings, self._handle)
        if position is None:
            if not self._settings.from_beginning:
                now_ms = self._handle.clock.now_ms()
                told = f"{self._handle.table}: the sensor begins now; earlier commits are not told"
                return dg.SensorResult(skip_reason=told, cursor=encode(FeedPosition(at_time(now_ms))))
            position = FeedPosition(at_time(self._handle.read(fresh=True).horizon_ms))
        try:
            batch = read_new_commits(
                self._handle,
                position,
                settle_ms=self._settings.settle_s * 1000,
                commits_max=self._settings.events_max,
            )
        except SnapshotExpired as error:
            # What came since the horizon is known commit by commit.
            return self._gap(position, FeedPosition(at_time(error.horizon_ms or self._handle.clock.now_ms())), error)
        except UncoordinatedMaintenance as error:
            if error.foreign_ms is None:  # not what is new is unknown, but the log is damaged
                raise
            # Later than now only by a clock that is ahead: then it is not known yet what comes after.
            known_ms = min(error.foreign_ms, self._handle.clock.now_ms())
            return self._gap(position, FeedPosition(at_time(known_ms), foreign=True), error)
        self.log_is_empty = not batch.table.log_files
        events = self._events(batch)
        return dg.SensorResult(
            asset_events=events, skip_reason=self._message(batch, len(events)), cursor=encode(batch.end)
        )

    def _events(self, batch: CommitBatch) -> list[Event]:
        if not batch.commits:
            return []
        told = self._told(batch)
        keys = PartitionKeys.of(self._context, self._key, table=self._handle.table)
        return commit_events(self._key, batch, told, keys, self._handle, kind=self._settings.events)

    def _told(self, batch: CommitBatch) -> RecordedCommits:
        """By events from a while before the first commit on: the clocks may differ."""
        since_ms = batch.commits[0].created_ms - 2 * self._handle.timing.max_skew_ms
        return read_recorded_commits(
            self._context.instance,
            self._key,
            since_ms=since_ms,
            observations=self._settings.events == "observation",
        )

    def _message(self, batch: CommitBatch, events: int) -> str:
        known = "" if events or not batch.commits else "; Dagster knew them"
        more = "; the next look goes on" if batch.more else ""
        new = f"{len(batch.commits):,} new commits{known}{more}" if batch.commits else "no new commits"
        rows = "an unknown number of" if batch.table.rows is None else f"{batch.table.rows:,}"
        return f"{new}. {self._handle.table}: {rows} rows in {len(batch.table.parts):,} parts"

    def _gap(
        self, before: FeedPosition, after: FeedPosition, error: SnapshotExpired | UncoordinatedMaintenance
    ) -> dg.SensorResult:
        """Some commits are not known one by one: that is told once, and the telling goes on."""
        since_ms = before.changes.t_ms
        repeated = (before.foreign and after.foreign) or is_gap_recorded(
            self._context.instance, self._key, after_ms=since_ms
        )
        events = [] if repeated else [gap_event(self._key, since_ms, str(error))]
        return dg.SensorResult(
            asset_events=events, skip_reason=f"some commits are unknown. {error}", cursor=encode(after)
        )
