"""The sensor that reports commits made outside Dagster: by Spark streams, other programs, a shell.

A tick reads the table's change feed from the end of the last tick, and returns one event for each commit that brought
rows: once, in order. Merges, drops and deletions bring none. A tick without new commits costs one LIST for each
thousand stored log files. A commit is reported when it is `settle_s` old. By then, a Dagster step that made it has
stored its own materialization, which identifies the commit, so it is not reported again. The tick reads the asset's
events for this only if there are new commits. The same read keeps a tick that is evaluated again from repeating events.

The sensor relies on this behavior of Dagster's sensor daemon: it evaluates one tick of a sensor at a time. It stores
the events of a result one by one, in order, and then the cursor. If it is killed in between, it evaluates the tick
again with the old cursor. The cursor of a failed tick is not stored. Two sensors of one asset in one instance would be
evaluated concurrently, and both would report the commits, so an asset may have one only.
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of functions as objects.
import dagster as dg

from icedb.errors import InvalidOption, SnapshotExpired, TableNotFound, UncoordinatedMaintenance
from icedb.format.change_feed import at_time
from icedb.format.timing import Timing
from icedb.transaction.table_handle import Handle
from icedb.util.clock import SystemClock
from icedb_dagster.metadata.data_versions import recorded_data_version
from icedb_dagster.sensors.commit_events import Event, commit_events, gap_event
from icedb_dagster.sensors.feed_position import FeedPosition, decode, encode
from icedb_dagster.sensors.new_commits import CommitBatch, read_new_commits
from icedb_dagster.sensors.open_tables import open_tables
from icedb_dagster.sensors.partition_keys import PartitionKeys
from icedb_dagster.sensors.recorded_commits import RecordedCommits, is_gap_recorded, read_recorded_commits
from icedb_dagster.sensors.sensor_settings import SENSOR_TAG, CommitsSensor

__all__ = ["commits_sensor"]


def commits_sensor(key: dg.AssetKey, settings: CommitsSensor, *, resource_key: str) -> dg.SensorDefinition:
    """Return the sensor `<table>_commits_sensor`: each commit that brought rows, once, as an event of the asset `key`.

    `resource_key` is the key of the `IceDBResource`. If the asset has partitions and a `partition_expr`, the event is
    of the partition that has the rows. Nothing is opened before the first tick. An asset may have one such sensor in an
    instance. A tick raises InvalidOption if `settle_s` is over half of the table's grace period.
    """

    def tick(context: dg.SensorEvaluationContext, **_: object) -> dg.SensorResult:
        lake = getattr(context.resources, resource_key)
        position = _stored(context)
        try:
            with open_tables.use(lake, key) as table:
                evaluation = _CommitsTick(context, key, settings, table.handle)
                result = evaluation.result(position)
        except TableNotFound as error:
            # All its commits will be new. The clock of the first one may be behind this one.
            since = at_time(SystemClock().now_ms() - Timing().max_skew_ms)
            return dg.SensorResult(
                skip_reason=f"the table does not exist yet. {error}", cursor=encode(position or FeedPosition(since))
            )
        if evaluation.log_is_empty:
            open_tables.forget(lake, key)
        return result

    return dg.SensorDefinition(
        name=f"{key.to_python_identifier()}_commits_sensor",
        evaluation_fn=tick,
        minimum_interval_seconds=settings.interval_s,
        description=f"Reports commits to {key.to_user_string()} that were made outside Dagster.",
        default_status=dg.DefaultSensorStatus.RUNNING if settings.running else dg.DefaultSensorStatus.STOPPED,
        required_resource_keys={resource_key},
        tags={SENSOR_TAG: "commits"},
    )


def _stored(context: dg.SensorEvaluationContext) -> FeedPosition | None:
    """Return the position at which the last tick ended; None if there is none, or if it cannot be read."""
    if not context.cursor:
        return None
    position = decode(context.cursor)
    if position is None:
        context.log.warning("the cursor %r cannot be read; a new one begins", context.cursor[:80])
    return position


def _check_settle_s(settings: CommitsSensor, handle: Handle) -> None:
    """Check that cleanup cannot forget waiting commits. Half of the grace period remains for late ticks."""
    grace_ms = handle.timing.grace_ms
    if settings.settle_s * 1000 > grace_ms // 2:
        raise InvalidOption(
            f"{handle.table}: the commits sensor's settle_s is {settings.settle_s} s, but cleanup may forget "
            f"superseded parts after the table's grace period (grace_ms) of {grace_ms // 1000} s. Give at most half of "
            f"it, {grace_ms // 2000}."
        )


class _CommitsTick:
    """One evaluation of the sensor."""

    def __init__(
        self, context: dg.SensorEvaluationContext, key: dg.AssetKey, settings: CommitsSensor, handle: Handle
    ) -> None:
        self._context = context
        self._key = key
        self._settings = settings
        self._handle = handle
        self.log_is_empty = False

    def result(self, position: FeedPosition | None) -> dg.SensorResult:
        """Return events of new commits, and the next position. Raises InvalidOption and the errors of the log."""
        _check_settle_s(self._settings, self._handle)
        if position is None:
            if not self._settings.from_beginning:
                now_ms = self._handle.clock.now_ms()
                reason = f"{self._handle.table}: the sensor begins now; earlier commits are not reported"
                return dg.SensorResult(skip_reason=reason, cursor=encode(FeedPosition(at_time(now_ms))))
            position = FeedPosition(at_time(self._handle.read(fresh=True).horizon_ms))
        try:
            batch = read_new_commits(
                self._handle,
                position,
                settle_ms=self._settings.settle_s * 1000,
                commits_max=self._settings.events_max,
            )
        except SnapshotExpired as error:
            # Commits since the horizon are known individually.
            return self._gap(position, FeedPosition(at_time(error.horizon_ms or self._handle.clock.now_ms())), error)
        except UncoordinatedMaintenance as error:
            if error.foreign_ms is None:  # the log is damaged; new commits are not merely unknown
                raise
            # Later than now only if that clock is ahead. Commits after now are not known yet.
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
        recorded = self._recorded(batch)
        keys = PartitionKeys.of(
            self._context.repository_def, self._context.instance, self._key, table=self._handle.table
        )
        return commit_events(self._key, batch, recorded, keys, self._handle, kind=self._settings.events)

    def _recorded(self, batch: CommitBatch) -> RecordedCommits:
        """Read events from a while before the first commit on, because clocks may differ."""
        since_ms = batch.commits[0].created_ms - 2 * self._handle.timing.max_skew_ms
        return read_recorded_commits(
            self._context.instance,
            self._key,
            since_ms=since_ms,
            observations=self._settings.events == "observation",
        )

    def _message(self, batch: CommitBatch, events: int) -> str:
        recorded = "" if events or not batch.commits else "; Dagster has events for them"
        more = "; the next tick continues" if batch.more else ""
        new = f"{len(batch.commits):,} new commits{recorded}{more}" if batch.commits else "no new commits"
        rows = "an unknown number of" if batch.table.rows is None else f"{batch.table.rows:,}"
        return f"{new}. {self._handle.table}: {rows} rows in {len(batch.table.parts):,} parts"

    def _gap(
        self, before: FeedPosition, after: FeedPosition, error: SnapshotExpired | UncoordinatedMaintenance
    ) -> dg.SensorResult:
        """Report once that some commits are not known individually, and continue after them."""
        since_ms = before.changes.t_ms
        repeated = (before.foreign and after.foreign) or is_gap_recorded(
            self._context.instance, self._key, after_ms=since_ms
        )
        events: list[Event] = []
        if not repeated:
            version = recorded_data_version(self._context.instance, self._key)
            events.append(gap_event(self._key, since_ms, str(error), version=version))
        return dg.SensorResult(
            asset_events=events, skip_reason=f"some commits are unknown. {error}", cursor=encode(after)
        )
