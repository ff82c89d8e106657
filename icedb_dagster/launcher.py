"""A run launcher that knows whether the workers of its runs live, so that a dead one does not keep a table's lock.

Dagster's default launcher asks a code server to start a process for each run, and only that code server sees the end of
the process. When both end together (the machine went down, a container was replaced, all of it was killed), the run
stays *started* for ever, and holds its table's pool. Run monitoring asks launchers for the health of the workers of
started runs, and the default one has no answer. This one asks the code server. docs/lock.md tells what was tried.

What is relied on in Dagster:

- A code server knows a run from before its worker starts until it has seen it end; then it has recorded the end, unless
  the worker had. So a worker whose code server does not know it is gone.
- A code server that was told to stop answers until its last worker has ended.
- Run monitoring reads a run's status again before it marks it as failed: one that ended meanwhile is left alone.
- `dagster code-server start` puts a proxy in front of code servers, which does not say what runs there are.
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of functions as objects.
import json
import socket
import time
from collections.abc import Mapping
from typing import Any, Self

import dagster as dg
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.launcher.base import CheckRunHealthResult, LaunchRunContext, WorkerStatus
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._grpc.client import DagsterGrpcClient
from dagster._grpc.types import GetCurrentRunsResult
from dagster._serdes import ConfigurableClassData, deserialize_value

from icedb.errors import InvalidOption

__all__ = ["MonitoredRunLauncher"]

#: On each run that was launched: the run, and the machine that asked its code server. A run that a script executes
#: again has all the tags of its parent.
LAUNCHED_TAG = "icedb/launched"
LOST_AFTER_S = 60
_LOCAL = {"localhost", "127.0.0.1", "::1"}
# Of a run that ends by itself meanwhile, nobody asks again.
_FORGOTTEN_AFTER_S = 3600


class MonitoredRunLauncher(dg.DefaultRunLauncher):
    """Dagster's default run launcher, and run monitoring learns from it which workers are gone.

    In dagster.yaml: `run_launcher: {module: icedb_dagster.launcher, class: MonitoredRunLauncher}`, beside
    `run_monitoring: {enabled: true}`. A started run fails when for `lost_after_seconds` (60) its code server could
    not be reached, or answered that it does not know it. Nothing is concluded where nobody can tell: from a code server
    that is reached and does not answer, from a proxy of `dagster code-server start`, from one on another machine that
    only that machine reaches, and of a run that it did not launch. One code server is behind each address.
    """

    def __init__(self, lost_after_seconds: int = LOST_AFTER_S, inst_data: ConfigurableClassData | None = None) -> None:
        if lost_after_seconds < 1:
            raise InvalidOption(
                f"dagster.yaml: run_launcher: lost_after_seconds is {lost_after_seconds}; give 1 second at least."
            )
        super().__init__(inst_data=inst_data)
        self.lost_after_s = lost_after_seconds
        #: Since when (monotonic seconds) a run's code server is away, or does not know it.
        self._missing_since: dict[str, float] = {}

    @classmethod
    def config_type(cls) -> dict[str, dg.Field]:
        """What may be said in dagster.yaml."""
        return {"lost_after_seconds": dg.Field(int, is_required=False, default_value=LOST_AFTER_S)}

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData, config_value: Mapping[str, Any]) -> Self:
        """As Dagster makes it. Raises InvalidOption."""
        return cls(inst_data=inst_data, **config_value)

    def launch_run(self, context: LaunchRunContext) -> None:
        """Have a code server start a run's worker."""
        self._instance.add_run_tags(context.dagster_run.run_id, {LAUNCHED_TAG: _launched(context.dagster_run)})
        super().launch_run(context)

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Run monitoring may ask."""
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Whether a started run's worker lives: RUNNING unless it is known to be gone, then FAILED."""
        why = _why_missing(run)
        if not why:
            self._missing_since.pop(run.run_id, None)
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        missing_s = self._missing_s(run.run_id, time.monotonic())
        if missing_s < self.lost_after_s:
            return CheckRunHealthResult(WorkerStatus.RUNNING, f"{why}, since {missing_s:.0f} s")
        return CheckRunHealthResult(WorkerStatus.FAILED, f"The worker is gone: {why}, since {missing_s:.0f} s")

    def _missing_s(self, run_id: str, now_s: float) -> float:
        oldest_s = now_s - self.lost_after_s - _FORGOTTEN_AFTER_S
        kept = {run: since for run, since in self._missing_since.items() if since > oldest_s}
        self._missing_since = {run_id: now_s} | kept
        return now_s - self._missing_since[run_id]


def _launched(run: dg.DagsterRun) -> str:
    return f"{run.run_id[:8]}@{socket.gethostname()}"


def _why_missing(run: dg.DagsterRun) -> str:
    """Why a run's worker seems to be gone; empty when it lives, and where nobody can tell."""
    launched = run.tags.get(LAUNCHED_TAG, "")
    if GRPC_INFO_TAG not in run.tags or not launched.startswith(f"{run.run_id[:8]}@"):
        return ""
    address = json.loads(run.tags[GRPC_INFO_TAG])
    named, host = address.get("socket"), address.get("host")
    if (named or host in _LOCAL) and launched != _launched(run):
        return ""
    client = DagsterGrpcClient(
        port=address.get("port"), socket=named, host=host, use_ssl=bool(address.get("use_ssl", False))
    )
    where = named or f"{host}:{address.get('port')}"
    try:
        answer = deserialize_value(client.get_current_runs(), GetCurrentRunsResult)
    except DagsterUserCodeUnreachableError as error:
        return f"its code server at {where} cannot be reached" if _is_away(error) else ""
    return "" if run.run_id in answer.current_runs else f"the code server at {where} does not know it"


def _is_away(error: DagsterUserCodeUnreachableError) -> bool:
    """Whether there was no connection; otherwise somebody is there who does not answer in time, or cannot say."""
    import grpc  # slow to load, and only Dagster's daemon asks

    cause = error.__cause__
    return isinstance(cause, grpc.RpcError) and cause.code() is grpc.StatusCode.UNAVAILABLE
