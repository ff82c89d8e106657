"""The names of Dagster that this package uses and that are not public, and what fails without each.

A later version of Dagster may rename them. All other modules take them from here, so an upgrade is checked in one
place. The launcher works without them as Dagster's default launcher, and the command reports what it cannot do.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import dagster as dg

from icedb.errors import StackError

__all__ = ["DETECT_DEAD_WORKERS", "INTERNALS", "LOAD_ON_CHANGE", "Internal", "internal", "lacking"]

#: What `MonitoredRunLauncher` cannot do without its names.
DETECT_DEAD_WORKERS = "detect dead run workers"
#: What `icedb_dagster.daemon` cannot do without its names.
LOAD_ON_CHANGE = "load code locations only if they changed"
_CODE = "load the code of a project"
_SERVERS = "run the code servers of a stack"


@dataclass(frozen=True, slots=True)
class Internal:
    """A name in a module of Dagster, and what this package cannot do without it."""

    module: str
    name: str
    needed_to: str

    def load(self) -> Any:
        """Return the object. Raises ImportError if this version of Dagster lacks it."""
        try:
            return getattr(import_module(self.module), self.name)
        except AttributeError:
            raise ImportError(f"{self.module} has no name {self.name!r}") from None


INTERNALS = {
    internal.name: internal
    for internal in (
        Internal("dagster._core.errors", "DagsterUserCodeUnreachableError", DETECT_DEAD_WORKERS),
        Internal("dagster._core.errors", "DagsterLaunchFailedError", "launch a run again"),
        Internal("dagster._core.launcher.base", "CheckRunHealthResult", DETECT_DEAD_WORKERS),
        Internal("dagster._core.launcher.base", "WorkerStatus", DETECT_DEAD_WORKERS),
        Internal("dagster._core.storage.tags", "GRPC_INFO_TAG", DETECT_DEAD_WORKERS),
        Internal("dagster._grpc.client", "DagsterGrpcClient", DETECT_DEAD_WORKERS),
        Internal("dagster._grpc.types", "GetCurrentRunsResult", DETECT_DEAD_WORKERS),
        Internal("dagster._core.errors", "DagsterPipesExecutionError", "report the error of a Spark program"),
        Internal("dagster._core.remote_origin", "GrpcServerCodeLocationOrigin", LOAD_ON_CHANGE),
        Internal("dagster._daemon.controller", "DagsterDaemonController", LOAD_ON_CHANGE),
        Internal("dagster._cli.proxy_server_manager", "ProxyServerManager", _SERVERS),
        Internal("dagster_shared.cli", "WorkspaceOpts", _CODE),
        Internal("dagster._cli.workspace.cli_target", "workspace_opts_to_load_target", _CODE),
        Internal("dagster._core.workspace.load_target", "InProcessWorkspaceLoadTarget", _CODE),
        Internal("dagster._core.workspace.context", "WorkspaceProcessContext", _CODE),
        Internal("dagster._grpc.server", "LoadedRepositories", _CODE),
        Internal("dagster._utils.schedules", "reverse_cron_string_iterator", "check whether schedules are late"),
    )
}


def internal(name: str) -> Any:
    """Return an object of `INTERNALS`. Raises StackError if this version of Dagster lacks it."""
    try:
        return INTERNALS[name].load()
    except ImportError as error:
        raise StackError(
            f"Dagster {dg.__version__} lacks a name that is needed to {INTERNALS[name].needed_to} ({error}). Install a "
            "version of Dagster that icedb-dagster[dagster] allows"
        ) from None


def lacking(needed_to: str) -> ImportError | None:
    """Return the error of the first name for a purpose that this version of Dagster lacks; None if it has all."""
    for of_purpose in (i for i in INTERNALS.values() if i.needed_to == needed_to):
        try:
            of_purpose.load()
        except ImportError as error:
            return error
    return None
