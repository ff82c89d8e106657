"""A sensor that reports each failed run: to the log, and to a function or a webhook."""

# No `from __future__ import annotations` here: Dagster reads the annotations of functions as objects.
import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass

import dagster as dg

from icedb.errors import InvalidOption, RetryableError
from icedb.util.times import iso_text
from icedb_dagster.locking.table_lock import VERB_TAG, table_of
from icedb_dagster.metadata.error_text import essence, root_cause

__all__ = ["FailedRun", "build_run_failure_sensor"]

_WEBHOOK_SECONDS = 10


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that failed. Its fields are the JSON document of a webhook.

    Example:
        def notify(run: FailedRun) -> None:
            send_mail(f"{run.job} of {run.table or 'no table'} failed: {run.error}")
    """

    run_id: str
    job: str
    #: The table's asset key with slashes, and the kind of maintenance; None for a run that is not maintenance.
    table: str | None
    verb: str | None
    #: The cause in one line, without passwords in addresses.
    error: str
    #: When it failed, in ISO 8601 (UTC).
    failed_at: str


def build_run_failure_sensor(
    notify: Callable[[FailedRun], None] | None = None,
    *,
    webhook_env: str | None = None,
    interval_s: int = 30,
    running: bool = False,
    name: str = "icedb_run_failure_sensor",
) -> dg.SensorDefinition:
    """Return a sensor that reports each failed run of the code location once, also those that are not maintenance.

    Each run is a line of JSON in the log of the tick. An error of `notify` or of the webhook is the error of the tick;
    the run is not reported again.

    Args:
        notify: Called with each failed run.
        webhook_env: The environment variable with an address, to which each failed run is sent as JSON (POST). The
            variable is read in each tick. Its value is in no message, because it may contain a secret.
        interval_s: Minimum seconds between two ticks.
        running: Whether the sensor is started from the beginning.
        name: The name of the sensor.

    Raises:
        InvalidOption: `interval_s` is below 1.

    Example:
        sensor = build_run_failure_sensor(webhook_env="ALERTS_URL", running=True)
        defs = dg.Definitions.merge(defs, dg.Definitions(sensors=[sensor]))
    """
    if interval_s < 1:
        raise InvalidOption(f"{name}: interval_s is {interval_s}; give at least 1.")

    @dg.run_failure_sensor(
        name=name,
        minimum_interval_seconds=interval_s,
        description="Reports each failed run of this code location.",
        default_status=dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED,
    )
    def report(context: dg.RunFailureSensorContext) -> None:
        failed = _failed_run(context)
        context.log.error(json.dumps(asdict(failed)))
        if notify is not None:
            notify(failed)
        if webhook_env is not None:
            _post(webhook_env, failed)

    return report


def _failed_run(context: dg.RunFailureSensorContext) -> FailedRun:
    run, event = context.dagster_run, context.failure_event
    record = context.instance.get_run_record_by_id(run.run_id)
    steps = [e.step_failure_data.error for e in context.get_step_failure_events()]
    error = root_cause(next((step for step in steps if step is not None), None))
    failed_s = None if record is None else record.end_time
    return FailedRun(
        run_id=run.run_id,
        job=run.job_name,
        table=table_of(run.tags),
        verb=run.tags.get(VERB_TAG),
        error=essence(event.message or "" if error is None else error.message),
        failed_at="" if failed_s is None else iso_text(round(failed_s * 1000)),
    )


def _post(variable: str, failed: FailedRun) -> None:
    """Send a failed run. Raises InvalidOption without an address, and RetryableError if it was not accepted."""
    url = os.environ.get(variable, "")
    if not url.startswith(("https://", "http://")):
        raise InvalidOption(f"the environment variable {variable} has no address. Set it to one with https://.")
    body = json.dumps(asdict(failed)).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310  checked above
    try:
        with urllib.request.urlopen(request, timeout=_WEBHOOK_SECONDS):  # noqa: S310
            return
    except (OSError, ValueError) as error:
        status = f"status {error.code}" if isinstance(error, urllib.error.HTTPError) else type(error).__name__
        raise RetryableError(
            f"the webhook of {variable} did not accept the report of run {failed.run_id}: {status}. Check the address."
        ) from None
