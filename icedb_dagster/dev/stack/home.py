"""DAGSTER_HOME, and its Dagster instance.

The folder's `dagster.yaml` is a copy of the project's own, or else of the one in this package. Every `up` renews it.
Dagster finds the instance by two environment variables, see `variables`.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from icedb.errors import StackError
from icedb.sql.machine_memory import MEMORY_SHARE
from icedb_dagster.dev.stack.database import without_password
from icedb_dagster.dev.stack.layout import StackLayout, write_private

if TYPE_CHECKING:
    from dagster import DagsterInstance

__all__ = [
    "PACKAGED_CONFIG",
    "environment_with",
    "install_config",
    "memory_share",
    "open_instance",
    "variables",
    "without_warnings",
]

PACKAGED_CONFIG = Path(__file__).with_name("dagster.yaml")


def install_config(layout: StackLayout) -> str:
    """Copy `dagster.yaml` to DAGSTER_HOME, and return its text."""
    own = layout.project / "dagster.yaml"
    content = (own if own.is_file() else PACKAGED_CONFIG).read_bytes()
    write_private(layout.dagster_home / "dagster.yaml", content)
    return content.decode(errors="replace")


def memory_share(instance: "DagsterInstance") -> dict[str, str]:
    """Return the variable that divides the machine's memory among the runs that the instance allows at a time."""
    queue = instance.get_concurrency_config().run_queue_config
    runs = queue.max_concurrent_runs if queue is not None else -1
    return {MEMORY_SHARE: f"{1 / runs:.3g}"} if runs > 0 else {}  # -1: any number


def variables(dagster_home: Path, url: str) -> dict[str, str]:
    """Return the environment variables of every process that uses the instance."""
    return {"DAGSTER_HOME": str(dagster_home), "ICEDB_DAGSTER_POSTGRES_URL": url}


@contextmanager
def open_instance(dagster_home: Path, url: str) -> Iterator["DagsterInstance"]:
    """Yield the instance, opened in this process. Creates Dagster's tables if they are missing."""
    from dagster import DagsterError, DagsterInstance
    from dagster_postgres.utils import DagsterPostgresException
    from sqlalchemy.exc import SQLAlchemyError

    with environment_with(variables(dagster_home, url)):
        try:
            with without_warnings():
                opened = DagsterInstance.from_config(str(dagster_home))
            with opened as instance:
                yield instance
        except (DagsterError, SQLAlchemyError, DagsterPostgresException) as problem:
            error = StackError(f"Dagster cannot use the instance of {dagster_home / 'dagster.yaml'}")
            cause = problem.__cause__ if isinstance(problem, DagsterPostgresException) else None
            error.add_note(without_password(str(cause or problem), url=url))
            raise error from None


@contextmanager
def without_warnings() -> Iterator[None]:
    """Suppress log lines below ERROR for the block: Dagster logs each attempt to connect."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextmanager
def environment_with(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the block, because Dagster reads the environment of the process."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
