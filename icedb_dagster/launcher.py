"""A run launcher that detects dead run workers, so that a dead worker does not keep a table's lock.

Dagster's default launcher has a code server start a process for each run. Only that code server sees the process end.
If both end together (the machine failed, a container was replaced, the process tree was killed), the run stays
*started* for ever, and holds its table's pool. Run monitoring requests the health of started runs' workers from the
launcher. The default launcher cannot answer. This one looks at the worker's process if the code server has a socket,
and otherwise queries the code server. docs/concepts/concurrency.md lists what was tried.

The launcher relies on this behavior of Dagster:

- A code server with a socket is on the machine of the daemon, and so are its workers.
- A worker's first event names its pid.
- A code server knows a run from before its worker starts until it has seen the worker end. By then it has recorded
  the end, unless the worker did. So if the code server does not know the run, the worker is gone.
- A code server that cannot record the end of a worker (the disk of the instance is full, Postgres is down) stops
  observing all its workers, and counts them as its current runs for ever.
- A code server that is shutting down answers until its last worker has ended.
- Run monitoring reads a run's status again before it marks the run as failed. It leaves alone a run that has ended.
- If a launch raises that the code server cannot be reached, the queue may launch the run again, although a worker may
  have been started. So the launcher first asks for the server's id, and raises another error from then on.
- A code server that shuts down answers, and refuses to start a worker.
- `dagster code-server start` puts a proxy in front of a code server. The proxy does not list the current runs.

It uses names that are not public in Dagster. Without one of them, it works as Dagster's default launcher and warns.
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of functions as objects.
import json
import logging
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import dagster as dg
import psutil

from icedb.errors import InvalidOption, OutcomeUnknownError, StackError
from icedb_dagster.dagster_internals import DETECT_DEAD_WORKERS, internal, lacking

if TYPE_CHECKING:
    from dagster._core.launcher.base import CheckRunHealthResult, LaunchRunContext
    from dagster._serdes import ConfigurableClassData

__all__ = ["MonitoredRunLauncher"]

#: A tag of each launched run: the run's id, and the machine that called the code server. A re-executed run has the
#: tags of its parent, hence the id.
LAUNCHED_TAG = "icedb/launched"
LOST_AFTER_S = 60
#: Why dead workers cannot be detected with this version of Dagster; None if they can.
_UNAVAILABLE = lacking(DETECT_DEAD_WORKERS)
_LOCAL = {"localhost", "127.0.0.1", "::1"}
logger = logging.getLogger(__name__)

# Run monitoring does not check a run again that has ended by itself.
_FORGOTTEN_AFTER_S = 3600

# The events of a run among which its worker records its pid. A run has some five before it, and one for each repeated
# launch.
_FIRST_EVENTS = 40
# The time in which a code server must answer before a launch. The queue launches nothing else meanwhile.
_ANSWER_S = 5
# Dagster's text of a code server that shuts down and therefore starts no worker.
_SHUTS_DOWN = "Tried to start a run on a server after telling it to shut down"
# The system clock may be adjusted between the start of a process and the event, from which start times are computed.
_CLOCK_TOLERANCE_S = 60


class MonitoredRunLauncher(dg.DefaultRunLauncher):
    """Dagster's default run launcher, with health checks of run workers for run monitoring.

    A started run fails if, for `lost_after_seconds`, its worker's process on this machine has ended; or, if the worker
    may be on another machine, its code server could not be reached or did not know the run. The launcher assumes that
    the worker is alive if it cannot find out: the code server is reached but does not answer, a proxy of `dagster
    code-server start` answers at a port, the code server is on another machine and reachable from there only, or this
    launcher did not launch the run. It assumes one code server behind each address.

    If the code server does not answer before a launch, the queue can launch the run again. If it does not report
    whether it started a worker, the run fails, so that it never has two workers.

    Args:
        lost_after_seconds: Seconds without a sign of the worker after which the run fails.
        inst_data: Set by Dagster.

    Raises:
        InvalidOption: `lost_after_seconds` is below 1.

    Example:
        In dagster.yaml, together with `run_monitoring: {enabled: true}`:

        run_launcher: {module: icedb_dagster.launcher, class: MonitoredRunLauncher}
    """

    def __init__(
        self, lost_after_seconds: int = LOST_AFTER_S, inst_data: "ConfigurableClassData | None" = None
    ) -> None:
        if lost_after_seconds < 1:
            raise InvalidOption(
                f"dagster.yaml: run_launcher: lost_after_seconds is {lost_after_seconds}; give at least 1."
            )
        super().__init__(inst_data=inst_data)
        if _UNAVAILABLE is not None:
            logger.warning(
                "MonitoredRunLauncher cannot detect dead run workers with Dagster %s, and works as its default "
                "launcher: %s. Install a version of Dagster that icedb-dagster[dagster] allows.",
                dg.__version__,
                _UNAVAILABLE,
            )
        self.lost_after_s = lost_after_seconds
        #: By run id: since when (monotonic seconds) its code server is away, or does not know the run.
        self._missing_since: dict[str, float] = {}

    @classmethod
    def config_type(cls) -> dict[str, dg.Field]:
        """Return the config fields for dagster.yaml."""
        return {"lost_after_seconds": dg.Field(int, is_required=False, default_value=LOST_AFTER_S)}

    @classmethod
    def from_config_value(cls, inst_data: "ConfigurableClassData", config_value: Mapping[str, Any]) -> Self:
        """Create the launcher from the config in dagster.yaml.

        Raises:
            InvalidOption: A config value is invalid.
        """
        return cls(inst_data=inst_data, **config_value)

    def launch_run(self, context: "LaunchRunContext") -> None:
        """Make a code server start a run's worker.

        Raises:
            DagsterCodeLocationLoadError, DagsterUserCodeUnreachableError: No worker was started, because the code
                cannot be loaded, or the code server cannot be reached or shuts down. The queue launches the run again
                (`max_user_code_failure_retries` in dagster.yaml).
            DagsterLaunchFailedError: The code server could not start a worker.
            OutcomeUnknownError: The code server did not report whether it started a worker. The queue fails the run,
                unless the worker has started it.
        """
        run = context.dagster_run
        try:
            unreachable, refused = internal("DagsterUserCodeUnreachableError"), internal("DagsterLaunchFailedError")
        except StackError:
            super().launch_run(context)
            return
        self._check_code_server(context)
        self._instance.add_run_tags(run.run_id, {LAUNCHED_TAG: _launched(run)})
        try:
            super().launch_run(context)
        except unreachable as error:
            raise OutcomeUnknownError(
                f"run {run.run_id}: its code server did not report whether it started a worker. The run is not "
                "launched again, so that it never has two workers. Start a new run."
            ) from error
        except refused as error:
            if _SHUTS_DOWN in str(error):
                raise unreachable(f"run {run.run_id}: its code server shuts down, and starts no worker") from error
            raise

    def _check_code_server(self, context: "LaunchRunContext") -> None:
        """Raise Dagster's error if the code server of a run does not answer."""
        origin = context.dagster_run.remote_job_origin
        if context.workspace is not None and origin is not None:
            name = origin.repository_origin.code_location_origin.location_name
            client = getattr(context.workspace.get_code_location(name), "client", None)
            if client is not None:  # otherwise it is no code server, as the launch reports
                client.get_server_id(timeout=_ANSWER_S)

    @property
    def supports_check_run_worker_health(self) -> bool:
        """True if run monitoring can check workers."""
        return _UNAVAILABLE is None

    def check_run_worker_health(self, run: dg.DagsterRun) -> "CheckRunHealthResult":
        """Return FAILED if a started run's worker is known to be gone, else RUNNING."""
        result: type[CheckRunHealthResult] = internal("CheckRunHealthResult")
        status = internal("WorkerStatus")
        why = self.why_missing(run)
        if not why:
            self._missing_since.pop(run.run_id, None)
            return result(status.RUNNING)
        missing_s = self._missing_s(run.run_id, time.monotonic())
        if missing_s < self.lost_after_s:
            return result(status.RUNNING, f"{why}, for {missing_s:.0f} s")
        return result(status.FAILED, f"The worker is gone: {why}, for {missing_s:.0f} s")

    def why_missing(self, run: dg.DagsterRun) -> str:
        """Return why a run's worker seems to be gone; empty if it is alive, or if that is unknown."""
        address = _address(run)
        if address is None:
            return ""
        socket_path, host = address.get("socket"), address.get("host")
        worker = self._worker(run.run_id) if socket_path else None
        if worker is not None:
            ended = _has_ended(*worker)
            return f"its process {worker[0]} has ended, and its code server did not record that" if ended else ""
        client = internal("DagsterGrpcClient")(
            port=address.get("port"), socket=socket_path, host=host, use_ssl=bool(address.get("use_ssl", False))
        )
        where = socket_path or f"{host}:{address.get('port')}"
        try:
            current = dg.deserialize_value(client.get_current_runs(), internal("GetCurrentRunsResult"))
        except internal("DagsterUserCodeUnreachableError") as error:
            return f"its code server at {where} cannot be reached" if _is_away(error) else ""
        return "" if run.run_id in current.current_runs else f"the code server at {where} does not know it"

    def _worker(self, run_id: str) -> tuple[int, float] | None:
        """Return the pid of a run's worker, and when the worker recorded it (unix seconds); None if it did not."""
        of_type = dg.DagsterEventType.ENGINE_EVENT
        records = self._instance.get_records_for_run(run_id, of_type=of_type, limit=_FIRST_EVENTS).records
        for entry in (record.event_log_entry for record in records):
            event = entry.dagster_event
            if event is not None and (pid := event.engine_event_data.metadata.get("pid")) is not None:
                return int(str(pid.value)), entry.timestamp
        return None

    def _missing_s(self, run_id: str, now_s: float) -> float:
        oldest_s = now_s - self.lost_after_s - _FORGOTTEN_AFTER_S
        recent = {run: since for run, since in self._missing_since.items() if since > oldest_s}
        self._missing_since = {run_id: now_s} | recent
        return now_s - self._missing_since[run_id]


