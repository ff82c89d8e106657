"""The context of a project's commands: its Dagster instance, and the tables and automations in its code.

The instance is that of DAGSTER_HOME, or else of the local stack in the project's folder. The code is that of
`workspace.yaml`, loaded like `dagster definitions validate` does: in this process for one code location, or else by
code servers. As for all Dagster commands, a `.env` in the project's folder is part of the environment.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import chdir, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
from dotenv import dotenv_values

from icedb.errors import StackError
from icedb.util.temporary_files import temporary_folder
from icedb_dagster.dagster_internals import internal
from icedb_dagster.dev import stack as local_stack
from icedb_dagster.dev.project.automations import Automation, automations_of, automations_of_server
from icedb_dagster.dev.stack.home import environment_with, open_instance, without_warnings
from icedb_dagster.dev.stack.layout import open_layout
from icedb_dagster.locking.table_lock import table_pools
from icedb_dagster.metadata.error_text import essence, root_cause
from icedb_dagster.resource import IceDBResource

if TYPE_CHECKING:
    from dagster._core.remote_origin import InProcessCodeLocationOrigin
    from dagster._core.workspace.load_target import WorkspaceLoadTarget
    from dagster_shared.error import SerializableErrorInfo

__all__ = [
    "LoadedCode",
    "OpenedInstance",
    "first_cause",
    "load_code",
    "project_environment",
    "reason_of",
    "use_instance",
]

# libpq's default timeout for a silent host is that of the system: minutes.
CONNECT_TIMEOUT_S = "5"


@dataclass(frozen=True, slots=True)
class OpenedInstance:
    """An open instance, and how it was found."""

    instance: dg.DagsterInstance
    found_by: str


@dataclass(frozen=True, slots=True)
class LoadedCode:
    """The contents of a workspace: pools of tables, resources with tables, schedules and sensors, and load errors."""

    pools: tuple[str, ...] = ()
    lakes: tuple[IceDBResource, ...] = ()
    automations: tuple[Automation, ...] = ()
    problems: tuple[str, ...] = ()


@contextmanager
def project_environment(project_dir: str | Path) -> Iterator[None]:
    """Add the project's `.env` to the environment, overriding existing variables as Dagster does."""
    values = dotenv_values(open_layout(project_dir).project / ".env")
    with environment_with({name: value for name, value in values.items() if value is not None}):
        yield


@contextmanager
def use_instance(project_dir: str | Path) -> Iterator[OpenedInstance]:
    """Yield the open instance. Raises StackError, without secrets, if none exists or it cannot be opened."""
    home = os.environ.get("DAGSTER_HOME")
    if not home:
        stack = local_stack.find(project_dir)
        with open_instance(stack.dagster_home, stack.postgres_url) as instance:
            yield OpenedInstance(_whole(instance), f"the local stack of {stack.project_dir}")
        return
    with _instance_of_home(home) as instance:
        yield OpenedInstance(instance, f"DAGSTER_HOME={home}")


def _whole(instance: dg.DagsterInstance) -> dg.DagsterInstance:
    """Return the instance after creating its lazy parts. Raises their configuration errors."""
    try:
        _ = instance.run_coordinator, instance.run_launcher, instance.scheduler
    except BaseException:
        instance.dispose()
        raise
    return instance


def _instance_of_home(home: str) -> dg.DagsterInstance:
    timeout = os.environ.get("PGCONNECT_TIMEOUT", CONNECT_TIMEOUT_S)
    try:
        with without_warnings(), environment_with({"PGCONNECT_TIMEOUT": timeout}):
            return _whole(dg.DagsterInstance.get())
    except Exception as problem:  # noqa: BLE001 - from the configuration, the file system, the driver, or any storage class
        raise StackError(f"the instance of DAGSTER_HOME={home} cannot be opened: {reason_of(problem)}") from None


