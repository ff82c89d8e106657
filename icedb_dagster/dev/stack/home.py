"""DAGSTER_HOME, and the Dagster instance that lives there.

The folder's `dagster.yaml` is a copy of the project's own, or else of the one in this package; the copy is renewed
by every `up`. What Dagster needs to find the instance is two environment variables, see `variables`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from icedb.errors import StackError
from icedb_dagster.dev.stack.database import without_password
from icedb_dagster.dev.stack.layout import StackLayout, write_private

if TYPE_CHECKING:
    from dagster import DagsterInstance

__all__ = ["PACKAGED_CONFIG", "install_config", "open_instance", "variables"]

PACKAGED_CONFIG = Path(__file__).with_name("dagster.yaml")


def install_config(layout: StackLayout) -> str:
    """Put `dagster.yaml` in its place and return its text."""
    own = layout.project / "dagster.yaml"
    content = (own if own.is_file() else PACKAGED_CONFIG).read_bytes()
    write_private(layout.dagster_home / "dagster.yaml", content)
    return content.decode(errors="replace")


def variables(dagster_home: Path, url: str) -> dict[str, str]:
    """What has to be in the environment of everything that uses the instance."""
    return {"DAGSTER_HOME": str(dagster_home), "ICEDB_DAGSTER_POSTGRES_URL": url}


@contextmanager
def open_instance(dagster_home: Path, url: str) -> Iterator["DagsterInstance"]:
    """The instance, opened in this process. Creates Dagster's tables where there are none yet."""
    from dagster import DagsterError, DagsterInstance
    from sqlalchemy.exc import SQLAlchemyError

    with _environment(variables(dagster_home, url)):
        try:
            with DagsterInstance.from_config(str(dagster_home)) as instance:
                yield instance
        except (DagsterError, SQLAlchemyError) as problem:
            error = StackError(f"Dagster cannot use its instance, which {dagster_home / 'dagster.yaml'} describes")
            error.add_note(without_password(str(problem), url=url))
            raise error from None


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Dagster reads the process' environment, so for this time it has to be there."""
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