def _launched(run: dg.DagsterRun) -> str:
    return f"{run.run_id[:8]}@{socket.gethostname()}"


def _address(run: dg.DagsterRun) -> dict[str, Any] | None:
    """Return the address of a run's code server; None if it has none, or one that is not reachable from here."""
    launched = run.tags.get(LAUNCHED_TAG, "")
    address_tag = internal("GRPC_INFO_TAG")
    if address_tag not in run.tags or not launched.startswith(f"{run.run_id[:8]}@"):
        return None
    address: dict[str, Any] = json.loads(run.tags[address_tag])
    is_local = address.get("socket") or address.get("host") in _LOCAL
    return None if is_local and launched != _launched(run) else address


def _has_ended(pid: int, recorded_s: float) -> bool:
    """Return whether a process that existed at a time (unix seconds) has ended. Its pid may be reused."""
    try:
        process = psutil.Process(pid)
        is_zombie: bool = process.status() == psutil.STATUS_ZOMBIE
        started_s: float = process.create_time()
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False
    return is_zombie or started_s > recorded_s + _CLOCK_TOLERANCE_S


def _is_away(error: BaseException) -> bool:
    """Return whether no connection was made. Otherwise a server does not respond in time, or cannot list its runs."""
    import grpc  # slow to import, and only Dagster's daemon needs it

    cause = error.__cause__
    return isinstance(cause, grpc.RpcError) and cause.code() is grpc.StatusCode.UNAVAILABLE