def load_code(project_dir: str | Path) -> LoadedCode:
    """Load the code of a project, without accessing instance or tables. Raises StackError without a workspace.yaml."""
    workspace = open_layout(project_dir).workspace
    if not workspace.is_file():
        raise StackError(
            f"{workspace} is missing, which names the code with the tables. Run this in the project's folder"
        )
    options = internal("WorkspaceOpts")(workspace=[str(workspace)])
    load_target, in_process = internal("workspace_opts_to_load_target"), internal("InProcessWorkspaceLoadTarget")
    # The code's output is not part of the command's result.
    with chdir(workspace.parent), redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Dagster warns about code that cannot be loaded; we report it
        try:
            target = load_target(options, allow_in_process=True)
        except Exception as error:  # noqa: BLE001 - from its YAML, or from its contents
            return LoadedCode(problems=(f"{workspace} cannot be read: {reason_of(error)}",))
        if isinstance(target, in_process):
            (origin,) = target.create_origins()
            return _load_here(origin)
        return _load_by_servers(target)


def _load_here(origin: InProcessCodeLocationOrigin) -> LoadedCode:
    """Load without Dagster's snapshots of a location, which take twenty seconds for two hundred tables."""
    load = internal("LoadedRepositories")
    try:
        loaded = load(
            origin.loadable_target_origin,
            container_image=origin.container_image,
            entry_point=origin.entry_point,
            container_context=origin.container_context,
            code_location_name=origin.location_name,
        )
        repositories = list(loaded.definitions_by_name.values())
        jobs = [job for repository in repositories for job in repository.get_all_jobs()]
        automations = tuple(automations_of(origin.location_name, repositories))
    except Exception as error:  # noqa: BLE001 - any error of the user's code
        return LoadedCode(problems=(_unloaded(origin.location_name, reason_of(error)),))
    lakes, problems = _lakes(repositories)
    return LoadedCode(table_pools(pool for job in jobs for pool in job.graph.pools), lakes, automations, problems)


def _load_by_servers(target: WorkspaceLoadTarget) -> LoadedCode:
    """Load by one code server for each location, because they may need different Pythons. Roots are not read."""
    pools: list[str] = []
    automations: list[Automation] = []
    problems: list[str] = []
    with (
        temporary_folder("instance") as folder,
        dg.DagsterInstance.local_temp(str(folder)) as instance,
        internal("WorkspaceProcessContext")(
            instance, target, version=dg.__version__, read_only=True, code_server_log_level="warning"
        ) as context,
    ):
        for name, entry in context.create_request_context().get_code_location_entries().items():
            if entry.code_location is None:
                problems.append(_unloaded(name, first_cause(entry.load_error)))
                continue
            for repository in entry.code_location.get_repositories().values():
                snaps = [job.job_snapshot.node_defs_snapshot for job in repository.get_all_jobs()]
                pools += [op.pool for snap in snaps for op in snap.op_def_snaps if op.pool]
                automations += automations_of_server(name, repository)
    return LoadedCode(table_pools(pools), automations=tuple(automations), problems=tuple(problems))


def _unloaded(location: str, reason: str) -> str:
    return f"code location {location} cannot be loaded: {reason}"


def _lakes(repositories: Iterable[dg.RepositoryDefinition]) -> tuple[tuple[IceDBResource, ...], tuple[str, ...]]:
    """Return the resources with tables, including secrets, and their errors."""
    lakes: dict[str, IceDBResource] = {}
    problems = []
    for repository in repositories:
        for key, resource in repository.get_top_level_resources().items():
            made: Any = getattr(resource, "configurable_resource_cls", object)
            if not issubclass(made, IceDBResource):
                continue
            try:
                with dg.build_resources({key: resource}) as resources:
                    lake: IceDBResource = getattr(resources, key)
                    lakes[lake.root] = lake
            except Exception as error:  # noqa: BLE001 - the user's configuration, mostly an unset variable
                problems.append(f"the resource '{key}' cannot be made: {reason_of(error)}")
    return tuple(lakes[root] for root in sorted(lakes)), tuple(problems)


def reason_of(error: BaseException) -> str:
    """Return the root cause of an error in one line, without passwords in addresses."""
    while error.__cause__ is not None:
        error = error.__cause__
    return essence(str(error)) or type(error).__name__


def first_cause(error: SerializableErrorInfo | None) -> str:
    """Return the root cause of an error that Dagster has stored, in one line, without passwords in addresses."""
    cause = root_cause(error)
    return (essence(cause.message) if cause else "") or "no reason given"
