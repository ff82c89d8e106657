"""A Dagster instance on a Postgres of its own, a lake in a folder, and short ways to make assets.

A module takes the fixtures with `pytest_plugins = ["tests.support.dagster.dagster_instance"]`. All modules of a process
share the server, so tables, and with them assets and pools, need unique names: the fixture `name`.

PYTEST_DONT_REWRITE: a test module imports this before pytest takes it as a plugin, too late for its asserts.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

dg = pytest.importorskip("dagster")

import icedb
from icedb_dagster import IceDBIOManager, IceDBResource
from icedb_dagster.dev import stack
from tests.support.processes import run_python

SUPPORT = Path(__file__).parents[1]
ONE = pa.table({"n": [1]})
TWO = pa.table({"n": [2]})


@pytest.fixture(scope="session")
def started_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Start a Postgres server of this process. Yields the variables with which Dagster finds it."""
    project = tmp_path_factory.mktemp("dagster") / "project"
    project.mkdir()
    environ = {k: v for k, v in os.environ.items() if k != "ICEDB_POSTGRES_URL"}
    yield stack.environment(stack.up(project, services=("postgres",), environ=environ))
    stack.down(project)


@pytest.fixture(scope="module")
def environment(started_stack: dict[str, str]) -> Iterator[dict[str, str]]:
    """Set the variables with which Dagster finds the stack, for this module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ICEDB_POSTGRES_URL", raising=False)
        for variable, value in started_stack.items():
            patch.setenv(variable, value)
        yield started_stack


@pytest.fixture(scope="module")
def instance(postgres_instance: dg.DagsterInstance) -> dg.DagsterInstance:
    return postgres_instance


@pytest.fixture(scope="module")
def postgres_instance(environment: dict[str, str]) -> Iterator[dg.DagsterInstance]:
    """Dagster's instance. It keeps a connection, as that of the web server does: making one for each
    event would take as long as all the rest of a run.
    """
    with dg.DagsterInstance.get() as opened:
        opened.optimize_for_webserver(statement_timeout=60_000, pool_recycle=3600, max_overflow=20)
        yield opened


@pytest.fixture
def lake(tmp_path: Path) -> IceDBResource:
    """Tables in a folder of the test's own."""
    return IceDBResource(root=str(tmp_path / "lake"))


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Return the name of a table that no other test has, because all tests share the instance and its pools."""
    module = request.path.stem.removeprefix("test_")
    return "".join(c if c.isalnum() else "_" for c in f"{module}_{request.node.name}")


@dataclass(frozen=True)
class AssetRun:
    """Materializes assets in the lake, on the instance. `name`: a table that no other test has."""

    instance: dg.DagsterInstance
    lake: IceDBResource
    name: str

    def __call__(self, *assets: Any, io: dict[str, Any] | None = None, **options: Any) -> dg.ExecuteInProcessResult:
        """Materialize assets. `io` has the fields of the IO manager, `options` are for `dagster.materialize`."""
        resources = {"io_manager": IceDBIOManager(icedb=self.lake, **(io or {})), "icedb": self.lake}
        return dg.materialize(list(assets), resources=resources, instance=self.instance, **options)

    def table(self) -> icedb.Table:
        return self.lake.table(self.name)

    def rows(self, columns: str = "*") -> list[tuple[Any, ...]]:
        return rows(self.lake, self.name, columns)


@pytest.fixture
def run(instance: dg.DagsterInstance, lake: IceDBResource, name: str) -> AssetRun:
    return AssetRun(instance, lake, name)


def returning(key: Any, value: Any, metadata: dict[str, Any] | None = None, **options: Any) -> dg.AssetsDefinition:
    """Return an asset that returns a value, or the result of a function."""

    @dg.asset(key=key, metadata=metadata, **options)
    def asset() -> Any:
        return value() if callable(value) else value

    return asset


def rows(lake: IceDBResource, key: Any, columns: str = "*") -> list[tuple[Any, ...]]:
    """Return the rows of an asset's table, in order."""
    return lake.table(key).query(f"SELECT {columns} FROM t ORDER BY ALL").fetchall()


def run_script(script: str, *arguments: str) -> None:
    """Run a Python file below tests/support in a process of its own. A failure shows its standard error."""
    run_python(SUPPORT / script, *arguments)
